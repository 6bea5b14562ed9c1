//! Retention that names names: who holds events, who is about to lose some, who has.

use counterfoil::proto::{
    pb::{
        LogState, RemoveReceiverRequest,
        publisher_admin_service_client::PublisherAdminServiceClient, replay_response::Frame,
    },
    refusal::Reason,
};

use crate::harness::{
    clock::{HOUR_MS, SteppedClock},
    events::{adjusted, adjustments, cursors, rejected, sequences},
    pair::directory,
    publisher::{Publisher, channel},
    refusal::refused,
    tools::counterfoil,
    wait::wait_until,
};

/// Publishes `PREFIX-0` and so on, one after the other.
async fn accepts(publisher: &Publisher, prefix: &str, count: usize) {
    for event in adjustments(prefix, count) {
        publisher.accepts(event).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_holds_keeps_what_a_receiver_within_its_lease_still_needs() {
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    let config = "[logs.main]\nmax_events = 3\nhold_for_receivers = true\nhold_lease = \"1h\"\n";
    let publisher = Publisher::at(dir.path()).config(config).clock(&clock).start();
    accepts(&publisher, "free", 5).await;
    assert_eq!(publisher.log().await.floor_sequence, Some(2), "nobody holds anything");
    let head = publisher.log().await.head.expect("a head");

    let frames = publisher.follows("slow", Some(&head)).await.expect("admitted");
    accepts(&publisher, "k", 3).await;
    let full = async |publisher: &Publisher| {
        let refused = refused(publisher.publish(adjustments("more", 1)).await, Reason::LogFull);
        assert_eq!(
            (&*refused.numbers["receivers"], &*refused.numbers["limit"]),
            ("slow", "max_events")
        );
        assert_eq!(refused.number("floor"), 5);
        let shown = publisher.shows("slow").await.expect("known");
        assert!(shown.holds_floor && !shown.needs_resync, "{shown:?}");
        assert_eq!((shown.headroom_events, shown.eviction_seconds), (Some(0), None), "{shown:?}");
    };
    full(&publisher).await;
    // It is connected, so time does not matter.
    clock.stands_ahead(3 * HOUR_MS);
    full(&publisher).await;
    drop(frames);
    publisher.loses("slow").await;
    full(&publisher).await;
    // Its lease starts anew with the publisher.
    let publisher = publisher.restart();
    clock.stands_ahead(3 * HOUR_MS + HOUR_MS / 2);
    full(&publisher).await;

    clock.stands_ahead(3 * HOUR_MS + 2 * HOUR_MS);
    publisher.publish(adjustments("more", 1)).await.expect("its lease is over");
    let shown = publisher.shows("slow").await.expect("known");
    assert!(shown.needs_resync && !shown.holds_floor, "{shown:?}");
    assert_eq!((shown.headroom_events, shown.lag_events), (Some(0), Some(4)), "{shown:?}");
    assert!(shown.last_seen_time.is_some(), "{shown:?}");
    let said = publisher.process.said();
    assert!(said.contains("slow") && said.contains("needs a resync"), "{said}");
    let late =
        refused(publisher.follows("slow", Some(&head)).await.map(drop), Reason::CursorExpired);
    assert_eq!(late.number("floor"), 6);
    assert_eq!(publisher.log().await.state(), LogState::Active, "that is no other history");
}

/// With a lease, `reject` waits only for who can still be heard; for nobody it drops nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_rejects_does_not_wait_for_who_is_gone() {
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    let config = "[logs.main]\nmax_events = 3\nwhen_full = \"reject\"\n\
                  hold_for_receivers = true\nhold_lease = \"1h\"\n";
    let publisher = Publisher::at(dir.path()).config(config).clock(&clock).start();
    let receipts = publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let cursors = cursors(&receipts);
    drop(publisher.follows("gone", None).await.expect("admitted"));
    publisher.loses("gone").await;
    let live = publisher.follows("live", Some(&cursors[0])).await.expect("admitted");
    let full = publisher.publish(adjustments("l", 1)).await;
    assert_eq!(refused(full, Reason::LogFull).numbers["receivers"], "gone");
    clock.stands_ahead(2 * HOUR_MS);
    publisher.accepts(adjusted("l", "a", 1)).await;
    assert!(publisher.shows("gone").await.expect("known").needs_resync);
    let full = publisher.publish(adjustments("m", 1)).await;
    assert_eq!(refused(full, Reason::LogFull).numbers["receivers"], "live");

    drop(live);
    publisher.loses("live").await;
    clock.stands_ahead(4 * HOUR_MS);
    let full = refused(publisher.publish(adjustments("m", 1)).await, Reason::LogFull);
    assert!(full.message.contains("within its lease"), "{full:?}");
    assert_eq!(publisher.log().await.floor_sequence, Some(1), "nothing is dropped for nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_lets_go_and_age_takes_nothing_that_is_held() {
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    let config = "[logs.free]\nmax_age = \"1m\"\n[logs.main]\nmax_age = \"1m\"\n\
                  hold_for_receivers = true\n";
    let publisher = Publisher::at(dir.path()).config(config).clock(&clock).start();
    let receipts = publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let free = crate::harness::publisher::publish(&publisher.client, "free", adjustments("k", 3));
    free.await.expect("accepted");
    let frames = publisher.follows("slow", None).await.expect("admitted");
    clock.stands_ahead(HOUR_MS);
    let floors = async || {
        let mut client = publisher.client.clone();
        let logs = client.list_logs(counterfoil::proto::pb::ListLogsRequest {}).await;
        let logs = logs.expect("ListLogs").into_inner().logs;
        let floors: Vec<_> =
            logs.iter().map(|log| log.floor_sequence.expect("always set")).collect();
        (floors[0], floors[1])
    };
    // Both are looked through equally often: once more in the one, at least once in the other.
    for (round, floor) in [(0, 3), (1, 4)] {
        wait_until("age has emptied the log that nobody holds", async || {
            (floors().await.0 == floor).then_some(())
        })
        .await;
        let more = adjustments(&format!("l{round}"), 1);
        let more = crate::harness::publisher::publish(&publisher.client, "free", more);
        more.await.expect("accepted");
        clock.stands_ahead((2 + round) * HOUR_MS);
    }
    assert_eq!(floors().await.1, 0, "it is held");
    let session = frames.started.session.expect("always set");
    publisher.ack("slow", session, &cursors(&receipts)[1]).await.expect("acknowledged");
    wait_until("what was acknowledged goes", async || (floors().await.1 == 2).then_some(())).await;
}

/// Told before events are dropped: to the receiver that will miss them, and once they are,
/// to everybody who looks.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_about_to_lose_events_is_warned() {
    let dir = directory();
    let config = "[logs.main]\nmax_events = 80\nmax_age = \"1d\"\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    accepts(&publisher, "k", 75).await;
    let shown = async |name: &str| publisher.shows(name).await.expect("known");

    let mut frames = publisher.follows("slow", None).await.expect("admitted");
    let Ok(Some(Frame::Warning(warning))) = frames.next().await else { panic!("no warning") };
    assert_eq!(warning.headroom_events, Some(5));
    assert!(warning.eviction_seconds >= Some(0.0), "{warning:?}");
    assert_eq!(frames.started.snapshot_due_below, Some(35));
    assert_eq!(frames.events(75).await.expect("events").len(), 75, "and then they come");
    let slow = shown("slow").await;
    assert_eq!(slow.headroom_events, Some(5));
    assert!(slow.eviction_seconds > Some(0.0) && slow.eviction_seconds <= Some(86_400.0));
    assert!(!slow.needs_resync && !slow.holds_floor && slow.connected, "{slow:?}");

    // Near the head there is nothing to warn of, and a look is of nobody.
    let head = publisher.log().await.head.expect("a head");
    let mut near = publisher.follows("near", Some(&head)).await.expect("admitted");
    let mut look = publisher.replay(Default::default()).await.expect("a look");
    accepts(&publisher, "l", 1).await;
    assert!(matches!(near.next().await, Ok(Some(Frame::CaughtUp(_)))), "no warning");
    assert!(matches!(look.next().await, Ok(Some(Frame::Batch(_)))), "no warning");
    assert_eq!(shown("near").await.headroom_events, Some(79));

    let session = near.started.session.expect("always set");
    let answer = publisher.ack("near", session, &head).await.expect("acknowledged");
    assert_eq!(answer.snapshot_due_below, Some(36));
    drop(frames);
    publisher.loses("slow").await;
    accepts(&publisher, "m", 10).await;
    let slow = shown("slow").await;
    assert!(slow.needs_resync, "{slow:?}");
    assert_eq!((slow.headroom_events, slow.eviction_seconds), (Some(0), Some(0.0)));
    let said = publisher.process.said();
    assert_eq!(said.matches("needs a resync").count(), 1, "named once: {said}");
    let url = publisher.url();
    let screen = counterfoil(["status", "--publisher", &url]).run().stdout;
    assert!(screen.contains("slow  away, acked nothing, lag 86 events"), "{screen}");
    assert!(screen.contains("needs a resync"), "{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_gone_for_good_can_be_removed() {
    let dir = directory();
    let config = "[logs.main]\nmax_events = 3\nwhen_full = \"reject\"\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    let receipts = publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let frames = publisher.follows("gone", None).await.expect("admitted");
    let session = frames.started.session.expect("always set");
    let told = publisher.reports("gone", session, &cursors[0], vec![rejected(0)]).await;
    told.expect("acknowledged");
    assert_eq!(publisher.outcomes("k-0").await.len(), 1);
    accepts(&publisher, "l", 1).await;
    let full = publisher.publish(adjustments("m", 1)).await;
    assert_eq!(refused(full, Reason::LogFull).numbers["receivers"], "gone");
    assert!(publisher.shows("gone").await.expect("known").holds_floor);

    let mut admin = PublisherAdminServiceClient::new(channel(publisher.address));
    let mut remove = async |receiver: &str, confirm: &str| {
        let (receiver, confirm) = (receiver.into(), confirm.into());
        let request = RemoveReceiverRequest { log: String::new(), receiver, confirm };
        admin.remove_receiver(request).await
    };
    refused(remove("gone", "gone").await, Reason::WrongState);
    drop(frames);
    publisher.loses("gone").await;
    assert_eq!(refused(remove("gone", "gnoe").await, Reason::InvalidField).fields, ["confirm"]);
    refused(remove("typo", "typo").await, Reason::NotFound);
    let url = publisher.url();
    let typed = |name: &str, confirm: &str| {
        counterfoil(["remove-receiver", "--publisher", &url, name, "--confirm", confirm]).run()
    };
    let wrong = typed("gone", "other");
    assert_eq!(wrong.code(), Some(1), "{wrong:?}");
    assert!(wrong.stderr.contains("INVALID_FIELD"), "{wrong:?}");
    let unconfirmed = counterfoil(["remove-receiver", "--publisher", &url, "gone"]).run();
    assert_eq!(unconfirmed.code(), Some(2), "{unconfirmed:?}");
    let removed = typed("gone", "gone");
    assert_eq!(removed.code(), Some(0), "{removed:?}");

    let publisher = publisher.restart();
    assert_eq!(publisher.shows("gone").await, None, "durably");
    assert_eq!(publisher.outcomes("k-0").await, [], "what it has reported is not told any more");
    // ACK-08: no row comes from an Ack.
    refused(publisher.ack("gone", session, &cursors[2]).await, Reason::NotFound);
    assert_eq!(publisher.shows("gone").await, None);
    // A log that rejects waits for somebody, all the same.
    refused(publisher.publish(adjustments("m", 1)).await, Reason::LogFull);
    let mut frames = publisher.follows("gone", Some(&cursors[2])).await.expect("a new one");
    assert_eq!(frames.started.session, Some(session + 1), "nobody is taken for the old one");
    assert_eq!(frames.started.reported_sequence, Some(-1));
    refused(publisher.ack("gone", session, &cursors[2]).await, Reason::ReceiverFenced);
    assert_eq!(publisher.accepts(adjusted("m", "a", 1)).await.sequence, Some(4));
    assert_eq!(sequences(&frames.events(2).await.expect("events")), [3, 4]);
}

/// A publisher that is started again and again does not prolong the lease of a receiver that
/// does not come back.
#[tokio::test(flavor = "multi_thread")]
async fn starts_do_not_hold_events_for_one_that_is_gone_for_good() {
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    let config = "[logs.main]\nmax_events = 3\nhold_for_receivers = true\nhold_lease = \"3h\"\n";
    let mut publisher = Publisher::at(dir.path()).config(config).clock(&clock).start();
    accepts(&publisher, "k", 3).await;
    drop(publisher.follows("gone", None).await.expect("admitted"));
    publisher.loses("gone").await;
    for hours in 1..=4 {
        clock.stands_ahead(hours * HOUR_MS);
        publisher = publisher.restart();
        let more = publisher.publish(adjustments(&format!("l{hours}"), 1)).await;
        match hours {
            // The first start that it missed was at the first hour.
            1..=3 => drop(refused(more, Reason::LogFull)),
            _ => drop(more.expect("its lease is over, whatever was started since")),
        }
    }
}
