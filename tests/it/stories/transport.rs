//! What a broken, slow or recycled connection does: a reconnect, and nothing else.

use std::time::Duration;

use counterfoil::proto::{
    pb::{ReceiverState, ReplayRequest, replay_response::Frame},
    refusal::Reason,
};
use tonic::{Code, Status, transport::Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::harness::{
    events::{adjusted, adjustments},
    fake_publisher::{FakePublisher, History, Step, after},
    files::segments,
    loopback,
    pair::{Pair, directory},
    producer::Producer,
    proxy::{Link, Proxy},
    publisher::{Client, Publisher, channel, open_replay},
    receiver::Receiver,
    refusal::refused,
    wait::{wait_until, within},
};

fn following(receiver: &str) -> ReplayRequest {
    ReplayRequest { receiver: receiver.into(), follow: true, ..Default::default() }
}

/// NET-02: a client that pings often, and a quiet stream, are left alone.
#[tokio::test(flavor = "multi_thread")]
async fn net_02_an_idle_replay_with_eager_pings_lives_on() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let endpoint = Endpoint::from_shared(publisher.url()).expect("a URL");
    let channel = endpoint
        .http2_keep_alive_interval(Duration::from_millis(250))
        .keep_alive_timeout(Duration::from_secs(20))
        .keep_alive_while_idle(true)
        .connect_lazy();
    let mut frames = open_replay(&Client::new(channel), following("r")).await.expect("admitted");
    // Ten seconds pass, some forty pings.
    while !matches!(frames.next().await.expect("alive"), Some(Frame::Heartbeat(_))) {}
    publisher.accepts(adjusted("k", "a", 1)).await;
    assert_eq!(frames.events(1).await.expect("on the same stream").len(), 1);
}

/// NET-03: an orderly end, with streams open and a publish under way.
#[tokio::test(flavor = "multi_thread")]
async fn net_03_sigterm_completes_what_is_under_way_and_ends_the_streams() {
    let dir = directory();
    // The publish is held between its sync and its answer.
    let slow = Publisher::at(dir.path())
        .env("FAILPOINTS", "publisher-after-sync=1*off->1*sleep(1500)->off");
    let mut publisher = slow.start();
    publisher.accepts(adjusted("k0", "a", 1)).await;
    let mut streams = Vec::new();
    for name in ["a", "b", ""] {
        let mut frames = publisher.replay(following(name)).await.expect("admitted");
        frames.until_caught_up().await.expect("caught up");
        streams.push(frames);
    }
    let mut health = HealthClient::new(channel(publisher.address));
    let watch = HealthCheckRequest { service: "counterfoil.v1.PublisherService".into() };
    let mut watch = health.watch(watch).await.expect("health can be watched").into_inner();
    let first = watch.message().await.expect("an answer").expect("a first one");
    assert_eq!(first.status(), ServingStatus::Serving);

    let segment = segments(publisher.dir()).remove(0);
    let before = std::fs::read(&segment).expect("readable");
    let client = publisher.client.clone();
    let under_way = tokio::spawn(async move {
        crate::harness::publisher::publish(&client, "", vec![adjusted("k1", "a", 1)]).await
    });
    wait_until("the publish is in the file", async || {
        (std::fs::read(&segment).expect("readable") != before).then_some(())
    })
    .await;
    publisher.process.tell_to_end();
    let next = within("a change of health", watch.message())
        .await
        .expect("told before the end")
        .expect("a change");
    assert_eq!(next.status(), ServingStatus::NotServing);
    for mut frames in streams {
        let status = frames.until_broken().await;
        assert_eq!(status.code(), Code::Unavailable);
        let refusal = refused(Err::<(), _>(status), Reason::ShuttingDown);
        assert!(refusal.retry, "says when to come again: {refusal:?}");
    }
    let receipts = under_way.await.expect("no panic").expect("the publish under way completes");
    assert_eq!(receipts[0].sequence, Some(1));
    let ended = publisher.process.ended();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}

/// NET-09: whatever a fault looks like, the receiver tries again, and resumes.
#[tokio::test(flavor = "multi_thread")]
async fn net_09_faults_of_any_code_are_retried() {
    let codes = [
        Code::Unknown,
        Code::Internal,
        Code::Cancelled,
        Code::Unavailable,
        Code::DeadlineExceeded,
        Code::ResourceExhausted,
        Code::Aborted,
    ];
    let dir = directory();
    let history = History::of(adjustments("k", codes.len() + 1));
    let told = history.clone();
    // Every stream brings one event and breaks; every second one breaks at its opening.
    let fake = FakePublisher::start(move |n, request| {
        let fault =
            |n: usize| Step::Fail(Status::new(codes[n % codes.len()], "a proxy on the way"));
        match after(request) + 1 {
            next if next as usize == codes.len() => told.honestly(n as i64 + 1, after(request)),
            _ if n % 2 == 1 => vec![fault(n / 2)],
            next => vec![told.started(n as i64 + 1), told.batch(&[next as usize]), fault(n / 2)],
        }
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(codes.len() as i64).await;
    fake.waits_for_ack(codes.len() as i64).await;
    assert_eq!(receiver.ledger().total, codes.len() as i64 + 1);
}

/// NET-09: what a network does to a connection, each time with events on the way.
#[tokio::test(flavor = "multi_thread")]
async fn net_09_cuts_resets_and_kills_cost_a_reconnect() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let proxy = Proxy::to(publisher.address).await;
    let receiver = Receiver::start(dir.path(), &proxy.url());
    let mut pair = Pair { receiver, publisher, dir };
    let mut round = 0;
    let mut carries = async |pair: &Pair| {
        round += 1;
        pair.carries(adjustments(&format!("k{round}"), 5)).await;
    };
    carries(&pair).await;
    for link in [Link::Closed, Link::Reset] {
        proxy.set(link);
        pair.receiver.waits_for_state(ReceiverState::Connecting).await;
        pair.publisher.accepts(adjusted(&format!("{link:?}"), "a", 1)).await;
        proxy.set(Link::Open);
        carries(&pair).await;
    }
    proxy.cut();
    carries(&pair).await;
    pair.publisher.process.kill();
    pair.receiver.waits_for_state(ReceiverState::Connecting).await;
    pair.publisher = pair.publisher.restart();
    carries(&pair).await;
    let ended = pair.publisher.successor();
    assert_eq!(pair.publisher.terminate().code(), Some(0));
    pair.publisher = ended.start();
    carries(&pair).await;
    let ledger = pair.settles().await;
    assert_eq!(ledger.total, 6 * 5 + 2);
}

/// A network that swallows everything: silence is noticed, and given up.
async fn a_link_falls_silent(link: Link) {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let proxy = Proxy::to(publisher.address).await;
    let receiver = Receiver::start(dir.path(), &proxy.url());
    let pair = Pair { receiver, publisher, dir };
    pair.carries(vec![adjusted("k0", "a", 1)]).await;
    let before = proxy.accepted();
    proxy.set(link);
    pair.publisher.accepts(adjusted("k1", "a", 1)).await;
    wait_until("the receiver tries another connection", async || {
        (proxy.accepted() > before).then_some(())
    })
    .await;
    proxy.set(Link::Open);
    // What was swallowed stays lost: a connection from that time is of no use.
    proxy.cut();
    pair.carries(vec![adjusted("k2", "a", 1)]).await;
    assert_eq!(pair.settles().await.total, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn net_09_a_link_that_swallows_frames_is_given_up() {
    a_link_falls_silent(Link::DeafClient).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn net_09_a_link_that_swallows_acks_is_given_up() {
    a_link_falls_silent(Link::DeafServer).await;
}

/// NET-10: a link that recycles every connection, under traffic.
#[tokio::test(flavor = "multi_thread")]
async fn net_10_recycled_connections_cost_nothing_but_reconnects() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let proxy = Proxy::to(publisher.address).await;
    let receiver = Receiver::start(dir.path(), &proxy.url());
    let pair = Pair { receiver, publisher, dir };
    let producer = Producer::start(pair.publisher.client.clone(), "p", 2);
    for cut in 1..=20 {
        let answered = producer.answered();
        wait_until("traffic goes on", async || (producer.answered() > answered + 10).then_some(()))
            .await;
        proxy.cut();
        wait_until("the receiver is back", async || (proxy.accepted() > cut).then_some(())).await;
    }
    let accepted = producer.stop().await;
    let ledger = pair.settles().await;
    ledger.check(&accepted, None);
    assert_eq!(ledger.rows.len(), accepted.len());
    assert!(!pair.receiver.process.said().contains("ERROR"), "no alarm for what is everyday");
}

/// The receiver may be there first (OPS-05), and waits for as long as it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_without_a_publisher_waits_for_one() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let (url, later) = (publisher.url(), publisher.successor());
    publisher.accepts(adjusted("k0", "a", 4)).await;
    drop(publisher);
    let receiver = Receiver::start(dir.path(), &url);
    let status = wait_until("it has tried a few times", async || {
        let status = receiver.status().await;
        (status.connect_attempts >= Some(3)).then_some(status)
    })
    .await;
    assert_eq!(status.state(), ReceiverState::Connecting);
    assert!(!status.state_detail.is_empty());
    let pair = Pair { receiver, publisher: later.start(), dir };
    assert_eq!(pair.settles().await.total, 4);
}

/// Attempts are bounded where a limit is set.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_attempts_is_kept_and_said() {
    let dir = directory();
    let nobody = format!("http://{}:9", loopback::address());
    let receiver = Receiver::at(dir.path(), &nobody).arg("--connect-attempts").arg("3").start();
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    let failure = status.failure.expect("says why");
    assert!(failure.message.contains('3'), "{failure:?}");
}

/// A publisher that stops in its tracks is waited for, and goes on where it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_receiver_holds_up_nobody_and_catches_up() {
    let pair = Pair::start();
    pair.carries(vec![adjusted("k0", "a", 1)]).await;
    pair.receiver.process.freeze();
    for batch in 0..10 {
        pair.publisher
            .publish(adjustments(&format!("k{batch}"), 500))
            .await
            .expect("nobody waits for a receiver");
    }
    pair.receiver.process.thaw();
    let ledger = pair.settles().await;
    assert_eq!(ledger.rows.len(), 5001);
}
