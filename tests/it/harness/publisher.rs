//! A publisher process and what a client asks it.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use counterfoil::proto::pb::{
    AckOutcome, AckRequest, AckResponse, Cursor, Event, GetLogRequest, GetReceiptRequest,
    GetReceiptResponse, Log, NewEvent, Outcome, PublishRequest, Receipt, ReceiverPosition,
    ReplayRequest, StartAt, publisher_service_client::PublisherServiceClient,
    replay_request::Start,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use super::{
    clock::SteppedClock,
    frames::Frames,
    ledger::{Accepted, Ledger},
    loopback,
    process::{Ended, Launch, Process, dies_at},
    wait::{DEADLINE, wait_until, within},
};

/// The client that cargo generated for us.
pub type Client = PublisherServiceClient<Channel>;

/// A client that connects when it is first used, and again when it has to.
pub fn client(address: SocketAddr) -> Client {
    PublisherServiceClient::new(channel(address))
        .max_decoding_message_size(16 << 20)
        .max_encoding_message_size(64 << 20)
}

/// A lazy channel with a deadline for connecting only.
pub fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .expect("an address makes a URL")
        .connect_timeout(DEADLINE)
        .connect_lazy()
}

/// A client that takes in few bytes that nobody has asked for.
pub fn small_windows(address: SocketAddr) -> Client {
    const WINDOW_BYTES: u32 = 64 * 1024;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    let endpoint = endpoint
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    PublisherServiceClient::new(endpoint.connect_lazy())
}

/// How a publisher is started.
#[derive(Clone)]
pub struct Setup {
    dir: PathBuf,
    listen: String,
    config: Option<String>,
    clock: Option<SteppedClock>,
    env: Vec<(String, OsString)>,
    wrapper: Vec<OsString>,
}

impl Setup {
    /// A configuration file with this text.
    pub fn config(mut self, toml: &str) -> Self {
        self.config = Some(toml.to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Goes by this clock, and its successors too.
    pub fn clock(mut self, clock: &SteppedClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Dies at a crash point after so many passes.
    pub fn dies_at(self, point: &str, after: u32) -> Self {
        self.env("FAILPOINTS", dies_at(point, after))
    }

    pub fn wrapped(mut self, wrapper: Vec<OsString>) -> Self {
        self.wrapper = wrapper;
        self
    }

    /// Listens where an earlier one did.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address.to_string();
        self
    }

    /// The same without crash points and wrapper.
    pub fn sound(self) -> Self {
        Setup { env: Vec::new(), wrapper: Vec::new(), ..self }
    }

    fn launch(&self) -> Launch {
        let mut launch = Launch::new(env!("CARGO_BIN_EXE_publisher"))
            .args(["--listen", &self.listen])
            .arg("--data-dir")
            .arg(&self.dir)
            .wrapped(&self.wrapper);
        if let Some(config) = &self.config {
            let path = self.dir.with_extension("toml");
            std::fs::write(&path, config).expect("the configuration can be written");
            launch = launch.arg("--config").arg(path);
        }
        if let Some(clock) = &self.clock {
            let (name, file) = clock.env();
            launch = launch.env(name, file);
        }
        self.env.iter().fold(launch, |launch, (name, value)| launch.env(name, value.clone()))
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start(self) -> Publisher {
        self.try_start().unwrap_or_else(|ended| panic!("the publisher did not start: {ended:?}"))
    }

    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// How it ended instead.
    pub fn try_start(self) -> Result<Publisher, Ended> {
        let (process, address) = self.launch().try_start()?;
        let setup = self.listen(address);
        Ok(Publisher { process, address, setup, client: client(address) })
    }

    /// Runs it to its end: for starts that have to be refused.
    ///
    /// # Panics
    /// If it listens instead.
    pub fn refuses(self) -> Ended {
        match self.try_start() {
            Ok(_) => panic!("the publisher has started, it should have refused"),
            Err(ended) => ended,
        }
    }
}

/// A running publisher.
pub struct Publisher {
    pub process: Process,
    pub address: SocketAddr,
    pub client: Client,
    setup: Setup,
}

impl Publisher {
    /// How one over this directory is started.
    pub fn at(dir: &Path) -> Setup {
        Setup {
            dir: dir.join("publisher"),
            listen: SocketAddr::new(loopback::address(), 0).to_string(),
            config: None,
            clock: None,
            env: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    /// Starts one with embedded defaults.
    pub fn start(dir: &Path) -> Publisher {
        Self::at(dir).start()
    }

    /// Runs `publisher check` over this directory.
    pub fn check(dir: &Path) -> Ended {
        Launch::new(env!("CARGO_BIN_EXE_publisher"))
            .args(["check", "--data-dir"])
            .arg(dir.join("publisher"))
            .run()
    }

    /// Runs `publisher recover` over this directory.
    pub fn recover(dir: &Path) -> Ended {
        Launch::new(env!("CARGO_BIN_EXE_publisher"))
            .args(["recover", "--data-dir"])
            .arg(dir.join("publisher"))
            .run()
    }

    /// Runs `publisher fork` over this directory.
    pub fn fork(dir: &Path, flags: &[&str]) -> Ended {
        Self::forking(dir, flags).run()
    }

    /// The same, to die at a crash point after so many passes.
    pub fn fork_dies_at(dir: &Path, point: &str, after: u32) -> Ended {
        Self::forking(dir, &[]).env("FAILPOINTS", dies_at(point, after)).run()
    }

    /// The same, below another program.
    pub fn fork_wrapped(dir: &Path, wrapper: &[OsString]) -> Ended {
        Self::forking(dir, &[]).wrapped(wrapper).run()
    }

    fn forking(dir: &Path, flags: &[&str]) -> Launch {
        Launch::new(env!("CARGO_BIN_EXE_publisher"))
            .args(["fork", "--data-dir"])
            .arg(dir.join("publisher"))
            .args(flags)
    }

    /// Runs `publisher rebuild-receipts` over this directory.
    pub fn rebuild_receipts(dir: &Path, flags: &[&str]) -> Ended {
        Launch::new(env!("CARGO_BIN_EXE_publisher"))
            .args(["rebuild-receipts", "--data-dir"])
            .arg(dir.join("publisher"))
            .args(flags)
            .run()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn dir(&self) -> &Path {
        &self.setup.dir
    }

    /// Starts it again at the same place, without crash points or wrapper.
    pub fn restart(self) -> Publisher {
        let setup = self.successor();
        drop(self);
        setup.start()
    }

    /// How its successor at the same place is started.
    pub fn successor(&self) -> Setup {
        self.setup.clone().sound()
    }

    /// Whether it was started to die at a crash point.
    pub fn dying(&self) -> bool {
        self.setup.env.iter().any(|(name, _)| name == "FAILPOINTS")
    }

    /// SIGTERM, and its end.
    pub fn terminate(mut self) -> Ended {
        self.process.tell_to_end();
        self.process.ended()
    }

    /// Publishes to `main`, all or none.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn publish(&self, events: Vec<NewEvent>) -> Result<Vec<Receipt>, Status> {
        publish(&self.client, "", events).await
    }

    /// Publishes one event that has to be accepted.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn accepts(&self, event: NewEvent) -> Receipt {
        let receipts = self.publish(vec![event]).await;
        receipts.expect("the event is accepted").pop().expect("one receipt for one event")
    }

    /// `main` as GetLog shows it.
    pub async fn log(&self) -> Log {
        self.try_log().await.expect("GetLog")
    }

    /// The same, while the publisher may be down.
    ///
    /// # Errors
    /// The publisher's, or the transport's.
    pub async fn try_log(&self) -> Result<Log, Status> {
        let mut client = self.client.clone();
        let answer = within("GetLog", client.get_log(GetLogRequest::default())).await?;
        Ok(answer.into_inner().log.expect("a log"))
    }

    /// What became of a key.
    pub async fn receipt(&self, key: &str) -> GetReceiptResponse {
        let request = GetReceiptRequest { key: key.into(), ..Default::default() };
        let answer = self.client.clone().get_receipt(request).await;
        answer.expect("GetReceipt").into_inner()
    }

    /// Opens a Replay.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn replay(&self, request: ReplayRequest) -> Result<Frames, Status> {
        open_replay(&self.client, request).await
    }

    /// Everything retained.
    pub async fn everything(&self) -> Vec<Event> {
        let request = ReplayRequest {
            start: Some(Start::StartAt(StartAt::Oldest.into())),
            ..Default::default()
        };
        let mut frames = self.replay(request).await.expect("a look at the log");
        frames.rest().await.expect("the look ends OK")
    }

    /// Everything accepted, of a log that was never truncated.
    pub async fn accepted(&self) -> Vec<Accepted> {
        self.everything().await.iter().map(Accepted::from).collect()
    }

    /// Acknowledges for a receiver that does not report.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn ack(
        &self,
        receiver: &str,
        session: i64,
        cursor: &Cursor,
    ) -> Result<AckResponse, Status> {
        let request = AckRequest {
            receiver: receiver.into(),
            session,
            cursor: Some(cursor.clone()),
            ..Default::default()
        };
        self.asks_ack(request).await
    }

    /// Acknowledges for a receiver, and reports all up to the cursor.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn reports(
        &self,
        receiver: &str,
        session: i64,
        cursor: &Cursor,
        outcomes: Vec<AckOutcome>,
    ) -> Result<AckResponse, Status> {
        let request = AckRequest {
            receiver: receiver.into(),
            session,
            cursor: Some(cursor.clone()),
            outcomes,
            reported_sequence: cursor.sequence,
            ..Default::default()
        };
        self.asks_ack(request).await
    }

    /// Sends an Ack as it is.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn asks_ack(&self, request: AckRequest) -> Result<AckResponse, Status> {
        Ok(within("Ack", self.client.clone().ack(request)).await?.into_inner())
    }

    /// What receivers are known to have done with a key, by name.
    pub async fn outcomes(&self, key: &str) -> Vec<(String, Outcome)> {
        let outcomes = self.receipt(key).await.outcomes;
        outcomes.into_iter().map(|told| (told.receiver.clone(), told.outcome())).collect()
    }

    /// Checks that it tells of each key what stands in a receiver's ledger, once it
    /// has been told of the last.
    ///
    /// # Panics
    /// At the first of which it tells otherwise.
    pub async fn tells_what_was_done(&self, receiver: &str, ledger: &Ledger) {
        if let Some(last) = ledger.rows.last() {
            wait_until("the last outcome is known", async || {
                (!self.outcomes(&last.key).await.is_empty()).then_some(())
            })
            .await;
        }
        for row in &ledger.rows {
            let told = self.receipt(&row.key).await.outcomes;
            let told: Vec<_> = told
                .iter()
                .map(|told| (&*told.receiver, told.outcome().as_str_name(), &*told.reason))
                .collect();
            let word = format!("OUTCOME_{}", row.outcome);
            let done = (receiver, &*word, row.reason.as_deref().unwrap_or_default());
            assert_eq!(told, [done], "sequence {}", row.sequence);
        }
    }

    /// What it has noted of a receiver.
    pub async fn acked(&self, receiver: &str) -> Option<Cursor> {
        let log = self.try_log().await.ok()?;
        log.receivers.into_iter().find(|known| known.name == receiver)?.acked
    }

    /// Opens a Replay under a receiver's name, after a cursor or at the beginning.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn follows(&self, receiver: &str, after: Option<&Cursor>) -> Result<Frames, Status> {
        let start = after.cloned().map(Start::After);
        let receiver = receiver.into();
        self.replay(ReplayRequest { receiver, start, follow: true, ..Default::default() }).await
    }

    /// What it shows of a receiver.
    pub async fn shows(&self, receiver: &str) -> Option<ReceiverPosition> {
        self.log().await.receivers.into_iter().find(|known| known.name == receiver)
    }

    /// Waits until it does not count a receiver as connected.
    pub async fn loses(&self, receiver: &str) {
        wait_until(&format!("{receiver} is not connected"), async || {
            (!self.shows(receiver).await?.connected).then_some(())
        })
        .await;
    }

    /// Waits until a receiver has acknowledged up to a sequence.
    pub async fn waits_for_ack(&self, receiver: &str, sequence: i64) {
        wait_until(&format!("{receiver} has acknowledged {sequence}"), async || {
            let acked = self.acked(receiver).await?;
            (acked.sequence >= Some(sequence)).then_some(())
        })
        .await;
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let address = self.address;
            let answer =
                ask(async move { client(address).get_log(GetLogRequest::default()).await });
            println!("--- GetLog says: {answer}");
        }
    }
}

/// Publishes to a log, all or none.
///
/// # Errors
/// The publisher's, or the transport's.
pub async fn publish(
    client: &Client,
    log: &str,
    events: Vec<NewEvent>,
) -> Result<Vec<Receipt>, Status> {
    let request = PublishRequest { log: log.into(), events };
    let answer = within("Publish", client.clone().publish(request)).await?;
    Ok(answer.into_inner().receipts)
}

/// Opens a Replay.
///
/// # Errors
/// The publisher's.
pub async fn open_replay(client: &Client, request: ReplayRequest) -> Result<Frames, Status> {
    let stream = within("the opening of a Replay", client.clone().replay(request)).await?;
    Frames::new(stream.into_inner()).await
}

/// A question on a runtime of its own, for use while a test fails.
pub fn ask<T: std::fmt::Debug>(
    question: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> String {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            match tokio::time::timeout(std::time::Duration::from_secs(2), question).await {
                Ok(Ok(answer)) => format!("{answer:?}"),
                Ok(Err(status)) => format!("{status}"),
                Err(_) => "nothing within 2 s".to_owned(),
            }
        })
    });
    thread.join().unwrap_or_else(|_| "nothing: the question failed".to_owned())
}
