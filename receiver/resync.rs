//! Going on from other content: what comes next is no longer retained, or a person has
//! given up what this database has. One attempt after the other, each later than the one
//! before, until one of them, or a Replay between them, comes through.

mod kept;
mod order;

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use super::{
    apply::{Install, STORE_CHANGED, STORE_FAILED, Work},
    choose::{self, Listed, Standing, Wanted, standing},
    current::Current,
    download::{self, Broken},
    replay::{Left, Replay},
    retry,
    source::{Extent, Source},
    status::{Board, Failure, Link, Resyncing},
    store::{
        Kind,
        descent::Descent,
        staged::{self, Unfit},
    },
};
use crate::proto::{backoff::backoff, chain::Cursor, crash, event::Sequence, limits::RESYNC_BASE};

pub use kept::sweep;
pub use order::{Meant, Order};

const ASKING: &str = "Asking the publisher for a snapshot.";

/// What going on from other content takes.
pub struct Resync {
    /// Where the publisher is: how to connect is set already.
    pub publisher: Endpoint,
    /// The database.
    pub db: PathBuf,
    /// What has to fit.
    pub current: Current,
    /// Only on order.
    pub asks: bool,
    /// Where the state is written to.
    pub board: Arc<Board>,
    /// The apply thread.
    pub work: mpsc::Sender<Work>,
    /// From people.
    pub orders: mpsc::Receiver<Order>,
    /// Told to end.
    pub ending: CancellationToken,
    /// What is remembered from one attempt to the next.
    pub memory: Memory,
}

/// What is remembered from one attempt to the next.
#[derive(Debug, Default)]
pub struct Memory {
    /// An order holds until it is carried out, or not needed any more.
    ordered: bool,
    /// It was given after a halt, which stands until it is carried out.
    halted: bool,
    /// What is given up by it has been copied.
    kept: bool,
    /// Why a person has to say that what the database has may be given up.
    unproven: Option<String>,
    /// Snapshots that turned out to be wrong.
    refused: Vec<[u8; 32]>,
    /// What was wrong with the last of them.
    wrong: String,
    /// What was logged last: the same is not logged again at each attempt.
    logged: String,
}

/// Why an attempt has come to nothing.
enum Stuck {
    /// Another one may do better.
    Again(String),
    /// What the database has is of another history.
    Diverged(String),
    /// What the database has may be of another history.
    Unproven(String),
}

impl From<String> for Stuck {
    fn from(why: String) -> Self {
        Stuck::Again(why)
    }
}

/// Follows the log until the receiver ends: by Replay, and where that cannot go on, from
/// other content.
pub async fn follow(replay: Replay, mut resync: Resync) {
    let mut session = None;
    loop {
        let left = tokio::select! {
            left = replay.keep(&mut session) => left,
            never = resync.tidy() => match never {},
        };
        match left {
            Left::Over => return,
            Left::Expired(failure) => resync.behind(failure).await,
            Left::Halted => {
                let board = resync.board.clone();
                let failure = board.status().borrow().halted.clone().unwrap_or_default();
                let ordered = tokio::select! {
                    ordered = resync.order(&failure, None) => ordered,
                    () = board.goes_on() => {
                        // The event that it had halted on was set aside.
                        replay.end_session();
                        continue;
                    }
                };
                if !ordered {
                    return;
                }
                // What is acknowledged now would be of what is given up.
                replay.end_session();
                resync.replace(failure).await;
            }
        }
    }
}

impl Resync {
    /// Takes away what earlier attempts have left, once a Replay is open.
    async fn tidy(&mut self) -> Infallible {
        let mut status = self.board.status();
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = status.wait_for(|status| matches!(status.link, Link::Up(_))).await;
        self.forget_order();
        download::sweep(&self.db, None);
        std::future::pending().await
    }

    fn forget_order(&mut self) {
        let Memory { ordered, halted, kept, unproven, .. } = &mut self.memory;
        (*ordered, *halted, *kept, *unproven) = (false, false, false, None);
    }

    /// What comes next is no longer retained: one attempt, after a while if it is not the
    /// first since the head was reached. Then Replay has the say again.
    async fn behind(&mut self, failure: Failure) {
        if (self.asks || self.memory.unproven.is_some()) && !self.memory.ordered {
            let why = self.memory.unproven.clone().unwrap_or_default();
            let step = format!(
                "{why}To give up what the database lacks and go on from the publisher's newest \
                 snapshot: `counterfoil resync --receiver URL --confirm NAME`."
            );
            if !self.order(&failure, Some(&step)).await {
                return;
            }
            self.memory.ordered = true;
        }
        let attempts = self.board.status().borrow().resync_attempts;
        self.board.note(|status| status.resync_attempts = attempts.saturating_add(1));
        if attempts > 0 && !self.pause(attempts).await {
            return;
        }
        self.say(&failure, ASKING, false);
        match self.attempt(&failure, false).await {
            Ok(()) => self.done(),
            Err(Stuck::Again(why)) => {
                let step = format!("Not resynced yet: {why}. Trying again by itself.");
                self.say(&failure, &step, false);
            }
            Err(Stuck::Unproven(why)) => {
                self.memory.unproven = Some(format!("Not resynced by itself: {why}. "));
            }
            Err(Stuck::Diverged(message)) => {
                self.board.halt(Failure { reason: "DIVERGED", message, ..Failure::default() });
            }
        }
    }

    /// Replaces what the database has, as ordered after a halt: attempt after attempt.
    async fn replace(&mut self, failure: Failure) {
        self.memory.halted = true;
        for attempt in 1.. {
            match self.attempt(&failure, true).await {
                Ok(()) => return self.done(),
                Err(_) if self.over() => break,
                Err(Stuck::Again(why) | Stuck::Unproven(why) | Stuck::Diverged(why)) => {
                    let step = format!("Not replaced yet: {why}. Trying again by itself.");
                    self.say(&failure, &step, false);
                }
            }
            if !self.pause(attempt).await {
                break;
            }
        }
        self.forget_order();
    }

    fn done(&mut self) {
        self.forget_order();
        self.board.note(|status| status.resyncing = None);
    }

    /// Told to end, or the database is in a state that no content mends.
    fn over(&self) -> bool {
        let halted = self.board.halted_for();
        self.ending.is_cancelled() || halted == Some(STORE_FAILED) || halted == Some(STORE_CHANGED)
    }

    /// Shows what is done, or waited for; a halt is not hidden by it, unless it is the one
    /// that was ordered to end.
    fn say(&mut self, failure: &Failure, step: &str, waits: bool) {
        if self.over() || (self.board.halted_for().is_some() && !self.memory.halted) {
            return;
        }
        if step != ASKING && step != self.memory.logged {
            tracing::info!(reason = failure.reason, "{} {step}", failure.message);
            step.clone_into(&mut self.memory.logged);
        }
        let (failure, step) = (failure.clone(), step.to_owned());
        self.board.resyncing(Resyncing { failure, step, waits });
    }

    /// Waits before another attempt; `false`: told to end.
    async fn pause(&self, attempts: u32) -> bool {
        // Never at once: what was missing has to come from somewhere first.
        let random = 0.5 + 0.5 * rand::random::<f64>();
        tokio::select! {
            () = sleep(backoff(attempts, 2 * RESYNC_BASE, random)) => true,
            () = self.ending.cancelled() => false,
        }
    }

    /// One attempt. `ordered`: also by what is older or of another history, and by an empty
    /// database where the log still starts at 0.
    ///
    /// # Errors
    /// Why not, in words.
    async fn attempt(&mut self, failure: &Failure, ordered: bool) -> Result<(), Stuck> {
        let ending = self.ending.clone();
        tokio::select! {
            done = self.try_attempt(failure, ordered) => done,
            () = ending.cancelled() => Err("the receiver is ending".to_owned().into()),
        }
    }

    async fn try_attempt(&mut self, failure: &Failure, ordered: bool) -> Result<(), Stuck> {
        let said = |status: tonic::Status| format!("the publisher said: {}", retry::said(&status));
        let kind = self.current.kind();
        let source = Source::connect(&self.publisher, &kind.log).await.map_err(said)?;
        let extent = source.extent().await.map_err(said)?;
        let listed = source.list(&kind.projection).await.map_err(said)?;
        let ours = self.board.status().borrow().cursor;
        let wanted = Wanted {
            projection: &kind.projection,
            projection_version: kind.projection_version,
            schema_digest: &kind.digest,
            refused: &self.memory.refused,
        };
        let newest = choose::newest(&listed, &wanted, &extent.lineage).cloned();
        let sequence = newest.as_ref().map_or(-1, |newest| newest.cursor.sequence);
        self.board.note(|status| status.snapshot_sequence = Some(sequence));
        let Some(snapshot) = newest else {
            if ordered && extent.floor == 0 {
                return Ok(self.install(None, None, ours, ordered).await?);
            }
            return Err(self.none(&extent, listed.len()).into());
        };
        if !ordered {
            let kin = ours.is_none_or(|ours| choose::is_kin(&ours, &extent.lineage));
            let useless = match standing(ours.as_ref(), Some(&snapshot.cursor)) {
                Standing::Further if kin => None,
                Standing::Same => Some("is what this database has already"),
                _ => Some("is older than what is applied here, or of another history"),
            };
            if let Some(why) = useless {
                return Err(Stuck::Again(format!(
                    "the publisher's newest snapshot, at sequence {sequence}, {why}; another \
                     receiver of this projection has to make one that is further on \
                     (`counterfoil snapshot --receiver URL`)"
                )));
            }
        }
        let file = self.fetch(&source, &snapshot, failure).await?;
        if let Some(ours) = ours
            && !ordered
        {
            self.prove(&file, ours, sequence).await?;
        }
        Ok(self.install(Some(file), Some(snapshot.cursor), ours, ordered).await?)
    }

    /// Whether a file goes on from what the database has. A log that was put back to an
    /// older copy has the same name, and other events behind it.
    async fn prove(&mut self, file: &Path, ours: Cursor, brings: Sequence) -> Result<(), Stuck> {
        let (staged, log) = (file.to_owned(), self.current.kind().log.clone());
        let found = tokio::task::spawn_blocking(move || staged::descent(&staged, &log, &ours))
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("the snapshot cannot be read: {error}"))?;
        let at = ours.sequence;
        match found {
            Descent::Same => Ok(()),
            Descent::Unknown(_) if self.memory.ordered => {
                // What is given up may be all that is left of it.
                Ok(self.keep().await?)
            }
            Descent::Unknown(from) => {
                download::sweep(&self.db, None);
                Err(Stuck::Unproven(format!(
                    "the ledger of the snapshot at sequence {brings} begins at {from}, so it does \
                     not show whether its history is that of this database up to {at}; it is \
                     another one if the publisher was put back to an older copy"
                )))
            }
            Descent::Other => {
                download::sweep(&self.db, None);
                Err(Stuck::Diverged(format!(
                    "The publisher's history is another one at sequence {at}, as its snapshot at \
                     sequence {brings} shows; nothing was replaced."
                )))
            }
        }
    }

    /// Gets a snapshot into a file beside the database, and looks at it.
    async fn fetch(
        &mut self,
        source: &Source,
        snapshot: &Listed,
        failure: &Failure,
    ) -> Result<PathBuf, String> {
        let Listed { cursor, size, .. } = snapshot;
        let sequence = cursor.sequence;
        let step = format!("Getting the snapshot at sequence {sequence}, {size} bytes.");
        self.say(failure, &step, false);
        let file = download::staged(&self.db, snapshot);
        download::sweep(&self.db, Some(&file));
        download::fetch(source, snapshot, &file).await.map_err(|broken| match broken {
            Broken::Disk(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                "there is no room for the snapshot beside the database".to_owned()
            }
            broken => broken.to_string(),
        })?;
        self.say(failure, &format!("Installing the snapshot at sequence {sequence}."), false);
        let (kind, checked, cursor) = (self.current.kind(), file.clone(), *cursor);
        let fit =
            tokio::task::spawn_blocking(move || staged::check(&checked, &kind, Some(&cursor)))
                .await
                .map_err(|error| error.to_string())?;
        if let Err(wrong) = fit {
            let said = format!("the snapshot at sequence {sequence} is not fit: {wrong}");
            // What could not be read is looked at again, and not asked for again.
            if matches!(wrong, Unfit::Content(_)) {
                tracing::error!(file = %file.display(), "{said}");
                self.memory.refused.push(snapshot.sha256);
                self.memory.wrong.clone_from(&said);
                download::sweep(&self.db, None);
            }
            return Err(said);
        }
        crash::point(crash::RECEIVER_RESYNC_CHECKED);
        Ok(file)
    }

    /// Copies what is given up, once for an order.
    async fn keep(&mut self) -> Result<(), String> {
        let has_something = self.board.status().borrow().cursor.is_some();
        if self.memory.kept || !has_something {
            return Ok(());
        }
        let db = self.db.clone();
        let kept = tokio::task::spawn_blocking(move || kept::keep(&db))
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("what the database has cannot be kept: {error}"))?;
        tracing::warn!("what the database had is kept as {}", kept.display());
        self.memory.kept = true;
        Ok(())
    }

    /// Hands it to the apply thread. What is given up by order is copied first. `over`: what
    /// the database had when this was found to be fit.
    async fn install(
        &mut self,
        staged: Option<PathBuf>,
        brings: Option<Cursor>,
        over: Option<Cursor>,
        ordered: bool,
    ) -> Result<(), String> {
        let gone = || "the receiver is ending".to_owned();
        if ordered {
            self.keep().await?;
        }
        let (asked, answer) = oneshot::channel();
        let install = Install { staged, brings, over, ordered };
        self.work.send(Work::Install(install, asked)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())??;
        let sequence = brings.map_or(-1, |cursor| cursor.sequence);
        tracing::info!(sequence, "installed; going on from there");
        download::sweep(&self.db, None);
        Ok(())
    }

    /// There is nothing to go on from.
    fn none(&self, extent: &Extent, listed: usize) -> String {
        let kind = self.current.kind();
        let Kind { projection, projection_version, .. } = &*kind;
        let others = match listed {
            0 => String::new(),
            n => format!(" (of {n} that it lists, none fits this version and log)"),
        };
        let wrong = match &*self.memory.wrong {
            "" => String::new(),
            wrong => format!("; {wrong}"),
        };
        format!(
            "the publisher has no snapshot of projection {projection} version \
             {projection_version} to go on from{others}, and retains only what comes from \
             sequence {} on; another receiver of this projection has to make one (`counterfoil \
             snapshot --receiver URL`), or this one has to start on a copy of its database{wrong}",
            extent.floor
        )
    }
}
