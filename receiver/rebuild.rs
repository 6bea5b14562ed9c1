//! A later version of the projection that is not migrated to but rebuilt: a second database
//! beside the live one is filled from a snapshot and the log, while the earlier version goes
//! on applying and answering. Once it has what the live one has, the apply thread puts it in
//! the live one's place, in one step.

mod aside;
mod beside;
mod carry;
mod room;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, transport::Endpoint};

use self::beside::Beside;
use super::{
    apply::{Hold, TakeOver, Work},
    choose::{self, Wanted},
    config::OnError,
    current::Serving,
    download,
    feed::{self, Fed, From},
    projection::Projection,
    projections, retry,
    source::Source,
    status::{Board, Rebuilding},
    store::{Kind, contents::Contents, fit, staged},
};
use crate::proto::{
    backoff::backoff,
    chain::Cursor,
    crash,
    event::Sequence,
    refusal::{Reason, reason_of},
};

pub use beside::sweep;

/// The first delay before another attempt is at most this long.
const RETRY_BASE: Duration = Duration::from_millis(500);
/// Events that the live one is ahead by when it is held for them.
const HOLD_EVENTS: Sequence = 4_096;
/// It is held for whatever is left after so many rounds: under steady load each leaves less
/// than the one before, unless events come faster than they can be applied.
const MOST_ROUNDS: u32 = 32;

/// The version of the projection that has filled a database, out of what is noted there.
///
/// # Errors
/// One sentence: there is no text of it, or this program cannot read it, and what to do.
pub fn earlier(contents: &Contents) -> Result<Arc<dyn Projection>, String> {
    let Contents { name, version, .. } = contents;
    if let Some(source) = &contents.source {
        return projections::of_source(source).map_err(|why| {
            format!(
                "version {version} of projection {name}, which filled it, cannot be read: {why}"
            )
        });
    }
    let same = |known: &Arc<dyn Projection>| {
        let parts = fit::digests(&known.parts());
        known.version() == *version && contents.parts.as_ref().is_none_or(|noted| *noted == parts)
    };
    projections::named(name).filter(same).ok_or_else(|| {
        format!(
            "it does not hold the text of version {version} of projection {name}, which filled \
             it, so that one cannot go on while the new version is rebuilt; start once with the \
             file of version {version}, or start the new version on a new database"
        )
    })
}

/// What rebuilding takes.
pub struct Rebuild {
    /// Where the publisher is: how to connect is set already.
    pub publisher: Endpoint,
    /// The live database.
    pub db: PathBuf,
    /// The version that fills it now.
    pub from_version: i64,
    /// What is to take over.
    pub successor: Serving,
    /// What becomes of an event that the new version cannot apply.
    pub on_error: OnError,
    /// Where the state is written to.
    pub board: Arc<Board>,
    /// The apply thread.
    pub work: mpsc::Sender<Work>,
    /// Told to end.
    pub ending: CancellationToken,
}

/// Why an attempt has come to nothing.
#[derive(Debug)]
pub enum Stuck {
    /// Another one may do better.
    Again(String),
    /// What is there is not to be trusted any more: the next one begins anew.
    Broken(String),
    /// What is there is of another history: the next one begins anew.
    History(String),
    /// An event cannot be applied.
    Event(String),
    /// The disk is full: what is there makes room.
    Full,
    /// The receiver is ending.
    Ending,
}

impl Rebuild {
    /// Rebuilds until the new version has taken over, or the receiver ends.
    pub async fn keep(self) {
        let ending = self.ending.clone();
        tokio::select! {
            () = self.rebuild() => {}
            () = ending.cancelled() => {}
        }
    }

    async fn rebuild(&self) {
        let to = self.successor.projection.version();
        tracing::info!(from = self.from_version, to, "rebuilding beside the database");
        // Shown from the start, or what keeps it from being opened would not be.
        self.note(None);
        for attempt in 1.. {
            let (begins_anew, said) = match self.attempt().await {
                Ok(()) => return,
                Err(Stuck::Ending) => return,
                Err(Stuck::Again(why)) => (false, why),
                Err(Stuck::Broken(why)) | Err(Stuck::History(why)) => (true, why),
                Err(Stuck::Event(why)) => {
                    let to_do = "mend the file and restart the receiver";
                    (false, format!("{why}; {to_do}"))
                }
                Err(Stuck::Full) => (true, "the disk is full".to_owned()),
            };
            tracing::warn!(attempt, "not rebuilt yet: {said}");
            self.say(&format!("Not rebuilt yet: {said}. Trying again by itself."));
            if begins_anew {
                let db = self.db.clone();
                let _ = spawn_blocking(move || sweep(&db)).await; // the next attempt will see
            }
            sleep(backoff(attempt, RETRY_BASE, 0.5 + 0.5 * rand::random::<f64>())).await;
        }
    }

    /// One attempt, from what there is to the take-over.
    async fn attempt(&self) -> Result<(), Stuck> {
        let mut beside = self.open().await?;
        if beside.committed().is_none() {
            beside = self.begin(beside).await?;
        }
        for round in 1.. {
            let live = self.live();
            let there = place(beside.committed());
            if place(live) - there > HOLD_EVENTS && round < MOST_ROUNDS {
                beside = self.fill(beside, live).await?;
                continue;
            }
            beside = self.carry(beside, live).await?;
            // That may have taken long.
            if place(self.live()) - place(beside.committed()) > HOLD_EVENTS && round < MOST_ROUNDS {
                continue;
            }
            return self.take_over(beside).await;
        }
        unreachable!("the rounds do not end")
    }

    /// What the live database has committed.
    fn live(&self) -> Option<Cursor> {
        *self.board.committed().borrow()
    }

    async fn open(&self) -> Result<Beside, Stuck> {
        let (db, kind) = (self.db.clone(), self.successor.kind.clone());
        let (projection, on_error) = (self.successor.projection.clone(), self.on_error);
        let beside = blocking(move || Beside::open(&db, &kind.log, &projection, on_error)).await?;
        self.note(beside.committed());
        Ok(beside)
    }

    /// Nothing is in it yet: begins with the publisher's newest snapshot of the new version,
    /// if there is one.
    async fn begin(&self, beside: Beside) -> Result<Beside, Stuck> {
        let kind = &self.successor.kind;
        let source = Source::connect(&self.publisher, &kind.log).await.map_err(asked)?;
        let extent = source.extent().await.map_err(asked)?;
        let listed = source.list(&kind.projection).await.map_err(asked)?;
        let wanted = Wanted {
            projection: &kind.projection,
            projection_version: kind.projection_version,
            schema_digest: &kind.digest,
            refused: &[],
        };
        let newest = choose::newest(&listed, &wanted, &extent.lineage);
        let Some(snapshot) = newest.filter(|found| found.cursor.sequence + 1 >= extent.floor)
        else {
            if extent.floor == 0 {
                return Ok(beside);
            }
            let Kind { projection, projection_version, .. } = &**kind;
            return Err(Stuck::Again(format!(
                "the log begins at sequence {}, and the publisher has no snapshot of projection \
                 {projection} version {projection_version} to begin with; a receiver that has \
                 version {projection_version} already has to make one (`counterfoil snapshot \
                 --receiver URL`), or the new version has to say upgrade = \"migrate\"",
                extent.floor
            )));
        };
        let sequence = snapshot.cursor.sequence;
        self.say(&format!("Getting the snapshot at sequence {sequence} to begin with."));
        let path = beside::path(&self.db);
        let file = download::staged(&path, snapshot);
        download::sweep(&path, Some(&file));
        download::fetch(&source, snapshot, &file)
            .await
            .map_err(|broken| Stuck::Again(broken.to_string()))?;
        let (kind, cursor) = (kind.clone(), snapshot.cursor);
        drop(beside);
        let (db, projection) = (self.db.clone(), self.successor.projection.clone());
        let on_error = self.on_error;
        let beside = blocking(move || {
            staged::check(&file, &kind, Some(&cursor))
                .map_err(|wrong| Stuck::Broken(format!("the snapshot is not fit: {wrong}")))?;
            // What lies beside the empty one is none of the snapshot's.
            beside::make_way(&db)?;
            std::fs::rename(&file, beside::path(&db))?;
            Beside::open(&db, &kind.log, &projection, on_error)
        })
        .await?;
        self.note(beside.committed());
        Ok(beside)
    }

    /// Applies the log's events up to a cursor.
    async fn fill(&self, mut beside: Beside, to: Option<Cursor>) -> Result<Beside, Stuck> {
        let (from, last) = (From::After(beside.committed()), place(to));
        let log = self.successor.kind.log.clone();
        let (take, fed) = mpsc::channel::<Fed>(feed::AHEAD);
        let board = self.board.clone();
        let filling = blocking(move || {
            let told = |cursor: Cursor| {
                board.note(|status| {
                    if let Some(rebuilding) = &mut status.rebuilding {
                        rebuilding.sequence = cursor.sequence;
                    }
                });
            };
            beside.fill(fed, &told)?;
            Ok(beside)
        });
        let feeding = feed::read(&self.publisher, &log, from, last, take);
        let (filled, fed) = tokio::join!(filling, feeding);
        let beside = filled?;
        fed.map_err(asked)?;
        Ok(beside)
    }

    /// Takes over what is not in the log, as far as it can be while the live one goes on.
    async fn carry(&self, mut beside: Beside, live: Option<Cursor>) -> Result<Beside, Stuck> {
        let rewritten = self.board.outbox_rewritten();
        blocking(move || {
            beside.carry(live, rewritten)?;
            beside.settle()?;
            Ok(beside)
        })
        .await
    }

    /// Holds the apply thread, brings the last events, and hands the database over. Where
    /// that takes too long the live one goes on.
    async fn take_over(&self, beside: Beside) -> Result<(), Stuck> {
        let (held, at) = oneshot::channel();
        let (hand_over, handed) = oneshot::channel();
        self.work.send(Work::Hold(Hold { held, handed })).await.map_err(|_| Stuck::Ending)?;
        let live = at
            .await
            .map_err(|_| Stuck::Again("the live database cannot be replaced now".to_owned()))?;
        let last = async {
            let beside = match place(beside.committed()) < place(live) {
                true => self.fill(beside, live).await?,
                false => beside,
            };
            let rewritten = self.board.outbox_rewritten();
            blocking(move || {
                let mut beside = beside;
                if !beside.reaches(live.as_ref())? {
                    let why = "what was rebuilt does not go on from the live database";
                    return Err(Stuck::History(why.to_owned()));
                }
                beside.finish(live, rewritten)
            })
            .await
        };
        // The live one does not wait for ever; then what is done by now is of use later.
        let (staged, brings) = last.await?;
        crash::point(crash::RECEIVER_REBUILD_FILLED);
        let (done, answer) = oneshot::channel();
        let take_over = TakeOver { staged, brings, successor: self.successor.clone(), done };
        hand_over
            .send(take_over)
            .map_err(|_| Stuck::Again("the live database went on meanwhile".to_owned()))?;
        answer.await.map_err(|_| Stuck::Ending)?.map_err(Stuck::Again)?;
        let db = self.db.clone();
        blocking(move || {
            sweep(&db);
            Ok(())
        })
        .await
    }

    /// Shows what is done.
    fn say(&self, step: &str) {
        self.board.note(|status| {
            if let Some(rebuilding) = &mut status.rebuilding {
                step.clone_into(&mut rebuilding.step);
            }
        });
    }

    /// Shows how far it is.
    fn note(&self, committed: Option<Cursor>) {
        self.board.note(|status| {
            status.rebuilding = Some(Rebuilding {
                from_version: self.from_version,
                to_version: self.successor.projection.version(),
                sequence: place(committed),
                step: "Filling the new database; the earlier version goes on.".to_owned(),
            });
        });
    }
}

fn place(cursor: Option<Cursor>) -> Sequence {
    cursor.map_or(-1, |cursor| cursor.sequence)
}

/// What the publisher's refusal means for what is there.
fn asked(status: Status) -> Stuck {
    let said = format!("the publisher said: {}", retry::said(&status));
    match reason_of(&status) {
        Some(
            Reason::LogMismatch | Reason::Diverged | Reason::CursorAhead | Reason::CursorExpired,
        ) => Stuck::History(said),
        _ => Stuck::Again(said),
    }
}

async fn blocking<T: Send + 'static>(
    what: impl FnOnce() -> Result<T, Stuck> + Send + 'static,
) -> Result<T, Stuck> {
    spawn_blocking(what).await.map_err(|error| Stuck::Broken(error.to_string()))?
}
