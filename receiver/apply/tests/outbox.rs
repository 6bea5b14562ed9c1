//! What follows from events: kept with their effect, and what becomes of it.

use rusqlite::Connection;
use uuid::Uuid;

use super::*;
use crate::{
    proto::{event::DataKind, refusal::Reason},
    receiver::{
        store::outbox::{self, Outgoing},
        tables::FollowUp,
    },
};

/// Lets as many events follow as the payload says, after it has written a row.
struct Emitter {
    says_so: bool,
}

impl Projection for Emitter {
    fn name(&self) -> &str {
        "emitter"
    }

    fn version(&self) -> i64 {
        1
    }

    fn migrations(&self) -> &[Migration] {
        const TABLE: &str = "CREATE TABLE mine (n INTEGER NOT NULL) STRICT";
        &[Migration { sql: Cow::Borrowed(TABLE) }]
    }

    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
        let many: usize = serde_json::from_slice(&event.intent.data).expect("a number");
        for n in 0..many {
            tables.emit(FollowUp {
                name: "next".into(),
                event_type: event.intent.subject.to_string(),
                subject: n.to_string(),
                content_type: String::new(),
                kind: DataKind::Json,
                data: "{}".into(),
                time: None,
                first_attempt_time: None,
                expected_version: None,
            });
        }
        match &*event.intent.event_type {
            "write" => {
                tables.execute("INSERT INTO mine VALUES (?1)", [event.sequence])?;
                Ok(Applied::Done(None))
            }
            "reject" => Ok(Applied::Rejected { reason: "no".into(), result: None }),
            "fail" => Err(Fault::payload("is none")),
            _ => Ok(Applied::Ignored),
        }
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &[]
    }

    fn emits(&self) -> bool {
        self.says_so
    }
}

fn emitting(sequence: i64, what: &str, many: usize) -> Event {
    event(sequence, &format!("k{sequence}"), what, "a.type", &many.to_string())
}

impl Bench {
    fn waiting(&self) -> Vec<Outgoing> {
        outbox::pending(&self.tables(), 9, usize::MAX).expect("readable")
    }

    fn ask<T>(&self, work: impl FnOnce(oneshot::Sender<T>) -> Work) -> T {
        let (asked, answer) = oneshot::channel();
        let sent = self.work.as_ref().expect("open").blocking_send(work(asked));
        sent.expect("the thread runs");
        answer.blocking_recv().expect("answered")
    }

    fn outbox_pending(&self) -> i64 {
        self.board.status().borrow().outbox_pending
    }
}

fn forwarded(outgoing: &Outgoing, at: i64) -> Forwarded {
    Forwarded {
        sequence: outgoing.sequence,
        number: outgoing.number,
        key: outgoing.intent.key.to_string(),
        log_id: Uuid::from_u128(5),
        at,
    }
}

#[test]
fn what_follows_is_kept_with_the_effect() {
    let bench = Bench::new(Emitter { says_so: true });
    let events = [emitting(0, "write", 2), emitting(1, "write", 0), emitting(2, "write", 1)];
    bench.send(0, &events, cursor_after(&events));
    assert_eq!(bench.resume(), 2);
    let waiting = bench.waiting();
    let keys: Vec<_> = waiting.iter().map(|outgoing| &*outgoing.intent.key).collect();
    assert_eq!(keys, ["k0/emitter/next/0", "k0/emitter/next/1", "k2/emitter/next/0"]);
    assert_eq!(bench.outbox_pending(), 3);
    // Once more, as after a lost ack: nothing follows twice.
    bench.send(0, &events, cursor_after(&events));
    assert_eq!((bench.resume(), bench.waiting().len()), (2, 3));
}

/// Of a batch of which one event fails, what follows from the others is kept once.
#[test]
fn what_is_undone_lets_nothing_follow() {
    let bench = Bench::new(Emitter { says_so: true });
    let events = [emitting(0, "write", 2), emitting(1, "write", 1), emitting(2, "fail", 3)];
    bench.send(0, &events, cursor_after(&events));
    assert_eq!(bench.halted().class, Some("PAYLOAD"));
    assert_eq!((bench.waiting().len(), bench.outbox_pending()), (3, 3));
}

#[test]
fn what_must_not_follow_is_a_fault() {
    let spoilt = |subject| event(0, "k", "write", subject, "1");
    let cases = [
        (true, emitting(0, "reject", 1), "SQL", "had not"),
        (true, emitting(0, "ignore", 1), "SQL", "had not"),
        (false, emitting(0, "write", 1), "SQL", "does not say that it does"),
        (true, spoilt("no type"), "FOLLOW_UP", "type: holds ' '"),
        (true, emitting(0, "write", 1_001), "FOLLOW_UP", "1001 follow-ups, at most 1000"),
    ];
    for (says_so, event, class, words) in cases {
        let bench = Bench::new(Emitter { says_so });
        let events = [event];
        bench.send(0, &events, cursor_after(&events));
        let failure = bench.halted();
        assert_eq!(failure.class, Some(class), "{words}");
        assert!(failure.message.contains(words), "{} lacks {words:?}", failure.message);
        assert_eq!(bench.number("SELECT count(*) FROM counterfoil_outbox"), 0);
        assert_eq!(bench.number("SELECT count(*) FROM mine"), 0);
    }
}

/// Also after a halt: what is over there stays there, whatever has happened here.
#[test]
fn what_is_forwarded_or_given_up_is_noted_once() {
    let bench = Bench::new(Emitter { says_so: true });
    let events = [emitting(0, "write", 4), emitting(1, "fail", 0)];
    bench.send(0, &events, cursor_after(&events));
    bench.halted();
    let waiting = bench.waiting();
    let both = [forwarded(&waiting[0], 10), forwarded(&waiting[1], 11)];
    for pending in [2, 2] {
        let noted = bench.ask(|asked| Work::Forwarded(both.to_vec(), asked));
        assert_eq!(noted, Ok(Noted::All));
        assert_eq!((bench.waiting().len(), bench.outbox_pending()), (2, pending));
    }
    for (number, waits) in [(2, true), (2, false), (0, false), (9, false)] {
        let (done, answer) = oneshot::channel();
        let order = Order::GiveUp { sequence: 0, number, reason: "no use".into(), done };
        bench.order.blocking_send(order).expect("the thread runs");
        let answer = answer.blocking_recv().expect("answered");
        assert_eq!(
            answer.map_err(|refusal| refusal.reason),
            match waits {
                true => Ok(()),
                false => Err(Reason::WrongState),
            }
        );
    }
    assert_eq!((bench.waiting(), bench.outbox_pending()), (waiting[3..].to_vec(), 1));
    let tables: Connection = bench.tables();
    let rows = "SELECT group_concat(coalesce(forwarded_sequence, given_up), ',' ORDER BY number)
        FROM counterfoil_outbox";
    let rows: String = tables.query_row(rows, [], |row| row.get(0)).expect("readable");
    assert_eq!(rows, "10,11,no use");
}

/// Ledger rows go, with what followed from their events; what still waits stays.
#[test]
fn what_waits_outlives_its_ledger_row() {
    let bench = Bench::keeping(Keep::Retained, Emitter { says_so: true }, |_| {});
    let events: Vec<_> = (0..2_000).map(|n| emitting(n, "write", 1)).collect();
    for frame in events.chunks(500) {
        let after = cursor_after(&events[..=frame[frame.len() - 1].sequence as usize]);
        bench.send(0, frame, after);
    }
    assert_eq!(bench.resume(), 1_999);
    let all = outbox::pending(&bench.tables(), 2_000, usize::MAX).expect("readable");
    let most: Vec<_> = all[2..].iter().zip(0..).map(|(out, at)| forwarded(out, at)).collect();
    bench.ask(|asked| Work::Forwarded(most, asked)).expect("noted");
    bench.board.heard().started(0, 1_500);
    bench.board.heard().answered(0, 1_999, Some(1_999));
    let mut status = bench.board.status();
    let pruned = async {
        let pruned = status.wait_for(|status| status.ledger_from == 1_500);
        tokio::time::timeout(IDLE * 8, pruned).await.map(drop)
    };
    bench.runtime.block_on(pruned).expect("in time");
    let left = "SELECT count(*) FROM counterfoil_outbox WHERE sequence < 1500";
    assert_eq!((bench.number(left), bench.waiting()), (2, all[..2].to_vec()));
}

/// A commit of which nobody knows what came of it has come through: the next attempt finds
/// nothing to do, and all the same fewer wait.
#[test]
fn what_an_attempt_before_has_noted_does_not_wait() {
    let bench = Bench::new(Emitter { says_so: true });
    let events = [emitting(0, "write", 4)];
    bench.send(0, &events, cursor_after(&events));
    bench.resume();
    let waiting = bench.waiting();
    let both = [forwarded(&waiting[0], 10), forwarded(&waiting[1], 11)];
    let before = Connection::open(&bench.db).expect("opened");
    assert_eq!(outbox::mark(&before, &both), Ok(2));
    assert_eq!(outbox::give_up(&before, 0, 2, "no use"), Ok(true));
    drop(before);
    assert_eq!(bench.outbox_pending(), 4, "it knows nothing of it");
    assert_eq!(bench.ask(|asked| Work::Forwarded(both.to_vec(), asked)), Ok(Noted::All));
    assert_eq!((bench.waiting().len(), bench.outbox_pending()), (1, 1));
}

/// The other log has given a number to one that it had given to another one before: nothing
/// is noted, and from there on all wait again.
#[test]
fn a_place_that_is_taken_is_told_and_what_is_lost_waits_again() {
    let bench = Bench::new(Emitter { says_so: true });
    let events = [emitting(0, "write", 5)];
    bench.send(0, &events, cursor_after(&events));
    bench.resume();
    let waiting = bench.waiting();
    let three: Vec<_> = waiting.iter().zip(10..13).map(|(out, at)| forwarded(out, at)).collect();
    assert_eq!(bench.ask(|asked| Work::Forwarded(three, asked)), Ok(Noted::All));
    let next = [forwarded(&waiting[3], 11), forwarded(&waiting[4], 12)];
    let taken = Place { log_id: next[0].log_id.to_string(), at: 11 };
    let noted = bench.ask(|asked| Work::Forwarded(next.to_vec(), asked));
    assert_eq!(noted, Ok(Noted::Taken(taken.clone())));
    assert_eq!((bench.waiting().len(), bench.outbox_pending()), (2, 2));
    assert_eq!(bench.ask(|asked| Work::Lost(taken, asked)), Ok(2));
    assert_eq!((bench.waiting(), bench.outbox_pending()), (waiting[1..].to_vec(), 4));
}
