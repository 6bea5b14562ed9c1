//! What happens to the pair between the receiver's commit and its ack. The
//! crash point after the commit holds the receiver there: everything of the
//! second event is in its file, and nobody has been told.

use std::time::Duration;

use serde_json::json;

use crate::{
    harness::{PATIENCE, Pair, RECEIVER, Service, docker, integer, wait_for},
    needs_docker,
};

/// Two events; the second one is committed, and its ack has not left.
fn held_after_second_commit(story: &str, hold: &str) -> Pair {
    let failpoints =
        format!("{}=1*off->1*{hold}->off", counterfoil::proto::crash::RECEIVER_AFTER_COMMIT);
    let pair = Pair::up_with_failpoints(story, &failpoints);
    pair.publish(0..1, 5);
    wait_for("the first ack", PATIENCE, || match pair.acked() {
        0 => Ok(()),
        other => Err(other),
    });
    pair.publish(1..2, 5);
    // The row is there for other readers of the file, so the commit is done.
    assert_eq!(pair.ledger(1)["outcome"], "OUTCOME_APPLIED");
    assert_eq!(pair.acked(), 0, "the ack waits behind the crash point");
    pair
}

#[test]
fn killed_between_commit_and_ack_the_effect_stands_once() {
    needs_docker!();
    let pair = held_after_second_commit("kill", "pause");
    let applied_at = pair.ledger(1)["appliedAt"].clone();

    let receiver = pair.container(Service::Receiver);
    docker(&["kill", "-s", "KILL", &receiver]);
    assert_eq!(pair.inspect(&receiver, "{{.State.ExitCode}}"), "137", "a real death");
    assert_eq!(pair.acked(), 0, "the dead do not acknowledge");
    docker(&["start", &receiver]);

    pair.assert_each_once(2, 5);
    assert_eq!(pair.ledger(1)["appliedAt"], applied_at, "the row was not written again");
    assert_eq!(pair.acked(), 1);
    pair.publish(2..3, 5);
    pair.assert_each_once(3, 5);
}

#[test]
fn cut_off_between_commit_and_ack_the_ack_comes_when_the_network_does() {
    needs_docker!();
    let pair = held_after_second_commit("cut", "sleep(6000)");
    let receiver = pair.container(Service::Receiver);
    docker(&["network", "disconnect", &pair.network(), &receiver]);

    wait_for("the receiver to be past its commit", PATIENCE, || {
        let status = pair.status_from_inside();
        if integer(&status["cursor"]["sequence"]) == 1 { Ok(()) } else { Err(status) }
    });
    assert_eq!(pair.acked(), 0, "no ack can have come");
    pair.publish(2..4, 5);

    docker(&["network", "connect", "--alias", RECEIVER, &pair.network(), &receiver]);
    pair.assert_each_once(4, 5);
}

#[test]
fn a_partition_of_a_quiet_pair_heals_by_itself() {
    needs_docker!();
    let pair = Pair::up("partition");
    pair.publish(0..10, 1);
    pair.wait_settled();
    let publisher = pair.container(Service::Publisher);
    docker(&["network", "disconnect", &pair.network(), &publisher]);
    docker(&["network", "connect", "--alias", "publisher", &pair.network(), &publisher]);
    pair.publish(10..20, 1);
    wait_for("the rest to arrive", Duration::from_secs(90), || {
        let applied = pair.try_call(Service::Receiver, "WaitApplied", &json!({ "sequence": 19 }));
        applied.map(drop)
    });
    pair.assert_each_once(20, 1);
}
