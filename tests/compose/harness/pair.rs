//! One compose project: up, down, and what can be done to it and asked of it.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    PATIENCE,
    engine::{TAG, compose_command, run},
    wait_for,
};

/// The receiver's name at the publisher: the default one.
pub const RECEIVER: &str = "receiver";

/// One of the two services, under its name in the compose file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Holds the log.
    Publisher,
    /// Applies the events.
    Receiver,
}

impl Service {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Service::Publisher => "publisher",
            Service::Receiver => "receiver",
        }
    }

    /// Its port inside its container.
    pub fn port(self) -> u16 {
        match self {
            Service::Publisher => 7601,
            Service::Receiver => 7602,
        }
    }
}

/// Both services.
pub const BOTH: [Service; 2] = [Service::Publisher, Service::Receiver];

/// One project. Taken down when dropped, volumes and all.
pub struct Pair {
    project: String,
    failpoints: String,
}

impl Pair {
    /// A project in which nothing runs yet.
    pub fn new(story: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let project = format!("counterfoil-{story}-{}-{count}", std::process::id());
        Pair { project, failpoints: String::new() }
    }

    /// Both services, connected with each other.
    pub fn up(story: &str) -> Self {
        let pair = Self::new(story);
        pair.compose(&["up", "-d"]);
        pair.wait_state("RECEIVER_STATE_LIVE", PATIENCE);
        pair
    }

    /// Both services, the receiver with these crash points.
    pub fn up_with_failpoints(story: &str, failpoints: &str) -> Self {
        let mut pair = Self::new(story);
        pair.failpoints = failpoints.to_owned();
        pair.compose(&["up", "-d"]);
        pair.wait_state("RECEIVER_STATE_LIVE", PATIENCE);
        pair
    }

    /// Runs a compose command in this project.
    pub fn compose(&self, arguments: &[&str]) -> String {
        self.try_compose(arguments).unwrap_or_else(|why| panic!("{why}"))
    }

    fn try_compose(&self, arguments: &[&str]) -> Result<String, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        run(compose_command()?
            .arg("--project-name")
            .arg(&self.project)
            .arg("--file")
            .arg(root.join("compose.yaml"))
            .arg("--file")
            .arg(root.join("tests/compose/override.yaml"))
            .args(arguments)
            .env("COUNTERFOIL_TAG", TAG)
            // Port 0: any free one, so that stories run side by side.
            .env("COUNTERFOIL_PUBLISHER_PORT", "0")
            .env("COUNTERFOIL_RECEIVER_PORT", "0")
            .env("TEST_FAILPOINTS", &self.failpoints))
    }

    /// The id of a service's container. Asks docker, which answers faster than compose.
    pub fn container(&self, service: Service) -> String {
        let label = |name: &str, value: &str| format!("label=com.docker.compose.{name}={value}");
        let (project, name) = (label("project", &self.project), label("service", service.name()));
        let ids = docker(&["ps", "--all", "--quiet", "--filter", &project, "--filter", &name]);
        ids.lines().next().unwrap_or_else(|| panic!("{} has no container", service.name())).into()
    }

    /// What `docker inspect` says about a container, through a Go template.
    pub fn inspect(&self, container: &str, template: &str) -> String {
        docker(&["inspect", "--format", template, container])
    }

    /// The name of the project's network.
    pub fn network(&self) -> String {
        format!("{}_pair", self.project)
    }

    /// The full name of one of the project's volumes.
    pub fn volume(&self, name: &str) -> String {
        format!("{}_{name}", self.project)
    }

    /// Where a service can be reached from here; another port after each start.
    pub fn address(&self, service: Service) -> Result<String, String> {
        let container = self.container(service);
        let port = format!("{}/tcp", service.port());
        let address = run(Command::new("docker").args(["port", &container, &port]))?;
        address.lines().next().map(str::to_owned).ok_or_else(|| "no published port".to_owned())
    }

    /// Calls a method through grpcurl and reflection.
    pub fn try_call(
        &self,
        service: Service,
        method: &str,
        request: &Value,
    ) -> Result<Value, String> {
        let name = match service {
            Service::Publisher => "counterfoil.v1.PublisherService",
            Service::Receiver => "counterfoil.v1.ReceiverService",
        };
        let answer = run(Command::new("grpcurl")
            .args(["-plaintext", "-emit-defaults", "-connect-timeout", "2", "-max-time", "10"])
            .args(["-d", &request.to_string()])
            .arg(self.address(service)?)
            .arg(format!("{name}/{method}")))?;
        serde_json::from_str(&answer).map_err(|error| format!("{error} in {answer}"))
    }

    /// The same where it has to succeed, once the service can be reached.
    pub fn call(&self, service: Service, method: &str, request: Value) -> Value {
        wait_for(&format!("{method} to succeed"), PATIENCE, || {
            self.try_call(service, method, &request)
        })
    }

    /// Publishes `stock.adjusted` on one item, each under its own key.
    pub fn publish(&self, keys: std::ops::Range<u32>, delta: i64) -> Value {
        let events: Vec<_> = keys
            .map(|key| {
                json!({
                    "key": format!("k{key}"),
                    "type": "stock.adjusted",
                    "subject": "camera",
                    "json": { "delta": delta },
                })
            })
            .collect();
        self.call(Service::Publisher, "Publish", json!({ "events": events }))
    }

    /// The publisher's log.
    pub fn log(&self) -> Value {
        self.call(Service::Publisher, "GetLog", json!({}))["log"].take()
    }

    /// What the publisher has had acknowledged; -1: nothing.
    pub fn acked(&self) -> i64 {
        let log = self.log();
        let receivers = log["receivers"].as_array().cloned().unwrap_or_default();
        let receiver = receivers.iter().find(|receiver| receiver["name"] == RECEIVER);
        receiver.map_or(-1, |receiver| integer(&receiver["acked"]["sequence"]))
    }

    /// The receiver's status.
    pub fn status(&self) -> Value {
        self.call(Service::Receiver, "GetStatus", json!({}))
    }

    /// The receiver's status as it tells itself inside its container: this works
    /// without any network.
    pub fn status_from_inside(&self) -> Value {
        let url = format!("http://127.0.0.1:{}", Service::Receiver.port());
        let output = Command::new("docker")
            .args(["exec", &self.container(Service::Receiver), "/counterfoil", "status", "--json"])
            // There is no publisher at this address; that end may be down.
            .args(["--publisher", &url, "--receiver", &url])
            .output()
            .expect("docker has answered before");
        let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        all["receiver"]["status"].clone()
    }

    /// Waits until the receiver is in a state.
    pub fn wait_state(&self, state: &str, limit: Duration) -> Value {
        wait_for(state, limit, || {
            let status = self.try_call(Service::Receiver, "GetStatus", &json!({}));
            match status {
                Ok(status) if status["state"] == state => Ok(status),
                other => Err(other),
            }
        })
    }

    /// Waits until everything published has been applied and acknowledged.
    pub fn wait_settled(&self) {
        wait_for("published = applied = acked", PATIENCE, || {
            let head = integer(&self.log()["nextSequence"]) - 1;
            let (committed, acked) = (integer(&self.status()["cursor"]["sequence"]), self.acked());
            if committed == head && acked == head { Ok(()) } else { Err((head, committed, acked)) }
        });
    }

    /// The projection's running total.
    pub fn total(&self) -> i64 {
        let answer = self.call(Service::Receiver, "Query", json!({ "name": "total" }));
        integer(&answer["rows"][0]["total"])
    }

    /// The ledger's row of a sequence, once there is one.
    pub fn ledger(&self, sequence: i64) -> Value {
        self.call(Service::Receiver, "GetLedgerEntry", json!({ "sequence": sequence }))["entry"]
            .take()
    }

    /// Everything applied once: the ledger without a hole, every key once, the
    /// total the sum of what was published.
    pub fn assert_each_once(&self, events: u32, delta: i64) {
        self.wait_settled();
        assert_eq!(integer(&self.log()["nextSequence"]), i64::from(events), "accepted once each");
        let mut keys = std::collections::HashSet::new();
        for sequence in 0..i64::from(events) {
            let row = self.ledger(sequence);
            assert_eq!(row["outcome"], "OUTCOME_APPLIED", "{row:#}");
            assert!(keys.insert(row["key"].clone()), "a key twice: {row:#}");
        }
        assert_eq!(self.total(), i64::from(events) * delta);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = self.try_compose(&["logs", "--tail", "40"]);
            eprintln!("--- {}\n{}", self.project, logs.unwrap_or_else(|why| why));
        }
        // A second panic here would end the run without saying anything.
        if let Err(why) = self.try_compose(&["down", "--volumes", "--remove-orphans", "-t", "1"]) {
            eprintln!("--- {} is still there: {why}", self.project);
        }
    }
}

/// Runs docker.
pub fn docker(arguments: &[&str]) -> String {
    run(Command::new("docker").args(arguments)).unwrap_or_else(|why| panic!("{why}"))
}

/// A 64-bit integer as protobuf's JSON has it: text. Or a number, as in a Struct. -1 if absent.
pub fn integer(value: &Value) -> i64 {
    match value {
        Value::String(text) => text.parse().unwrap_or_else(|_| panic!("{text:?} is no integer")),
        Value::Number(number) => number.as_f64().map_or(-1, |number| number as i64),
        _ => -1,
    }
}
