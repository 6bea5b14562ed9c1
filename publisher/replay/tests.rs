//! Streams on the engine in memory, through the real threads.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::*;
use crate::{
    proto::{refusal::reason_of, wire::DataForm},
    publisher::{
        retention::Limits,
        testing::{Running, intent, start, wide, with_data},
    },
};

/// No test waits longer for what has to come.
const SOON: Duration = Duration::from_secs(20);

type Frames = std::pin::Pin<Box<dyn Stream<Item = Result<ReplayResponse, Status>> + Send>>;

fn decoded(event: &Bytes) -> pb::Event {
    wire::decode_stored(event.clone()).expect("an event")
}

fn look() -> Request {
    Request {
        receiver: None,
        session: None,
        start: Start::Beginning,
        follow: false,
        limit: None,
        shape: Shape { types: Vec::new(), form: DataForm::Stored },
    }
}

fn following(name: &str) -> Request {
    Request { receiver: Some(name.to_owned()), follow: true, ..look() }
}

async fn opened(running: &Running, request: Request) -> Frames {
    Box::pin(open(&running.log, request).await.expect("admitted"))
}

async fn next(frames: &mut Frames) -> Option<Result<Frame, Status>> {
    let frame = timeout(SOON, frames.next()).await.expect("a frame, or the end");
    frame.map(|frame| frame.map(|frame| frame.frame.expect("always set")))
}

/// What comes until the stream ends or has caught up: the sequences, and the reason at its end.
async fn drain(frames: &mut Frames) -> (Vec<i64>, Option<Reason>) {
    let mut sequences = Vec::new();
    loop {
        match next(frames).await {
            None | Some(Ok(Frame::CaughtUp(_))) => return (sequences, None),
            Some(Err(status)) => return (sequences, reason_of(&status)),
            Some(Ok(Frame::Batch(batch))) => {
                sequences.extend(batch.events.iter().map(|event| decoded(event).sequence()));
            }
            Some(Ok(Frame::Started(_) | Frame::Heartbeat(_) | Frame::Warning(_))) => {}
        }
    }
}

#[tokio::test]
async fn a_look_starts_sends_all_has_caught_up_and_ends() {
    let running = start(wide());
    running.fill(1_200).await;
    let mut frames = opened(&running, look()).await;
    let Some(Ok(Frame::Started(started))) = next(&mut frames).await else { panic!("no start") };
    assert_eq!((started.floor_sequence, started.next_sequence), (Some(0), Some(1_200)));
    assert_eq!(started.session, Some(0));
    let mut cursor = Cursor::beginning(running.extent().log_id);
    let caught_up = loop {
        match next(&mut frames).await {
            Some(Ok(Frame::Batch(batch))) => {
                for event in batch.events.iter().map(decoded) {
                    let print = event.fingerprint.as_ref().try_into().expect("32 bytes");
                    cursor = cursor.advance(&print, &event.key);
                    assert_eq!(event.sequence(), cursor.sequence);
                }
                assert_eq!(batch.cursor, Some(wire::cursor_message(&cursor)));
            }
            Some(Ok(Frame::CaughtUp(caught_up))) => break caught_up,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(caught_up.cursor, Some(wire::cursor_message(&running.extent().head())));
    assert!(next(&mut frames).await.is_none());
    assert_eq!(running.log.receivers.all(), [], "a look leaves no trace");
}

#[tokio::test]
async fn who_was_fenced_is_told_so_whatever_its_cursor_and_makes_nobody_suspicious() {
    let running = start(Limits { max_events: 5, ..wide() });
    running.fill(10).await;
    let ahead = Cursor { sequence: 50, ..running.cursor(9) };
    let foreign = Cursor { log_id: uuid::Uuid::from_u128(99), ..ahead };
    let expired = Cursor { sequence: 1, ..ahead };
    let after =
        |cursor, session| Request { session, start: Start::After(cursor), ..following("r") };
    let refused = async |cursor, session| {
        open(&running.log, after(cursor, session)).await.map(drop).map_err(|error| error.reason)
    };
    let suspects = || running.log.receivers.suspicion().all().len();
    let old = opened(&running, after(running.cursor(9), None)).await;
    let new = opened(&running, after(running.cursor(9), Some(1))).await;
    for cursor in [ahead, foreign, expired] {
        assert_eq!(refused(cursor, Some(1)).await, Err(Reason::ReceiverFenced), "{cursor:?}");
    }
    assert_eq!(suspects(), 0);
    // One that knows of no session is refused for its cursor; the connected one fits.
    assert_eq!(refused(ahead, None).await, Err(Reason::CursorAhead));
    assert_eq!(suspects(), 0);
    // The connected one itself, on a new connection.
    assert_eq!(refused(ahead, Some(2)).await, Err(Reason::CursorAhead));
    assert_eq!(suspects(), 1);
    let again = opened(&running, after(running.cursor(9), Some(2))).await;
    assert_eq!(suspects(), 0);
    drop((old, new, again));
    // Nobody is connected any more, once that has been noticed.
    timeout(SOON, async {
        while suspects() == 0 {
            assert_eq!(refused(ahead, None).await, Err(Reason::CursorAhead));
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it is noted");
}

#[tokio::test]
async fn who_follows_gets_what_comes_and_is_told_each_time_the_head_is_reached() {
    let running = start(wide());
    running.fill(2).await;
    let mut frames = opened(&running, following("r")).await;
    assert_eq!(drain(&mut frames).await, (vec![0, 1], None));
    for n in 2..5 {
        running.publish(intent(&format!("k{n}"), "camera")).await.expect("accepted");
        assert_eq!(drain(&mut frames).await, (vec![n], None));
    }
}

#[tokio::test]
async fn limit_and_types_end_and_filter() {
    let running = start(wide());
    for n in 0..10 {
        let mut event = intent(&format!("k{n}"), "camera");
        event.event_type = if n % 2 == 0 { "a" } else { "b" }.into();
        running.publish(event).await.expect("accepted");
    }
    let shape = |types: &[&str]| Shape {
        types: types.iter().map(|&name| name.to_owned()).collect(),
        form: DataForm::Stored,
    };
    let cases: [(&[&str], Option<u64>, &[i64]); 4] = [
        (&[], Some(3), &[0, 1, 2]),
        (&["b"], None, &[1, 3, 5, 7, 9]),
        (&["b"], Some(2), &[1, 3]),
        (&["c"], None, &[]),
    ];
    for (types, limit, expected) in cases {
        // A limit ends a stream that would follow, too.
        let request = Request { limit, follow: limit.is_some(), shape: shape(types), ..look() };
        let mut frames = opened(&running, request).await;
        assert_eq!(drain(&mut frames).await, (expected.to_vec(), None), "{types:?} {limit:?}");
        assert!(next(&mut frames).await.is_none(), "{types:?} {limit:?}");
    }
}

#[tokio::test]
async fn a_second_replay_of_a_name_fences_the_first() {
    let running = start(wide());
    let mut first = opened(&running, following("r")).await;
    assert_eq!(drain(&mut first).await, (vec![], None));
    let mut second = opened(&running, following("r")).await;
    assert_eq!(drain(&mut first).await, (vec![], Some(Reason::ReceiverFenced)));
    assert!(next(&mut first).await.is_none());
    assert_eq!(drain(&mut second).await, (vec![], None));
    running.fill(1).await;
    assert_eq!(drain(&mut second).await, (vec![0], None));
}

#[tokio::test]
async fn rpl_02_a_slow_reader_misses_nothing_of_what_is_retained() {
    let running = start(wide());
    let mut frames = opened(&running, following("slow")).await;
    running.fill(1_000).await;
    let mut seen = Vec::new();
    while seen.len() < 1_000 {
        let (sequences, ended) = drain(&mut frames).await;
        assert_eq!(ended, None);
        seen.extend(sequences);
    }
    assert_eq!(seen, (0..1_000).collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_reader_that_truncation_overtakes_is_told_and_sees_no_hole() {
    let running = start(Limits { max_events: 4, ..wide() });
    let payload = format!("\"{}\"", "x".repeat(FRAME_BYTES));
    let large = |n| with_data(&format!("k{n}"), "camera", &payload);
    let mut frames = opened(&running, following("slow")).await;
    for n in 0..20 {
        running.publish(large(n)).await.expect("accepted");
    }
    let (mut seen, mut ended) = drain(&mut frames).await;
    while ended.is_none() {
        let (more, end) = drain(&mut frames).await;
        seen.extend(more);
        ended = end;
    }
    assert_eq!(ended, Some(Reason::CursorExpired));
    assert_eq!(seen, (0..seen.len() as i64).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_end_of_the_process_is_said_to_everybody_also_to_who_does_not_read() {
    let running = start(wide());
    let mut quiet = opened(&running, following("quiet")).await;
    assert_eq!(drain(&mut quiet).await, (vec![], None));
    let mut slow = opened(&running, following("slow")).await;
    let payload = format!("\"{}\"", "x".repeat(FRAME_BYTES));
    for n in 0..8 {
        running.publish(with_data(&format!("k{n}"), "lens", &payload)).await.expect("accepted");
    }
    running.log.ending.cancel();
    for frames in [&mut quiet, &mut slow] {
        let mut ended = None;
        while let Some(frame) = next(frames).await {
            ended = frame.err().and_then(|status| reason_of(&status));
        }
        assert_eq!(ended, Some(Reason::ShuttingDown));
    }
}

#[tokio::test]
async fn rpl_07_who_goes_leaves_nothing_behind_though_nothing_is_published() {
    let running = start(wide());
    let mut streams = Vec::new();
    for n in 0..50 {
        let mut frames = opened(&running, following(&format!("r{n}"))).await;
        assert_eq!(drain(&mut frames).await, (vec![], None));
        streams.push(frames);
    }
    let connected =
        || running.log.receivers.all().iter().filter(|receiver| receiver.connected).count();
    assert_eq!(connected(), 50);
    drop(streams);
    timeout(SOON, async {
        while connected() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the streams end");
}
