//! A receiver process, what a client asks it, and its database file.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use counterfoil::proto::pb::{
    ApplySkippedRequest, ApplySkippedResponse, CreateSnapshotRequest, GetLedgerEntryRequest,
    GetStatusRequest, GetStatusResponse, LedgerEntry, QueryRequest, QueryResponse, ReceiverState,
    ResyncRequest, SkipEventRequest, SkipFollowUpRequest, Snapshot, WaitAppliedRequest,
    get_ledger_entry_request::By, receiver_admin_service_client::ReceiverAdminServiceClient,
    receiver_service_client::ReceiverServiceClient,
};
use tonic::{Request, Status, transport::Channel};

use super::{
    ledger::Ledger,
    loopback,
    process::{Ended, Launch, Process, dies_at},
    publisher::{ask, channel},
    wait::{DEADLINE, wait_until, within},
};

/// The client that cargo generated for us.
pub type Client = ReceiverServiceClient<Channel>;

/// How a receiver is started.
#[derive(Clone)]
pub struct Setup {
    db: PathBuf,
    publisher: String,
    name: String,
    listen: String,
    args: Vec<String>,
    env: Vec<(String, OsString)>,
    wrapper: Vec<OsString>,
}

impl Setup {
    /// Where its database is.
    pub fn db(&self) -> &Path {
        &self.db
    }

    /// Another receiver beside the first: its own name, its own database.
    pub fn named(mut self, name: &str) -> Self {
        self.db.set_file_name(format!("{name}.db"));
        self.name = name.into();
        self
    }

    /// Follows another publisher.
    pub fn publisher(mut self, url: &str) -> Self {
        self.publisher = url.into();
        self
    }

    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// With the projection of this file.
    pub fn projection(self, file: impl AsRef<Path>) -> Self {
        let file = file.as_ref().to_str().expect("paths of tests are text");
        self.arg("--projection").arg(file)
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// On a port of its own, beside one that has the same.
    pub fn listen_anywhere(self) -> Self {
        Setup { listen: SocketAddr::new(loopback::address(), 0).to_string(), ..self }
    }

    /// Dies at a crash point after so many passes.
    pub fn dies_at(self, point: &str, after: u32) -> Self {
        self.env("FAILPOINTS", dies_at(point, after))
    }

    pub fn wrapped(mut self, wrapper: Vec<OsString>) -> Self {
        self.wrapper = wrapper;
        self
    }

    /// The same without crash points and wrapper.
    pub fn sound(self) -> Self {
        Setup { env: Vec::new(), wrapper: Vec::new(), ..self }
    }

    fn launch(&self) -> Launch {
        let launch = Launch::new(env!("CARGO_BIN_EXE_receiver"))
            .args(["--listen", &self.listen, "--publisher", &self.publisher, "--name", &self.name])
            .arg("--db")
            .arg(&self.db)
            .args(&self.args)
            .wrapped(&self.wrapper);
        self.env.iter().fold(launch, |launch, (name, value)| launch.env(name, value.clone()))
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start(self) -> Receiver {
        self.try_start().unwrap_or_else(|ended| panic!("the receiver did not start: {ended:?}"))
    }

    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// How it ended instead.
    pub fn try_start(self) -> Result<Receiver, Ended> {
        let (process, address) = self.launch().try_start()?;
        let setup = Setup { listen: address.to_string(), ..self };
        let client = ReceiverServiceClient::new(channel(address));
        Ok(Receiver { process, address, client, setup })
    }

    /// Runs it to its death at a crash point, which may come before it listens.
    ///
    /// # Panics
    /// If it ends otherwise.
    pub fn dies(self) -> Ended {
        let ended = match self.try_start() {
            Ok(mut receiver) => receiver.process.ended(),
            Err(ended) => ended,
        };
        assert!(ended.by_signal(), "{ended:?}");
        ended
    }

    /// Runs it to its end: for starts that have to be refused.
    ///
    /// # Panics
    /// If it listens instead.
    pub fn refuses(self) -> Ended {
        match self.try_start() {
            Ok(_) => panic!("the receiver has started, it should have refused"),
            Err(ended) => ended,
        }
    }
}

/// A running receiver.
pub struct Receiver {
    pub process: Process,
    pub address: SocketAddr,
    pub client: Client,
    setup: Setup,
}

impl Receiver {
    /// How one with its database in this directory is started; `publisher` is a URL.
    pub fn at(dir: &Path, publisher: &str) -> Setup {
        Setup {
            db: dir.join("receiver.db"),
            publisher: publisher.into(),
            name: "receiver".into(),
            listen: SocketAddr::new(loopback::address(), 0).to_string(),
            args: Vec::new(),
            env: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    /// Starts one with embedded defaults.
    pub fn start(dir: &Path, publisher: &str) -> Receiver {
        Self::at(dir, publisher).start()
    }

    /// Runs `receiver check` on a projection file.
    pub fn check(file: &Path) -> Ended {
        Launch::new(env!("CARGO_BIN_EXE_receiver")).arg("check").arg(file).run()
    }

    /// Runs `receiver recover` over the database in this directory.
    pub fn recover(dir: &Path) -> Ended {
        Launch::new(env!("CARGO_BIN_EXE_receiver"))
            .args(["recover", "--db"])
            .arg(dir.join("receiver.db"))
            .run()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn db(&self) -> &Path {
        &self.setup.db
    }

    /// What its database says now.
    pub fn ledger(&self) -> Ledger {
        Ledger::read(&self.setup.db)
    }

    /// How its successor on the same file is started.
    pub fn successor(&self) -> Setup {
        self.setup.clone().sound()
    }

    /// Starts it again on the same file, without crash points or wrapper.
    pub fn restart(self) -> Receiver {
        let setup = self.successor();
        drop(self);
        setup.start()
    }

    /// SIGTERM, and its end.
    pub fn terminate(mut self) -> Ended {
        self.process.tell_to_end();
        self.process.ended()
    }

    /// GetStatus.
    pub async fn status(&self) -> GetStatusResponse {
        self.try_status().await.expect("GetStatus")
    }

    /// The same, while the receiver may be down.
    ///
    /// # Errors
    /// The receiver's, or the transport's.
    pub async fn try_status(&self) -> Result<GetStatusResponse, Status> {
        let mut client = self.client.clone();
        let answer = within("GetStatus", client.get_status(GetStatusRequest::default())).await?;
        Ok(answer.into_inner())
    }

    /// Waits until it says that it is in a state, and gives the status.
    pub async fn waits_for_state(&self, state: ReceiverState) -> GetStatusResponse {
        wait_until(&format!("the receiver says {state:?}"), async || {
            let status = self.try_status().await.ok()?;
            (status.state() == state).then_some(status)
        })
        .await
    }

    /// Waits until it has committed up to a sequence.
    pub async fn applies(&self, sequence: i64) {
        let mut request = Request::new(WaitAppliedRequest { sequence });
        request.set_timeout(DEADLINE);
        let answer = self.client.clone().wait_applied(request).await;
        let cursor = answer.expect("WaitApplied").into_inner().cursor.expect("a cursor");
        assert!(cursor.sequence >= Some(sequence), "waited for {sequence}, got {cursor:?}");
    }

    /// Has it make a snapshot and upload it.
    ///
    /// # Errors
    /// The receiver's, or the publisher's.
    pub async fn snapshot(&self) -> Result<Snapshot, Status> {
        let mut client = ReceiverAdminServiceClient::new(channel(self.address));
        let made = within("CreateSnapshot", client.create_snapshot(CreateSnapshotRequest {}));
        Ok(made.await?.into_inner().snapshot.expect("a snapshot"))
    }

    /// Has it set aside the event that it cannot apply.
    ///
    /// # Errors
    /// The receiver's.
    pub async fn skip(&self, sequence: i64, reason: &str) -> Result<LedgerEntry, Status> {
        let mut client = ReceiverAdminServiceClient::new(channel(self.address));
        let request = SkipEventRequest { sequence: Some(sequence), reason: reason.into() };
        let skipped = within("SkipEvent", client.skip_event(request)).await?;
        Ok(skipped.into_inner().entry.expect("a row"))
    }

    /// Has it apply an event that was set aside.
    ///
    /// # Errors
    /// The receiver's.
    pub async fn apply_skipped(&self, sequence: i64) -> Result<ApplySkippedResponse, Status> {
        let mut client = ReceiverAdminServiceClient::new(channel(self.address));
        let request = ApplySkippedRequest { sequence: Some(sequence) };
        Ok(within("ApplySkipped", client.apply_skipped(request)).await?.into_inner())
    }

    /// Orders it to give up what its database has.
    ///
    /// # Errors
    /// The receiver's.
    pub async fn resync(&self, confirm: &str) -> Result<(), Status> {
        let mut client = ReceiverAdminServiceClient::new(channel(self.address));
        let request = ResyncRequest { confirm: confirm.into() };
        within("Resync", client.resync(request)).await?;
        Ok(())
    }

    /// Orders it not to forward a follow-up event.
    ///
    /// # Errors
    /// The receiver's.
    pub async fn skip_follow_up(
        &self,
        sequence: i64,
        number: i64,
        reason: &str,
    ) -> Result<(), Status> {
        let mut client = ReceiverAdminServiceClient::new(channel(self.address));
        let (sequence, number) = (Some(sequence), Some(number));
        let request = SkipFollowUpRequest { sequence, number, reason: reason.into() };
        within("SkipFollowUp", client.skip_follow_up(request)).await?;
        Ok(())
    }

    /// What it has done with a sequence.
    ///
    /// # Errors
    /// The receiver's.
    pub async fn entry(&self, by: By) -> Result<LedgerEntry, Status> {
        let request = GetLedgerEntryRequest { by: Some(by) };
        let answer = self.client.clone().get_ledger_entry(request).await?;
        Ok(answer.into_inner().entry.expect("an entry"))
    }

    /// A declared query without parameters.
    ///
    /// # Errors
    /// The receiver's.
    pub async fn query(&self, name: &str) -> Result<QueryResponse, Status> {
        let request = QueryRequest { name: name.into(), ..Default::default() };
        Ok(self.client.clone().query(request).await?.into_inner())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let address = self.address;
            let answer = ask(async move {
                let mut client = ReceiverServiceClient::new(channel(address));
                client.get_status(GetStatusRequest::default()).await
            });
            println!("--- GetStatus says: {answer}");
            println!("--- its database: {}", Ledger::facts(&self.setup.db));
        }
    }
}
