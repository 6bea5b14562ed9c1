//! Stopping, health, addresses, start order (cases OPS-01 to OPS-05).

use std::{
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    harness::{BOTH, PATIENCE, Pair, Service, docker, integer, wait_for},
    needs_docker,
};

/// What a container has to stop within.
const STOP: Duration = Duration::from_secs(5);

fn assert_stops_cleanly(pair: &Pair, service: Service) {
    let container = pair.container(service);
    let started = Instant::now();
    docker(&["stop", "-t", "10", &container]);
    let took = started.elapsed();
    assert_eq!(pair.inspect(&container, "{{.State.ExitCode}}"), "0", "{service:?}");
    assert!(took < STOP, "{service:?} took {took:?}");
}

#[test]
fn ops_01_stops_within_5_s_when_idle() {
    needs_docker!();
    let pair = Pair::up("idle");
    for service in BOTH {
        assert_stops_cleanly(&pair, service);
        docker(&["start", &pair.container(service)]);
        pair.wait_state("RECEIVER_STATE_LIVE", PATIENCE);
    }
}

#[test]
fn ops_01_stops_within_5_s_under_load_and_nothing_is_lost() {
    needs_docker!();
    for service in BOTH {
        let pair = Pair::up(&format!("load-{}", service.name()));
        let url = format!("http://{}", pair.address(Service::Publisher).expect("it is up"));
        let mut load = Command::new(env!("CARGO_BIN_EXE_counterfoil"))
            .args(["publish", "--attempts", "1", "--publisher", &url, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the tool was built for this test");
        let mut input = load.stdin.take().expect("piped");
        let writer = std::thread::spawn(move || {
            for key in 0..200_000 {
                let line = json!({
                    "key": format!("k{key}"),
                    "type": "stock.adjusted",
                    "subject": "camera",
                    "json": { "delta": 1 },
                });
                if writeln!(input, "{line}").is_err() {
                    return; // the tool has stopped: its publisher is gone
                }
            }
        });
        wait_for("the load to arrive", PATIENCE, || {
            let committed = integer(&pair.status()["cursor"]["sequence"]);
            if committed > 1_000 { Ok(()) } else { Err(committed) }
        });
        assert_stops_cleanly(&pair, service);
        let summary = load.wait_with_output().expect("it was started").stdout;
        let summary = String::from_utf8_lossy(&summary).into_owned();
        writer.join().expect("it only writes");

        docker(&["start", &pair.container(service)]);
        pair.wait_settled();
        let published = integer(&pair.log()["nextSequence"]);
        let appended: String = summary
            .split(" appended")
            .next()
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_digit)
            .collect();
        let appended: i64 = appended.parse().unwrap_or_else(|_| panic!("no count in {summary:?}"));
        assert!(published >= appended, "{published} are there, {appended} were acknowledged");
        assert_eq!(pair.total(), published, "every accepted event counts once");
    }
}

#[test]
fn ops_02_pid_1_is_the_service_itself() {
    needs_docker!();
    let pair = Pair::up("pid1");
    for service in BOTH {
        let container = pair.container(service);
        let processes = docker(&["top", &container, "-o", "pid,comm"]);
        let rows: Vec<Vec<_>> =
            processes.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
        let first = pair.inspect(&container, "{{.State.Pid}}");
        let found = rows.iter().find(|row| row.first() == Some(&first.as_str()));
        assert_eq!(found.and_then(|row| row.get(1)), Some(&service.name()), "{processes}");
        let user = pair.inspect(&container, "{{.Config.User}}");
        assert!(!user.is_empty() && !user.starts_with('0'), "runs as {user:?}");
    }
}

fn wait_health(pair: &Pair, service: Service, health: &str, limit: Duration) {
    let container = pair.container(service);
    wait_for(&format!("{} to be {health}", service.name()), limit, || {
        match pair.inspect(&container, "{{.State.Health.Status}}") {
            found if found == health => Ok(()),
            _ => Err(pair.inspect(&container, "{{json .State.Health}}")),
        }
    });
}

#[test]
fn ops_03_healthy_within_30_s_and_unhealthy_on_a_real_fault() {
    needs_docker!();
    let pair = Pair::up("health");
    for service in BOTH {
        wait_health(&pair, service, "healthy", Duration::from_secs(30));
    }
    // Somebody loses the publisher's volume: the new log is another one, which
    // no receiver of the old one follows.
    pair.publish(0..1, 1);
    pair.wait_settled();
    pair.compose(&["rm", "--stop", "--force", "publisher"]);
    docker(&["volume", "rm", &pair.volume("log")]);
    pair.compose(&["up", "-d", "--no-deps", "publisher"]);
    let status = pair.wait_state("RECEIVER_STATE_HALTED", PATIENCE);
    assert_eq!(status["failure"]["reason"], "LOG_MISMATCH", "{status:#}");
    wait_health(&pair, Service::Receiver, "unhealthy", Duration::from_secs(45));
    // A process that hangs does not answer.
    let publisher = pair.container(Service::Publisher);
    docker(&["kill", "-s", "STOP", &publisher]);
    wait_health(&pair, Service::Publisher, "unhealthy", Duration::from_secs(60));
    docker(&["kill", "-s", "CONT", &publisher]);
    wait_health(&pair, Service::Publisher, "healthy", Duration::from_secs(30));
}

#[test]
fn ops_04_each_is_reached_from_the_other_and_from_the_host() {
    needs_docker!();
    let pair = Pair::up("reach");
    for (from, to) in
        [(Service::Receiver, Service::Publisher), (Service::Publisher, Service::Receiver)]
    {
        let url = format!("http://{}:{}", to.name(), to.port());
        let answer = docker(&["exec", &pair.container(from), "/counterfoil", "health", &url]);
        assert_eq!(answer, "SERVING");
    }
    pair.log();
    pair.status();
}

#[test]
fn ops_05_a_receiver_that_is_there_first_waits_for_its_publisher() {
    needs_docker!();
    let pair = Pair::new("order");
    pair.compose(&["up", "-d", "--no-deps", "receiver"]);
    wait_for("several attempts", PATIENCE, || {
        let status = pair.status();
        let attempts = integer(&status["connectAttempts"]);
        let trying = status["state"] == "RECEIVER_STATE_CONNECTING";
        if trying && attempts >= 6 { Ok(()) } else { Err(status) }
    });
    pair.compose(&["up", "-d", "publisher"]);
    pair.wait_state("RECEIVER_STATE_LIVE", PATIENCE);
    pair.publish(0..3, 1);
    pair.assert_each_once(3, 1);
}
