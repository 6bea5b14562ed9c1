//! A receiver inside another program: the same flow as the program `receiver` has, with a
//! projection that is handed in, and an end that is told. No signal is caught, nothing is
//! printed, no exit code is set.

use std::{num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::watch};

use super::{
    config::{self, OnError, ResyncPolicy, Settings},
    projection::Projection,
    pruning::Keep,
    run,
    status::Board,
};
use crate::{
    process::{self, Failure, Service},
    proto::{event::Sequence, wire},
};

/// A receiver that is about to be run. [`super`] has an example; docs/embedding.md says what
/// is promised, and what a projection must not do.
pub struct Receiver {
    publisher: String,
    db: PathBuf,
    projection: Arc<dyn Projection>,
    log: String,
    name: String,
    listener: Option<TcpListener>,
    forward_to: Option<(String, String)>,
    on_error: OnError,
    apply_attempts: u32,
    keep_ledger: Keep,
    resync: ResyncPolicy,
    snapshot_every: Option<Duration>,
    applied: watch::Sender<Sequence>,
}

/// Why a receiver has ended, or has not begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// What it was given cannot be used: a URL, a name, or a projection that emits follow-up
    /// events and has nowhere to send them. Nothing has been touched.
    #[error("{0}")]
    Settings(String),
    /// The database cannot be used: another process has it, it is of another log, another
    /// projection or a newer format, or its projection has changed under the same version.
    /// Nothing has been touched.
    #[error("{0}")]
    Database(String),
    /// It failed while it ran. What is committed stands; where the disk has failed, the
    /// database is not opened again before `receiver recover`.
    #[error("{0}")]
    Failed(String),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Usage(why) => Error::Settings(why),
            Failure::InUse(why) => Error::Database(why),
            Failure::Runtime(why) => Error::Failed(why),
        }
    }
}

impl Receiver {
    /// A receiver of the log `main` of the publisher at this URL, under the name `receiver`,
    /// with the defaults of docs/configuration.md. It makes the database where there is none.
    pub fn new(
        publisher: impl Into<String>,
        db: impl Into<PathBuf>,
        projection: impl Projection,
    ) -> Self {
        Receiver {
            publisher: publisher.into(),
            db: db.into(),
            projection: Arc::new(projection),
            log: "main".to_owned(),
            name: "receiver".to_owned(),
            listener: None,
            forward_to: None,
            on_error: OnError::Halt,
            apply_attempts: 5,
            keep_ledger: Keep::All,
            resync: ResyncPolicy::Auto,
            snapshot_every: None,
            applied: watch::Sender::new(-1),
        }
    }

    /// Follows another log.
    pub fn log(self, log: impl Into<String>) -> Self {
        Receiver { log: log.into(), ..self }
    }

    /// Has another name: each receiver of a log needs one of its own.
    pub fn name(self, name: impl Into<String>) -> Self {
        Receiver { name: name.into(), ..self }
    }

    /// Serves `ReceiverService`, `ReceiverAdminService`, health and reflection here: what
    /// `counterfoil status`, `query`, `skip` and `resync` ask. Without it nothing listens, and
    /// a receiver that halts for a person can only be ended.
    pub fn serve(self, listener: TcpListener) -> Self {
        Receiver { listener: Some(listener), ..self }
    }

    /// Forwards what the projection emits to a log of this publisher.
    pub fn forward_to(self, publisher: impl Into<String>, log: impl Into<String>) -> Self {
        Receiver { forward_to: Some((publisher.into(), log.into())), ..self }
    }

    /// What becomes of an event that cannot be applied, after so many attempts.
    pub fn on_error(self, policy: OnError, after: NonZeroU32) -> Self {
        Receiver { on_error: policy, apply_attempts: after.get(), ..self }
    }

    /// Which ledger rows are kept.
    pub fn keep_ledger(self, keep: Keep) -> Self {
        Receiver { keep_ledger: keep, ..self }
    }

    /// What to do where the next events are no longer retained.
    pub fn resync(self, policy: ResyncPolicy) -> Self {
        Receiver { resync: policy, ..self }
    }

    /// Offers a snapshot this often, beside those that retention asks for.
    pub fn snapshot_every(self, time: Duration) -> Self {
        Receiver { snapshot_every: Some(time), ..self }
    }

    /// The last sequence that is committed, -1 before the first, and how it changes. It goes
    /// back where a snapshot has taken the place of what was there.
    pub fn applied(&self) -> watch::Receiver<Sequence> {
        self.applied.subscribe()
    }

    /// Runs until `shutdown` completes, then closes the database. It has to be let run to its
    /// end: dropped before, it is as good as killed, which loses nothing, but may go on for a
    /// moment on its threads. Called within a Tokio runtime with time and I/O.
    ///
    /// A receiver that halts does not end: it says so in its status, and goes on serving.
    ///
    /// # Errors
    /// [`enum@Error`].
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let settings = self.settings()?;
        let Receiver { projection, listener, applied, .. } = self;
        let serving = async |service: Service, board: Arc<Board>| {
            let ending = service.ending.clone();
            let told = async {
                tokio::select! {
                    () = shutdown => {}
                    () = show(&board, &applied) => {}
                }
            };
            match listener {
                Some(listener) => process::serve_until(listener, service, told, |_| Ok(())).await,
                None => {
                    tokio::select! {
                        () = told => {}
                        () = ending.cancelled() => {}
                    }
                    Ok(())
                }
            }
        };
        run::run_serving(settings, projection, serving).await?;
        Ok(())
    }

    fn settings(&self) -> Result<Settings, Error> {
        let wrong = |what: &str, why: String| Error::Settings(format!("{what}: {why}"));
        wire::name(self.projection.name(), "name")
            .map_err(|refusal| wrong("the projection's name", refusal.message))?;
        let mut settings = Settings::of(&self.publisher, &self.log, &self.name, &self.db)
            .map_err(Error::Settings)?;
        if let Some((url, log)) = &self.forward_to {
            config::check_target(url, log).map_err(|why| wrong("forward_to", why))?;
            (settings.forward_to, settings.forward_log) = (Some(url.clone()), log.clone());
        }
        (settings.on_error, settings.apply_attempts) = (self.on_error, self.apply_attempts);
        (settings.keep_ledger, settings.resync) = (self.keep_ledger, self.resync);
        settings.snapshot_every = self.snapshot_every;
        Ok(settings)
    }
}

/// Passes on what is committed, for as long as there is somebody who commits.
async fn show(board: &Board, applied: &watch::Sender<Sequence>) {
    let mut committed = board.committed();
    loop {
        let sequence = committed.borrow_and_update().map_or(-1, |cursor| cursor.sequence);
        applied.send_if_modified(|last| std::mem::replace(last, sequence) != sequence);
        if committed.changed().await.is_err() {
            return;
        }
    }
}
