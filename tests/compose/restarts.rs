//! Containers that are restarted, made anew, or moved.

use crate::{
    harness::{BOTH, PATIENCE, Pair, Service, docker, integer, wait_for},
    needs_docker,
};

#[test]
fn a_restart_of_each_container_loses_and_repeats_nothing() {
    needs_docker!();
    let pair = Pair::up("restart");
    let mut published = 0;
    for service in BOTH {
        pair.publish(published..published + 5, 2);
        docker(&["restart", &pair.container(service)]);
        pair.publish(published + 5..published + 10, 2);
        published += 10;
    }
    pair.assert_each_once(published, 2);
}

#[test]
fn a_publisher_at_another_address_is_found_again_by_its_name() {
    needs_docker!();
    let pair = Pair::up("moved");
    pair.publish(0..5, 1);
    pair.wait_settled();
    let address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
    let before = pair.inspect(&pair.container(Service::Publisher), address);

    pair.compose(&["rm", "--stop", "--force", "publisher"]);
    // Somebody else takes the next free address, be it the old one or not.
    let image = format!("counterfoil-receiver:{}", crate::harness::TAG);
    let _other = Removed(docker(&["run", "--detach", "--network", &pair.network(), &image]));
    pair.compose(&["up", "-d", "--no-deps", "publisher"]);
    let after = pair.inspect(&pair.container(Service::Publisher), address);
    assert_ne!(before, after, "the publisher has moved");

    pair.publish(5..10, 1);
    pair.assert_each_once(10, 1);
}

/// A container outside the project, removed when dropped.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::process::Command::new("docker").args(["rm", "-f", "-v", &self.0]).output();
    }
}

/// Everything that has to outlive a container.
fn memory(pair: &Pair) -> Vec<String> {
    let log = pair.log();
    let receipt = pair.call(Service::Publisher, "GetReceipt", serde_json::json!({ "key": "k7" }));
    let status = pair.status();
    let entry = pair.ledger(7);
    vec![
        format!("log id {}", log["logId"]),
        format!("floor {}", log["floorSequence"]),
        format!("head {}", log["head"]),
        format!("receipt {receipt}"),
        format!("acked {}", pair.acked()),
        format!("cursor {}", status["cursor"]),
        format!("row {entry}"),
    ]
}

#[test]
fn ops_06_everything_outlives_the_containers() {
    needs_docker!();
    let pair = Pair::up("kept");
    pair.publish(0..20, 3);
    pair.wait_settled();
    let before = memory(&pair);

    let ways: [&[&[&str]]; 2] = [&[&["down"], &["up", "-d"]], &[&["up", "-d", "--force-recreate"]]];
    for way in ways {
        for command in way {
            pair.compose(command);
        }
        pair.wait_state("RECEIVER_STATE_LIVE", PATIENCE);
        wait_for("the ack to be confirmed", PATIENCE, || {
            let status = pair.status();
            if integer(&status["acked"]["sequence"]) == 19 { Ok(()) } else { Err(status) }
        });
        assert_eq!(memory(&pair), before, "after {way:?}");
        assert_eq!(integer(&pair.status()["commits"]), 0, "nothing was applied again");
        let again = pair.publish(0..20, 3);
        assert_eq!(again["receipts"][19]["outcome"], "PUBLISH_OUTCOME_DUPLICATE");
    }
    pair.assert_each_once(20, 3);
}
