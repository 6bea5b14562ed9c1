//! The order of an Ack's checks, and receivers beside each other.

use uuid::Uuid;

use super::*;
use crate::publisher::testing::{start, wide};

const LOG: Uuid = Uuid::from_u128(1);

fn chain(sequence: Sequence) -> Chain {
    [sequence as u8 + 1; 32]
}

fn at(sequence: Sequence) -> Cursor {
    Cursor { log_id: LOG, sequence, chain: chain(sequence) }
}

#[test]
fn the_order_of_checks() {
    let known = Position { name: "r".to_owned(), session: 3, acked: at(6) };
    let extent = Extent { log_id: LOG, floor: 5, next: 10, head_chain: chain(9), bytes: 0 };
    let foreign = Cursor { log_id: Uuid::from_u128(2), ..at(50) };
    let forked = Cursor { chain: [99; 32], ..at(5) };
    let cases = [
        ("fenced, whatever else", 2, Some(foreign), Err(Reason::ReceiverFenced)),
        ("a session to come", 4, Some(foreign), Err(Reason::InvalidField)),
        ("another log", 3, Some(foreign), Err(Reason::LogMismatch)),
        ("ahead", 3, Some(at(10)), Err(Reason::CursorAhead)),
        ("a fork, though lower", 3, Some(forked), Err(Reason::Diverged)),
        ("higher", 3, Some(at(9)), Ok(at(9))),
        ("the same again", 3, Some(at(6)), Ok(at(6))),
        ("lower", 3, Some(at(5)), Ok(at(6))),
        ("lower, and truncated", 3, Some(at(1)), Ok(at(6))),
        ("nothing applied yet", 3, None, Ok(at(6))),
    ];
    for (case, session, cursor, expected) in cases {
        let chain_at = |sequence| match sequence {
            4..10 => Ok(chain(sequence)),
            _ => Err(ReadError::Truncated { asked: sequence, floor: 5 }),
        };
        let acked = advance(&known, session, cursor, &extent, chain_at);
        assert_eq!(acked.map_err(|refusal| refusal.reason), expected, "{case}");
    }
}

fn has(refusal: &Refusal, name: &str, value: &str) -> bool {
    refusal.metadata.iter().any(|(n, v)| *n == name && v == value)
}

#[tokio::test]
async fn ack_07_receivers_do_not_disturb_each_other() {
    let running = start(wide());
    running.fill(30).await;
    let receivers = &running.log.receivers;
    let beginning = Cursor::beginning(running.extent().log_id);
    let a = receivers.open("a", beginning).await.expect("opened");
    let b = receivers.open("b", beginning).await.expect("opened");
    let ack = async |name, session: &Session, sequence| {
        receivers.ack(name, session.number(), Some(running.cursor(sequence))).await
    };
    assert_eq!(ack("a", &a, 20).await, Ok(running.cursor(20)));
    assert_eq!(ack("b", &b, 5).await, Ok(running.cursor(5)));
    assert_eq!(ack("a", &a, 7).await, Ok(running.cursor(20)), "a lower one changes nothing");
    let all = receivers.all();
    let positions: Vec<_> = all.iter().map(|(p, _)| (p.name.as_str(), p.acked.sequence)).collect();
    assert_eq!(positions, [("a", 20), ("b", 5)]);
    assert_eq!(receivers.acknowledged(0), (6, vec!["b".to_owned()]));
}

#[tokio::test]
async fn ack_08_no_row_comes_from_an_ack() {
    let running = start(wide());
    running.fill(1).await;
    let refusal =
        running.log.receivers.ack("typo", 1, Some(running.cursor(0))).await.expect_err("unknown");
    assert_eq!(refusal.reason, Reason::NotFound);
    assert_eq!(running.log.receivers.all(), []);
}

#[tokio::test]
async fn a_newer_session_fences_the_older_and_takes_its_cursor_also_backwards() {
    let running = start(wide());
    running.fill(3).await;
    let receivers = &running.log.receivers;
    let mut first = receivers.open("r", running.cursor(2)).await.expect("opened");
    let second = receivers.open("r", running.cursor(0)).await.expect("opened");
    assert_eq!((first.number(), second.number()), (1, 2));
    assert_eq!(first.fenced().await, 2);
    assert_eq!(receivers.all()[0].0.acked, running.cursor(0));
    let late = receivers.ack("r", 1, Some(running.cursor(2))).await.expect_err("fenced");
    assert_eq!(late.reason, Reason::ReceiverFenced);
    assert!(has(&late, "session", "2"));
    let connected = |receivers: &Receivers| receivers.all()[0].1;
    assert!(connected(receivers));
    drop((first, second));
    assert!(!connected(receivers));
}
