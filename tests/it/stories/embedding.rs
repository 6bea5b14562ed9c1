//! A receiver inside another program, as examples/embedded.rs has it: this process.

use counterfoil::{
    proto::pb::{GetStatusRequest, receiver_service_client::ReceiverServiceClient},
    receiver::{
        Error, Receiver,
        projection::{Applied, DeclaredQuery, Fault, Migration, Projection, Tables},
    },
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use self::embedded::Customers;
use crate::harness::{
    events::{adjusted, event},
    ledger::open,
    loopback,
    pair::directory,
    publisher::{Publisher, channel},
    wait::within,
};

#[path = "../../../examples/embedded.rs"]
#[allow(dead_code)] // its `main`
mod embedded;

/// A receiver at work, and the word that ends it.
struct Running {
    end: oneshot::Sender<()>,
    work: JoinHandle<Result<(), Error>>,
}

impl Running {
    fn start(receiver: Receiver) -> Running {
        let (end, told) = oneshot::channel();
        let told = async {
            let _ = told.await; // dropped, it is told too
        };
        Running { end, work: tokio::spawn(receiver.run(told)) }
    }

    async fn ends(self) -> Result<(), Error> {
        drop(self.end);
        within("the receiver's end", self.work).await.expect("it did not panic")
    }
}

fn order(key: &str, customer: &str, cents: i64) -> counterfoil::proto::pb::NewEvent {
    event(key, "order.placed", customer, &format!(r#"{{"cents":{cents}}}"#))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_applies_each_event_once() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let db = dir.path().join("customers.db");
    let receiver = || Receiver::new(publisher.url(), &db, Customers).name("customers");
    let reaches = async |receiver: Receiver, sequence: i64| {
        let mut applied = receiver.applied();
        let running = Running::start(receiver);
        let there = applied.wait_for(|applied| *applied >= sequence);
        within("the events", there).await.expect("it runs");
        running
    };
    let first = [order("o1", "ada", 4_200), order("o2", "ada", 800), order("o3", "bob", -1)];
    publisher.publish(first.to_vec()).await.expect("accepted");
    let running = reaches(receiver(), 2).await;
    // Its database is its own.
    let other = within("another one", receiver().run(std::future::pending())).await;
    assert!(matches!(other, Err(Error::Database(_))), "{other:?}");
    running.ends().await.expect("told to");

    publisher.publish(vec![adjusted("x", "camera", 1), order("o4", "bob", 50)]).await.expect("yes");
    let running = reaches(receiver(), 4).await;
    publisher.waits_for_ack("customers", 4).await;
    running.ends().await.expect("told to");
    let tables = open(&db);
    let rows = "SELECT group_concat(name || ' ' || orders || ' ' || cents, ', ' ORDER BY name)
        FROM customer";
    let rows: String = tables.query_row(rows, [], |row| row.get(0)).expect("readable");
    assert_eq!(rows, "ada 2 5000, bob 1 50");
    let outcomes = "SELECT group_concat(outcome, ' ' ORDER BY sequence) FROM counterfoil_ledger";
    let outcomes: String = tables.query_row(outcomes, [], |row| row.get(0)).expect("readable");
    assert_eq!(outcomes, "APPLIED APPLIED REJECTED IGNORED APPLIED");
}

/// Where it is given a listener, it can be looked at as any other.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_served_where_that_is_wanted() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let listener = TcpListener::bind((loopback::address(), 0)).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let receiver = Receiver::new(publisher.url(), dir.path().join("a.db"), Customers);
    let running = Running::start(receiver.name("shown").serve(listener));
    let mut client = ReceiverServiceClient::new(channel(address));
    let status = within("GetStatus", client.get_status(GetStatusRequest {})).await;
    let status = status.expect("served").into_inner();
    assert_eq!((status.receiver.as_str(), status.projection.as_str()), ("shown", "customers"));
    running.ends().await.expect("told to");
    client.get_status(GetStatusRequest {}).await.expect_err("it has ended");
}

/// Lets something follow, and has nowhere to send it.
struct Emitting;

impl Projection for Emitting {
    fn name(&self) -> &str {
        "emitting"
    }

    fn version(&self) -> i64 {
        1
    }

    fn migrations(&self) -> &[Migration] {
        &[]
    }

    fn apply<'t>(
        &'t self,
        _: &Tables<'t>,
        _: &counterfoil::proto::event::Event,
    ) -> Result<Applied, Fault> {
        Ok(Applied::Ignored)
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &[]
    }

    fn emits(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_cannot_use_is_an_error_and_no_exit() {
    let dir = directory();
    let db = dir.path().join("a.db");
    let url = "http://127.0.0.1:9";
    let new = |url: &str| Receiver::new(url, &db, Customers);
    let cases = [
        (new("nonsense"), "http://"),
        (new(url).name("a b"), "letters"),
        (new(url).log(""), "1 to 128"),
        (Receiver::new(url, "", Customers), "path"),
        (new(url).forward_to("https://x:1", "main"), "forward_to"),
        (Receiver::new(url, &db, Emitting), "--forward-to"),
    ];
    for (receiver, words) in cases {
        match receiver.run(std::future::pending()).await {
            Err(Error::Settings(why)) => assert!(why.contains(words), "{why:?} lacks {words:?}"),
            other => panic!("{words}: {other:?}"),
        }
    }
    assert!(!db.exists(), "nothing has been touched");
}
