//! The client against a publisher that follows a script.

use futures_util::future::join_all;
use tokio::{net::TcpListener, time::timeout};
use tonic::Status;

use super::{
    scripted::{Scripted, State, Step},
    *,
};
use crate::proto::pb::PublishOutcome;

/// No test waits longer for what has to come.
const SOON: Duration = Duration::from_secs(20);

fn event(key: &str) -> NewEvent {
    NewEvent { key: key.into(), r#type: "good".into(), ..Default::default() }
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("k{n}")).collect()
}

async fn start(state: State) -> (Publisher, Scripted) {
    let scripted = Scripted::default();
    *scripted.state() = state;
    let settings = Settings { attempts: Some(4), ..Settings::new(scripted.serve().await) };
    (Publisher::connect(settings).expect("a URL"), scripted)
}

/// Submits one event after the other, then waits for all answers.
async fn publish_in_order(
    publisher: &Publisher,
    keys: &[String],
) -> Vec<Result<Receipt, PublishError>> {
    let mut submitted = Vec::new();
    for key in keys {
        submitted.push(publisher.submit(vec![event(key)]).await.expect("there is room"));
    }
    let answers = timeout(SOON, join_all(submitted)).await.expect("all are answered");
    answers.into_iter().map(|answer| answer.map(|mut receipts| receipts.remove(0))).collect()
}

#[tokio::test]
async fn many_callers_share_one_stream_and_each_gets_its_own_receipt() {
    let (publisher, scripted) = start(State::default()).await;
    let callers = keys(128).into_iter().map(|key| {
        let publisher = publisher.clone();
        async move { (key.clone(), publisher.publish(event(&key)).await) }
    });
    for (key, receipt) in timeout(SOON, join_all(callers)).await.expect("all are answered") {
        assert_eq!(receipt.expect("accepted").key, key);
    }
    assert_eq!(scripted.state().streams, 1);
    assert_eq!(publisher.repeated(), 0);
}

#[tokio::test]
async fn a_refusal_is_its_callers_alone_and_the_order_stays() {
    let (publisher, scripted) = start(State::default()).await;
    let mut submitted = Vec::new();
    for (n, key) in keys(100).iter().enumerate() {
        let kind = if [17, 60].contains(&n) { "bad" } else { "good" };
        let event = NewEvent { r#type: kind.into(), ..event(key) };
        submitted.push(publisher.submit(vec![event]).await.expect("there is room"));
    }
    let refused: Vec<_> = join_all(submitted)
        .await
        .into_iter()
        .enumerate()
        .filter_map(|(n, answer)| answer.err().map(|error| (n, error.reason())))
        .collect();
    assert_eq!(refused, [(17, Some(Reason::InvalidField)), (60, Some(Reason::InvalidField))]);
    let mut expected = keys(100);
    expected.retain(|key| key != "k17" && key != "k60");
    assert_eq!(scripted.keys(), expected);
}

#[tokio::test]
async fn a_batch_is_one_request() {
    let (publisher, scripted) = start(State::default()).await;
    let batch: Vec<_> = keys(3).iter().map(|key| event(key)).collect();
    let receipts = publisher.publish_all(batch).await.expect("accepted");
    assert_eq!(receipts.into_iter().map(|receipt| receipt.key).collect::<Vec<_>>(), keys(3));
    assert_eq!(scripted.state().arrived, [keys(3)]);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_in_order_under_the_same_keys() {
    let script = vec![Step::LoseAnswer, Step::LoseAnswer];
    let (publisher, scripted) = start(State { script, ..State::default() }).await;
    let receipts = publish_in_order(&publisher, &keys(10)).await;
    let first = receipts[0].as_ref().expect("answered in the end");
    assert_eq!(first.outcome(), PublishOutcome::Duplicate, "accepted once");
    assert!(receipts.iter().all(Result::is_ok), "{receipts:?}");
    assert_eq!(scripted.keys(), keys(10), "in their order");
    assert_eq!(scripted.state().streams, 3);
    assert!(publisher.repeated() >= 2);
}

#[tokio::test]
async fn a_publisher_that_is_ending_is_asked_again_in_order() {
    let script = vec![Step::Refuse(Reason::ShuttingDown)];
    let (publisher, scripted) = start(State { script, ..State::default() }).await;
    let receipts = publish_in_order(&publisher, &keys(10)).await;
    assert!(receipts.iter().all(Result::is_ok), "{receipts:?}");
    assert_eq!(scripted.state().streams, 2);
    let first = scripted.keys().iter().position(|key| key == "k0");
    assert!(first.is_some(), "refused once, accepted on the second stream");
}

#[tokio::test]
async fn what_cannot_be_read_is_its_callers_alone_and_the_order_stays() {
    let script = vec![Step::Refuse(Reason::LogUnreadable)];
    let (publisher, scripted) = start(State { script, ..State::default() }).await;
    let mut answers = publish_in_order(&publisher, &keys(10)).await;
    let error = answers.remove(0).expect_err("refused");
    assert!(matches!(error, PublishError::Refused(_)), "{error:?}");
    assert_eq!(error.reason(), Some(Reason::LogUnreadable));
    assert_eq!(error.verdict(), Verdict::Retry);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(scripted.keys(), keys(10)[1..]);
    assert_eq!(scripted.state().streams, 1);
}

/// In whichever runtime callers wait: once the one that carries their requests
/// has ended nobody would answer them.
#[test]
fn callers_of_another_runtime_are_told_when_the_one_that_carries_has_ended() {
    let here = tokio::runtime::Runtime::new().expect("there are threads");
    let carrying = tokio::runtime::Runtime::new().expect("there are threads");
    let scripted = Scripted::default();
    scripted.state().script = vec![Step::Hang];
    let url = here.block_on(scripted.serve());
    let publisher = {
        let _carried = carrying.enter();
        Publisher::connect(url.as_str()).expect("a URL")
    };
    here.block_on(async {
        let waiting = publisher.submit(vec![event("k0")]).await.expect("there is room");
        scripted.arrived(1).await;
        carrying.shutdown_background();
        let submitted = publisher.submit(vec![event("k1")]).await;
        let late = async { submitted?.await };
        let both = timeout(SOON, futures_util::future::join(waiting, late)).await;
        let (waiting, late) = both.expect("both are told");
        for told in [waiting, late] {
            let error = told.expect_err("nobody carries it");
            assert!(matches!(error, PublishError::Unanswered { .. }), "{error:?}");
        }
    });
}

#[tokio::test]
async fn what_never_gets_an_answer_is_said_to_be_unknown() {
    let script = vec![Step::LoseAnswer; 99];
    let (publisher, scripted) = start(State { script, ..State::default() }).await;
    let error = publisher.publish(event("k0")).await.expect_err("no answer ever");
    assert!(matches!(error, PublishError::Unanswered { attempts: 4, .. }), "{error:?}");
    assert_eq!(scripted.state().streams, 4);
    assert_eq!(publisher.repeated(), 3);
    // The next one is none the worse for it.
    scripted.state().script.clear();
    publisher.publish(event("k1")).await.expect("accepted");
}

#[tokio::test]
async fn what_could_not_be_sent_is_said_to_be_so_and_a_publisher_that_comes_back_is_found() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let settings = Settings { attempts: Some(2), ..Settings::new(format!("http://{address}")) };
    let publisher = Publisher::connect(settings).expect("a URL");
    let answers = publish_in_order(&publisher, &keys(3)).await;
    for answer in answers {
        let error = answer.expect_err("nobody listens");
        assert!(matches!(error, PublishError::NotSent { attempts: 2, .. }), "{error:?}");
    }
    let scripted = Scripted::default();
    scripted.serve_on(TcpListener::bind(address).await.expect("still free"));
    publisher.publish(event("k0")).await.expect("accepted");
}

#[tokio::test]
async fn a_publisher_without_streams_is_not_asked_again() {
    let refuse_streams = Some(Status::unimplemented("an older publisher"));
    let (publisher, scripted) = start(State { refuse_streams, ..State::default() }).await;
    let error = publisher.publish(event("k0")).await.expect_err("no streams there");
    assert_eq!(error.status().code(), tonic::Code::Unimplemented);
    assert_eq!(scripted.state().streams, 1);
}

#[tokio::test]
async fn a_stream_that_gives_no_answer_is_given_up() {
    let scripted = Scripted::default();
    scripted.state().script = vec![Step::Hang];
    let patience = Duration::from_millis(50);
    let settings = Settings { patience, ..Settings::new(scripted.serve().await) };
    let publisher = Publisher::connect(settings).expect("a URL");
    let receipt = timeout(SOON, publisher.publish(event("k0"))).await.expect("answered");
    assert_eq!(receipt.expect("answered").outcome(), PublishOutcome::Duplicate);
}

#[tokio::test]
async fn receipts_that_do_not_fit_the_request_are_no_answer() {
    let (publisher, scripted) =
        start(State { script: vec![Step::Babble], ..State::default() }).await;
    let receipt = publisher.publish(event("k0")).await.expect("answered on another stream");
    assert_eq!(receipt.outcome(), PublishOutcome::Duplicate);
    assert_eq!(scripted.state().streams, 2);
}

#[tokio::test]
async fn dropping_the_future_stops_nothing() {
    let (publisher, scripted) = start(State::default()).await;
    drop(publisher.submit(vec![event("k0")]).await.expect("there is room"));
    publisher.publish(event("k1")).await.expect("accepted");
    assert_eq!(scripted.keys(), keys(2));
    // Nor does dropping the last clone.
    drop(publisher.submit(vec![event("k2")]).await.expect("there is room"));
    drop(publisher);
    timeout(SOON, scripted.arrived(3)).await.expect("sent all the same");
}

#[tokio::test]
async fn callers_wait_for_room() {
    let scripted = Scripted::default();
    scripted.state().script = vec![Step::Hang];
    let settings = Settings { max_waiting_bytes: 1_000, ..Settings::new(scripted.serve().await) };
    let publisher = Publisher::connect(settings).expect("a URL");
    let large = || NewEvent { subject: "x".repeat(10_000), ..event("k") };
    let first = publisher.submit(vec![large()]).await.expect("alone it is always let in");
    let mut second = Box::pin(publisher.submit(vec![event("k1")]));
    scripted.arrived(1).await;
    assert!(futures_util::poll!(&mut second).is_pending());
    drop(first);
    assert!(futures_util::poll!(&mut second).is_pending(), "it is still on its way");
}

#[tokio::test]
async fn what_no_message_can_carry_is_refused_here() {
    let (publisher, scripted) = start(State::default()).await;
    let large = NewEvent { subject: "x".repeat(MAX_MESSAGE_BYTES), ..event("k0") };
    let error = publisher.publish(large).await.expect_err("too large");
    assert_eq!(error.reason(), Some(Reason::BatchTooLarge));
    assert!(scripted.state().arrived.is_empty());
}

#[test]
fn it_needs_a_runtime_and_a_url() {
    let error = Publisher::connect("http://127.0.0.1:7601").expect_err("no runtime");
    assert_eq!(error, ConnectError::NoRuntime);
    let runtime = tokio::runtime::Runtime::new().expect("there are threads");
    let _guard = runtime.enter();
    let error = Publisher::connect("127.0.0.1:7601").expect_err("no URL");
    assert!(matches!(error, ConnectError::InvalidUrl(_)));
}
