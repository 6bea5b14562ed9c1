//! A child process: started, watched, killed, restarted. Knows nothing of events.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::wait::DEADLINE;

/// Lines of a process's output that are kept for a failure's explanation.
const KEPT_LINES: usize = 400;

/// How a process is started.
#[derive(Debug, Clone)]
pub struct Launch {
    program: PathBuf,
    wrapper: Vec<OsString>,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
}

impl Launch {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Launch { program: program.into(), wrapper: Vec::new(), args: Vec::new(), env: Vec::new() }
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Put before the program, such as `strace -D -o FILE`. Has to leave the
    /// program as the direct child.
    pub fn wrapped(mut self, wrapper: &[OsString]) -> Self {
        self.wrapper = wrapper.to_vec();
        self
    }

    fn command(&self) -> Command {
        let mut words = self.wrapper.iter().cloned().chain([self.program.clone().into()]);
        let mut command = Command::new(words.next().expect("the program at least"));
        command.args(words).args(&self.args).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if name_text.starts_with("COUNTERFOIL_") || name_text == "FAILPOINTS" {
                command.env_remove(name);
            }
        }
        command.env("NO_COLOR", "1").env("RUST_BACKTRACE", "0").envs(self.env.iter().cloned());
        command
    }

    /// Starts a server and waits for its `listening on ADDR`, or for its end.
    ///
    /// # Errors
    /// How it ended, if it did so without listening.
    pub fn try_start(&self) -> Result<(Process, SocketAddr), Ended> {
        let (mut process, lines) = Process::spawn(self);
        let start = Instant::now();
        loop {
            match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix("listening on ") {
                        let address =
                            address.trim().parse().expect("an address after `listening on`");
                        return Ok((process, address));
                    }
                }
                // Standard output has ended: so does the process.
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(process.ended()),
                Err(mpsc::RecvTimeoutError::Timeout) => assert!(
                    start.elapsed() < DEADLINE,
                    "{} neither listens nor ends:\n{}",
                    self.program.display(),
                    process.said()
                ),
            }
        }
    }

    /// Runs a program to its end.
    pub fn run(&self) -> Ended {
        Process::spawn(self).0.ended()
    }

    /// Runs a program to its end with something to read.
    pub fn run_with_input(&self, input: &str) -> Ended {
        let path = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(path.path(), input).expect("a temporary file can be written");
        let mut command = self.command();
        command.stdin(std::fs::File::open(path.path()).expect("just written"));
        Process::spawn_command(command, self).0.ended()
    }
}

/// `FAILPOINTS` for a process that dies at a crash point after so many passes.
pub fn dies_at(point: &str, after: u32) -> String {
    match after {
        0 => format!("{point}=return"),
        _ => format!("{point}={after}*off->return"),
    }
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The exit code, if no signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Whether a signal ended it (abort and kill do).
    pub fn by_signal(&self) -> bool {
        self.status.signal().is_some()
    }
}

type Ring = Arc<Mutex<VecDeque<String>>>;

/// A running child. Dropped, it is killed; dropped by a failing test, it first
/// says what it has said last.
pub struct Process {
    name: String,
    child: Child,
    stderr: Ring,
    stdout: Ring,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    fn spawn(launch: &Launch) -> (Process, mpsc::Receiver<String>) {
        Self::spawn_command(launch.command(), launch)
    }

    fn spawn_command(mut command: Command, launch: &Launch) -> (Process, mpsc::Receiver<String>) {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {launch:?}: {error}"));
        let (stdout, stderr) = (Ring::default(), Ring::default());
        let (to_lines, lines) = mpsc::channel();
        let out = child.stdout.take().expect("piped");
        let err = child.stderr.take().expect("piped");
        let readers =
            vec![keep(out, stdout.clone(), Some(to_lines)), keep(err, stderr.clone(), None)];
        let name = launch.program.file_name().map_or_else(String::new, |name| {
            format!("{} (pid {})", name.to_string_lossy(), child.id())
        });
        (Process { name, child, stderr, stdout, readers }, lines)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Nobody else waits for the child, so its id is its own until we have.
    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it in its tracks, as a machine that hangs.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGTERM and does not wait.
    pub fn tell_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end by the deadline.
    pub fn ended(&mut self) -> Ended {
        let status = self.wait_for_end();
        let text = |ring: &Ring| {
            let lines = ring.lock().expect("no reader panics");
            lines.iter().map(|line| format!("{line}\n")).collect()
        };
        Ended { status, stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }

    /// Waits for its end by itself, such as at a crash point.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                break status;
            }
            assert!(start.elapsed() < DEADLINE, "{} does not end:\n{}", self.name, self.said());
            std::thread::sleep(Duration::from_millis(10));
        };
        // What it said last has been read, too.
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        status
    }

    /// What it has said last on standard error.
    pub fn said(&self) -> String {
        let lines = self.stderr.lock().expect("no reader panics");
        lines.iter().map(|line| format!("  {line}\n")).collect()
    }

    /// Open file descriptors now.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    /// Resident memory now, in KiB.
    pub fn memory_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// The most resident memory that it ever had, in KiB.
    pub fn peak_memory_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        status
            .unwrap_or_default()
            .lines()
            .find_map(|line| {
                line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse().ok()
            })
            .unwrap_or(0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = match self.child.try_wait() {
                Ok(Some(status)) => format!("ended: {status}"),
                _ => "running".to_owned(),
            };
            println!("--- {}, {state}; last lines of its log:\n{}", self.name, self.said());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps the last lines that come out of a pipe.
fn keep(
    pipe: impl Read + Send + 'static,
    ring: Ring,
    each: Option<mpsc::Sender<String>>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while matches!(pipe.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            bytes.clear();
            if let Some(each) = &each {
                let _ = each.send(line.clone());
            }
            let mut lines = ring.lock().expect("no reader panics");
            // Output that a test reads is kept whole; a log only in its last lines.
            if each.is_none() && lines.len() == KEPT_LINES {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    })
}
