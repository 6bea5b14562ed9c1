//! The two services as child processes in a directory of their own. Whatever
//! way the command ends, none of it is left behind.

use std::{
    env, fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use crate::failure::Failure;

/// The receiver's name at the publisher.
pub const RECEIVER_NAME: &str = "demo";
/// Longest time from the start of a service to its line `listening on …`.
const START: Duration = Duration::from_secs(30);
/// Longest time from SIGTERM to the end of a service.
const STOP: Duration = Duration::from_secs(10);
/// How the crash points of builds with feature `failpoints` end a process.
const SIGABRT: i32 = 6;

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Holds the log.
    Publisher,
    /// Applies the events.
    Receiver,
    /// Stands in for a part of the two, with nothing behind it: this program itself.
    StandIn,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Service::Publisher => "publisher",
            Service::Receiver => "receiver",
            Service::StandIn => "stand-in",
        }
    }
}

struct Running {
    child: Child,
    address: String,
}

/// The services that run now, and their directory.
pub struct Pair {
    directory: PathBuf,
    publisher: Option<Running>,
    receiver: Option<Running>,
    /// Measures by itself, and says at its end what.
    measuring: Option<Child>,
}

impl Pair {
    /// An empty directory within another one, nothing running.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when the directory cannot be made.
    pub fn new(within: &Path) -> Result<Self, Failure> {
        let directory = within.join(format!("counterfoil-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&directory).map_err(|error| {
            Failure::Runtime(format!("{}: cannot be made: {error}", directory.display()))
        })?;
        Ok(Pair { directory, publisher: None, receiver: None, measuring: None })
    }

    /// Where everything is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts the publisher on a free port and waits until it listens.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when it does not come up.
    pub async fn start_publisher(&mut self) -> Result<(), Failure> {
        self.start_publisher_with(None).await
    }

    /// The same with a configuration file, which is the text given.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when it does not come up.
    pub async fn start_publisher_with(&mut self, settings: Option<&str>) -> Result<(), Failure> {
        let mut command = self.command(Service::Publisher)?;
        command.arg("--data-dir").arg(self.directory.join("log"));
        if let Some(settings) = settings {
            let path = self.directory.join("publisher.toml");
            fs::write(&path, settings)
                .map_err(|error| Failure::Runtime(format!("{}: {error}", path.display())))?;
            command.arg("--config").arg(path);
        }
        self.publisher = Some(start(Service::Publisher, command).await?);
        Ok(())
    }

    /// Starts the receiver likewise, with crash points if any are given.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when it does not come up.
    pub async fn start_receiver(
        &mut self,
        publisher: &str,
        failpoints: Option<&str>,
    ) -> Result<(), Failure> {
        let mut command = self.command(Service::Receiver)?;
        command.args(["--publisher", publisher, "--name", RECEIVER_NAME, "--db"]);
        command.arg(self.directory.join("receiver.db"));
        if let Some(failpoints) = failpoints {
            command.env("FAILPOINTS", failpoints);
        }
        self.receiver = Some(start(Service::Receiver, command).await?);
        Ok(())
    }

    /// Starts a stand-in for the publisher: this program, with these arguments. It is
    /// asked for as the publisher is.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when it does not come up.
    pub async fn start_stand_in(&mut self, arguments: &[&str]) -> Result<(), Failure> {
        let mut command = self.command(Service::StandIn)?;
        command.args(arguments);
        self.publisher = Some(start(Service::StandIn, command).await?);
        Ok(())
    }

    /// Runs this program with these arguments in the directory, and returns what it prints.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when it does not end with exit code 0.
    pub async fn measure(&mut self, arguments: &[&str]) -> Result<String, Failure> {
        let failed = |what: String| Failure::Runtime(format!("{}: {what}", arguments.join(" ")));
        let mut command = self.command(Service::StandIn)?;
        command.args(arguments).current_dir(&self.directory);
        let child = self.measuring.insert(command.spawn().map_err(|e| failed(e.to_string()))?);
        let mut text = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_string(&mut text).await.map_err(|error| failed(error.to_string()))?;
        }
        let ended = child.wait().await.map_err(|error| failed(error.to_string()))?;
        self.measuring = None;
        if ended.success() { Ok(text) } else { Err(failed(ended.to_string())) }
    }

    /// A service that stands beside this program, without anything of our environment that would
    /// configure it, and with its log in a file.
    fn command(&self, service: Service) -> Result<Command, Failure> {
        let name = service.name();
        let wrong = |what: String| Failure::Runtime(what);
        let own = env::current_exe().map_err(|error| wrong(error.to_string()))?;
        let program = match service {
            Service::StandIn => own,
            _ => own.with_file_name(name),
        };
        if !program.is_file() {
            return Err(wrong(format!(
                "{} is missing; build all programs: cargo build --release --bins",
                program.display()
            )));
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log(service))
            .map_err(|error| wrong(format!("{}: {error}", self.log(service).display())))?;
        let mut command = Command::new(program);
        for (variable, _) in env::vars_os() {
            if variable.to_string_lossy().starts_with("COUNTERFOIL_") || variable == "FAILPOINTS" {
                command.env_remove(variable);
            }
        }
        if service != Service::StandIn {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        Ok(command)
    }

    fn log(&self, service: Service) -> PathBuf {
        self.directory.join(format!("{}.log", service.name()))
    }

    /// Where the publisher listens.
    pub fn publisher_url(&self) -> String {
        url(&self.publisher)
    }

    /// The publisher's process, while it runs.
    pub fn publisher_pid(&self) -> Option<u32> {
        self.publisher.as_ref().and_then(|running| running.child.id())
    }

    /// The receiver's process, while it runs.
    pub fn receiver_pid(&self) -> Option<u32> {
        self.receiver.as_ref().and_then(|running| running.child.id())
    }

    /// Where the receiver listens.
    pub fn receiver_url(&self) -> String {
        url(&self.receiver)
    }

    /// Waits until the receiver dies of its crash point, and says how it died.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when it does not, or ends in another way.
    pub async fn receiver_death(&mut self, limit: Duration) -> Result<String, Failure> {
        let ended = wait(Service::Receiver, self.receiver.as_mut(), limit).await?;
        self.receiver = None;
        match ended.signal() {
            Some(SIGABRT) => Ok("after a commit and before its ack (SIGABRT)".to_owned()),
            _ => Err(Failure::Runtime(format!("the receiver ended by itself: {ended}"))),
        }
    }

    /// Tells a service to end, and waits until it has.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when it takes too long, or ends other than with exit code 0.
    pub async fn stop(&mut self, service: Service) -> Result<(), Failure> {
        let running = match service {
            Service::Publisher | Service::StandIn => &mut self.publisher,
            Service::Receiver => &mut self.receiver,
        };
        let pid = running
            .as_ref()
            .and_then(|running| running.child.id())
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM); // it may have ended already
        }
        let ended = wait(service, running.as_mut(), STOP).await?;
        *running = None;
        if ended.success() {
            return Ok(());
        }
        Err(Failure::Runtime(format!("{} ended badly: {ended}", service.name())))
    }

    /// Ends the publisher as a crash would.
    pub async fn kill_publisher(&mut self) {
        if let Some(mut running) = self.publisher.take() {
            let _ = running.child.kill().await; // it may have ended already
        }
    }

    /// Ends whatever still runs, at once.
    pub async fn kill(&mut self) {
        for running in [self.receiver.take(), self.publisher.take()].iter_mut().flatten() {
            let _ = running.child.kill().await; // it may have ended already
        }
        if let Some(mut child) = self.measuring.take() {
            let _ = child.kill().await; // likewise
        }
    }

    /// Shows the last lines that each service has logged.
    pub fn show_logs(&self) {
        for service in [Service::Publisher, Service::Receiver, Service::StandIn] {
            let text = fs::read_to_string(self.log(service)).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            for line in lines.iter().skip(lines.len().saturating_sub(10)) {
                eprintln!("{}: {line}", service.name());
            }
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Waits until this process is told to end, and says how.
pub async fn told_to_end() -> &'static str {
    let of = |kind| signal(kind);
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) =
        (of(SignalKind::interrupt()), of(SignalKind::terminate()), of(SignalKind::hangup()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    }
}

fn url(running: &Option<Running>) -> String {
    // Without a service there is no address, and calls to it fail with a sentence.
    running.as_ref().map_or_else(String::new, |running| format!("http://{}", running.address))
}

async fn start(service: Service, mut command: Command) -> Result<Running, Failure> {
    let name = service.name();
    let failed = |what: String| Failure::Runtime(format!("{name} {what}"));
    let mut child =
        command.spawn().map_err(|error| failed(format!("cannot be started: {error}")))?;
    let stdout = child.stdout.take().ok_or_else(|| failed("has no standard output".to_owned()))?;
    let mut line = String::new();
    let mut output = BufReader::new(stdout);
    let read = tokio::time::timeout(START, output.read_line(&mut line)).await;
    match read {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(failed(format!("cannot be heard: {error}"))),
        Err(_) => return Err(failed(format!("does not listen after {START:?}"))),
    }
    match line.trim().strip_prefix("listening on ") {
        Some(address) => Ok(Running { address: address.to_owned(), child }),
        None => Err(failed("ended before it listened".to_owned())),
    }
}

async fn wait(
    service: Service,
    running: Option<&mut Running>,
    limit: Duration,
) -> Result<ExitStatus, Failure> {
    let name = service.name();
    let running = running.ok_or_else(|| Failure::Runtime(format!("{name} does not run")))?;
    match tokio::time::timeout(limit, running.child.wait()).await {
        Ok(Ok(ended)) => Ok(ended),
        Ok(Err(error)) => Err(Failure::Runtime(format!("{name}: {error}"))),
        Err(_) => Err(Failure::Runtime(format!("{name} has not ended after {limit:?}"))),
    }
}
