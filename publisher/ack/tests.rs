//! Receivers beside each other.

use super::*;
use crate::{
    proto::refusal::Reason,
    publisher::{
        retention::WhenFull,
        testing::{start, wide},
    },
};

fn has(refusal: &Refusal, name: &str, value: &str) -> bool {
    refusal.metadata.iter().any(|(n, v)| *n == name && v == value)
}

#[tokio::test]
async fn ack_07_receivers_do_not_disturb_each_other() {
    let running = start(wide());
    running.fill(30).await;
    let receivers = &running.log.receivers;
    let beginning = Cursor::beginning(running.extent().log_id);
    let a = receivers.open("a", beginning, None).await.expect("opened");
    let b = receivers.open("b", beginning, None).await.expect("opened");
    let ack = async |name, session: &Session, sequence| {
        let cursor = Some(running.cursor(sequence));
        let position = receivers.ack(name, session.number(), cursor, None).await?;
        Ok::<_, Refusal>(position.acked)
    };
    assert_eq!(ack("a", &a, 20).await, Ok(running.cursor(20)));
    assert_eq!(ack("b", &b, 5).await, Ok(running.cursor(5)));
    assert_eq!(ack("a", &a, 7).await, Ok(running.cursor(20)), "a lower one changes nothing");
    let all = receivers.all();
    let positions: Vec<_> =
        all.iter().map(|r| (r.position.name.as_str(), r.position.acked.sequence)).collect();
    assert_eq!(positions, [("a", 20), ("b", 5)]);
    let rejecting = Limits { when_full: WhenFull::Reject, ..wide() };
    let hold = receivers.hold(&rejecting, 0, 0);
    assert_eq!((hold.room_below, hold.holders), (6, vec!["b".to_owned()]));
}

#[tokio::test]
async fn ack_08_no_row_comes_from_an_ack() {
    let running = start(wide());
    running.fill(1).await;
    let refusal = running
        .log
        .receivers
        .ack("typo", 1, Some(running.cursor(0)), None)
        .await
        .expect_err("unknown");
    assert_eq!(refusal.reason, Reason::NotFound);
    assert_eq!(running.log.receivers.all(), []);
}

#[tokio::test]
async fn a_newer_session_fences_the_older_and_takes_its_cursor_also_backwards() {
    let running = start(wide());
    running.fill(3).await;
    let receivers = &running.log.receivers;
    let mut first = receivers.open("r", running.cursor(2), None).await.expect("opened");
    let second = receivers.open("r", running.cursor(0), None).await.expect("opened");
    assert_eq!((first.number(), second.number()), (1, 2));
    assert_eq!(first.fenced().await, 2);
    assert_eq!(receivers.all()[0].position.acked, running.cursor(0));
    let late = receivers.ack("r", 1, Some(running.cursor(2)), None).await.expect_err("fenced");
    assert_eq!(late.reason, Reason::ReceiverFenced);
    assert!(has(&late, "session", "2"));
    let connected = |receivers: &Receivers| receivers.all()[0].connected;
    assert!(connected(receivers));
    drop((first, second));
    assert!(!connected(receivers));
}

/// One that was paused or cut off does not take back what another one has taken over.
#[tokio::test]
async fn whoever_was_fenced_does_not_take_over_again() {
    let running = start(wide());
    running.fill(3).await;
    let receivers = &running.log.receivers;
    let open = async |sequence, last| {
        let opened = receivers.open("r", running.cursor(sequence), last).await;
        opened.map(|session| session.number()).map_err(|refusal| refusal.reason)
    };
    assert_eq!(open(0, Some(7)).await, Ok(1), "of a log that was put back since");
    assert_eq!(open(1, Some(1)).await, Ok(2), "its own stream had broken");
    assert_eq!(open(2, None).await, Ok(3), "a new process takes over");
    assert_eq!(open(1, Some(2)).await, Err(Reason::ReceiverFenced));
    assert_eq!(receivers.all()[0].position.acked, running.cursor(2), "nothing is changed by it");
    assert_eq!(open(2, Some(3)).await, Ok(4));
}

/// What a removed receiver leaves behind is a number that nobody uses again.
#[tokio::test]
async fn who_is_removed_is_unknown_and_comes_back_as_a_new_one() {
    let running = start(wide());
    running.fill(3).await;
    let receivers = &running.log.receivers;
    let reason = |result: Result<(), Refusal>| result.map_err(|refusal| refusal.reason);
    assert_eq!(reason(receivers.remove("r").await), Err(Reason::NotFound));
    let session = receivers.open("r", running.cursor(1), None).await.expect("opened");
    assert_eq!(reason(receivers.remove("r").await), Err(Reason::WrongState));
    let number = session.number();
    drop(session);
    assert_eq!(reason(receivers.remove("r").await), Ok(()));
    assert_eq!(receivers.all(), []);
    let late = receivers.ack("r", number, Some(running.cursor(2)), None).await;
    assert_eq!(late.map_err(|refusal| refusal.reason), Err(Reason::NotFound));
    let again = receivers.open("r", running.cursor(-1), None).await.expect("opened");
    assert_eq!((again.number(), again.reported()), (number + 1, -1));
    let late = receivers.ack("r", number, Some(running.cursor(2)), None).await;
    assert_eq!(late.map_err(|refusal| refusal.reason), Err(Reason::ReceiverFenced));
}

#[tokio::test]
async fn it_is_said_once_in_a_session_that_events_were_dropped_which_a_receiver_needs() {
    let running = start(wide());
    running.fill(9).await;
    let receivers = &running.log.receivers;
    let slow = receivers.open("slow", running.cursor(1), None).await.expect("opened");
    let _fast = receivers.open("fast", running.cursor(7), None).await.expect("opened");
    let told = |dropped| receivers.overtaken(&dropped);
    let named = |needs| vec![("slow".to_owned(), needs)];
    assert_eq!(told(0..2), []);
    assert_eq!(told(2..2), []);
    assert_eq!(told(2..4), named(2));
    let acked = receivers.ack("slow", slow.number(), Some(running.cursor(4)), None).await;
    acked.expect("it had been read");
    assert_eq!(told(4..6), [], "said before");
    let _again = receivers.open("slow", running.cursor(5), None).await.expect("opened");
    assert_eq!(told(6..8), named(6));
}

#[tokio::test]
async fn suspicion_ends_with_an_admitted_replay_or_a_removal() {
    let running = start(wide());
    running.fill(3).await;
    let receivers = &running.log.receivers;
    let extent = running.extent();
    let seen = Cursor { sequence: 9, ..running.cursor(2) };
    let suspects = || {
        let all = receivers.suspicion().all();
        all.into_iter().map(|row| (row.name, row.reason)).collect::<Vec<_>>()
    };
    for name in ["a", "b"] {
        running.suspect(name, Reason::CursorAhead, seen).await;
    }
    assert!(receivers.suspicion().refusal(&extent).is_some());
    assert_eq!(receivers.all(), [], "it makes nobody known");
    receivers.remove("a").await.expect("removed");
    assert_eq!(suspects(), [("b".to_owned(), Reason::CursorAhead)]);
    let session = receivers.open("b", running.cursor(1), None).await.expect("opened");
    assert_eq!(suspects(), []);
    assert!(receivers.suspicion().refusal(&extent).is_none());
    let ahead = receivers.ack("b", session.number(), Some(seen), None).await;
    assert_eq!(ahead.map_err(|refusal| refusal.reason), Err(Reason::CursorAhead));
    assert_eq!(suspects(), [("b".to_owned(), Reason::CursorAhead)]);
}

fn rejected(sequence: Sequence) -> Reported {
    Reported {
        sequence,
        outcome: Outcome::Rejected,
        reason: "stale_version".to_owned(),
        result: "{}".to_owned(),
    }
}

/// What receivers are known to have done with an event, as words.
fn known(receivers: &Receivers, sequence: Sequence) -> Vec<(String, &'static str)> {
    let rows = receivers.outcomes(sequence).expect("readable");
    rows.into_iter().map(|(name, row)| (name, row.outcome.as_str())).collect()
}

#[tokio::test]
async fn a_receiver_is_named_up_to_where_it_has_reported() {
    let running = start(wide());
    running.fill(10).await;
    let receivers = &running.log.receivers;
    let beginning = Cursor::beginning(running.extent().log_id);
    let mut sessions = Vec::new();
    for name in ["fast", "plain", "slow"] {
        sessions.push(receivers.open(name, beginning, None).await.expect("opened").number());
    }
    assert_eq!(known(receivers, 0), []);
    let ack = async |name, report| {
        let cursor = Some(running.cursor(8));
        receivers.ack(name, sessions[0], cursor, report).await.expect("acknowledged").reported
    };
    let outcomes = vec![rejected(4)];
    assert_eq!(ack("fast", Some(Report { after: None, through: 6, outcomes })).await, 6);
    assert_eq!(
        ack("slow", Some(Report { after: None, through: 3, outcomes: Vec::new() })).await,
        3
    );
    assert_eq!(ack("plain", None).await, -1, "it acknowledges, and does not report");
    let (fast, slow) = ("fast".to_owned(), "slow".to_owned());
    assert_eq!(known(receivers, 3), [(fast.clone(), "APPLIED"), (slow, "APPLIED")]);
    assert_eq!(known(receivers, 4), [(fast.clone(), "REJECTED")]);
    assert_eq!(known(receivers, 7), []);
    let late = Report { after: None, through: 5, outcomes: vec![rejected(5)] };
    assert_eq!(ack("fast", Some(late)).await, 6, "a late one changes nothing");
    assert_eq!(known(receivers, 5), [(fast, "APPLIED")]);
}

#[tokio::test]
async fn a_database_that_was_put_back_reports_again_and_its_old_session_does_not() {
    let running = start(wide());
    running.fill(10).await;
    let receivers = &running.log.receivers;
    let first = receivers.open("r", running.cursor(2), None).await.expect("opened");
    assert_eq!(first.reported(), -1, "what it had done before is still to be reported");
    let report = |through, outcomes: &[Sequence]| {
        let outcomes = outcomes.iter().copied().map(rejected).collect();
        Some(Report { after: None, through, outcomes })
    };
    let ack = async |session: &Session, report| {
        let cursor = Some(running.cursor(9));
        receivers.ack("r", session.number(), cursor, report).await.map(|now| now.reported)
    };
    assert_eq!(ack(&first, report(9, &[3, 7])).await, Ok(9));
    let second = receivers.open("r", running.cursor(5), None).await.expect("opened");
    assert_eq!(second.reported(), 5);
    assert_eq!(known(receivers, 7), [], "it is to be done again");
    assert_eq!(known(receivers, 3), [("r".to_owned(), "REJECTED")]);
    let late = ack(&first, report(9, &[8])).await.expect_err("fenced");
    assert_eq!(late.reason, Reason::ReceiverFenced);
    assert_eq!(ack(&second, report(9, &[])).await, Ok(9));
    for sequence in [7, 8] {
        assert_eq!(known(receivers, sequence), [("r".to_owned(), "APPLIED")]);
    }
}

/// Acks go on; what stood in the damaged file, and after it, is reported again,
/// and until then nobody is told that it was applied.
#[tokio::test]
async fn damaged_outcomes_hold_up_no_ack_and_are_reported_again() {
    let running = start(wide());
    running.fill(10).await;
    let receivers = &running.log.receivers;
    let beginning = Cursor::beginning(running.extent().log_id);
    let mut sessions = Vec::new();
    for name in ["quiet", "r"] {
        sessions.push(receivers.open(name, beginning, None).await.expect("opened"));
    }
    let ack = async |name, after, sequence, outcomes: &[Sequence]| {
        let outcomes = outcomes.iter().copied().map(rejected).collect();
        let report = Some(Report { after: Some(after), through: sequence, outcomes });
        let cursor = Some(running.cursor(sequence));
        let position = receivers.ack(name, sessions[0].number(), cursor, report).await;
        position.map(|now| (now.acked.sequence, now.reported))
    };
    assert_eq!(ack("quiet", -1, 4, &[2]).await, Ok((4, 4)));
    assert_eq!(ack("r", -1, 4, &[2, 3]).await, Ok((4, 4)));
    let file = running.outcomes_file(0);
    let mut damaged = std::fs::read(&file).expect("read");
    damaged[30] ^= 1;
    std::fs::write(&file, damaged).expect("written");

    let unread = receivers.outcomes(2).expect_err("damaged");
    assert!(matches!(unread, ReadError::Corrupt { .. }), "{unread}");
    let moved = ack("r", 4, 6, &[5]).await.expect("acknowledged");
    assert_eq!(moved, (6, -1), "it starts after what was lost");
    assert!(!file.exists());
    assert_eq!(known(receivers, 2), [], "nobody says that it was applied");
    assert_eq!(ack("r", -1, 7, &[2, 3, 5]).await, Ok((7, 7)));
    assert_eq!(known(receivers, 2), [("r".to_owned(), "REJECTED")]);
    assert_eq!(ack("quiet", -1, 7, &[2]).await, Ok((7, 7)));
    assert_eq!(known(receivers, 3)[0], ("quiet".to_owned(), "APPLIED"));
}
