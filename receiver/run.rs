//! The receiver's whole flow: events in, one transaction, acks out, and a
//! service that shows it.

use std::{path::Path, sync::Arc, thread, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    ack::Acks,
    admin::Admin,
    apply::{Apply, Rules, Streams},
    config::{ResyncPolicy, Settings},
    current::Serving,
    forward::{self, Forwarding, look::Receipts},
    offer::Offers,
    projection::Projection,
    readers::Readers,
    rebuild::{self, Rebuild},
    replay::Replay,
    resync::{self, Resync},
    service, snapshot,
    status::Board,
    store::{self, Kind, OpenError, baseline, cursor, lock, outbox, skipped, trouble::Trouble},
    writer::Writer,
};
use crate::{
    client::{ConnectError, Publisher, Settings as Target},
    process::{self, Failure},
    proto::limits::RECEIVE_QUEUE_FRAMES,
};

/// How long the apply thread may take to close the database at the end: a
/// process that was told to end is gone within 5 seconds.
const CLOSING: Duration = Duration::from_millis(4_500);

/// Runs a receiver as a process of its own, until that is told to end.
///
/// # Errors
/// [`Failure`]: the database cannot be used, or the server failed.
pub async fn run(
    settings: Settings,
    projection: Arc<dyn Projection>,
    listener: TcpListener,
) -> Result<(), Failure> {
    let serving = async |service, _| process::serve(listener, service).await;
    run_serving(settings, projection, serving).await
}

/// Runs a receiver for as long as it is served, or nobody has to: once `serving` is over, or
/// has been told to be by the service's `ending`, so is the receiver.
///
/// # Errors
/// As [`run`].
pub async fn run_serving(
    settings: Settings,
    projection: Arc<dyn Projection>,
    serving: impl AsyncFnOnce(process::Service, Arc<Board>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Settings { publisher, log, name, db, connect_attempts, .. } = settings;
    let rules = Rules {
        attempts: settings.apply_attempts,
        on_error: settings.on_error,
        keep: settings.keep_ledger,
    };
    let (resync, snapshot_every) = (settings.resync, settings.snapshot_every);
    let forward_to =
        forward::target(projection.as_ref(), settings.forward_to, settings.forward_log)?;

    // The database, all of it on stable storage before anything else happens.
    let db = lock::real_name(&db).map_err(|error| {
        Failure::Runtime(format!("the database {} cannot be reached: {error}", db.display()))
    })?;
    let _lock = lock::lock(&db)?;
    lock::refuse_halted(&db)?;
    snapshot::sweep(&db);
    resync::sweep(&db);
    // A version that is rebuilt takes over later: until then the earlier one goes on.
    let (store, projection, successor) = match store::open(&db, &log, &*projection) {
        Err(OpenError::Earlier(contents)) => {
            let earlier =
                rebuild::earlier(&contents).map_err(|why| refused(&db, OpenError::Refused(why)))?;
            if forward_to.is_none() && earlier.emits() {
                return Err(Failure::Usage(format!(
                    "version {} of the projection {} emits follow-up events, and goes on until the \
                     new version is rebuilt: say which publisher gets them with --forward-to URL, \
                     and which of its logs with --forward-log NAME",
                    earlier.version(),
                    earlier.name()
                )));
            }
            let kind = Kind::of(&log, &*projection).map_err(|e| refused(&db, e.into()))?;
            let successor = Serving { projection, kind: Arc::new(kind) };
            let store = store::open(&db, &log, &*earlier).map_err(|e| refused(&db, e))?;
            (store, earlier, Some(successor))
        }
        opened => {
            rebuild::sweep(&db);
            (opened.map_err(|e| refused(&db, e))?, projection, None)
        }
    };
    let committed = cursor::read(&store.connection, &log).map_err(|e| refused(&db, e.into()))?;

    let ledger_from = baseline::from(&store.connection).map_err(|e| refused(&db, e.into()))?;
    let skipped = skipped::waiting(&store.connection).map_err(|e| refused(&db, e.into()))?;
    let outbox_pending =
        outbox::count_pending(&store.connection).map_err(|e| refused(&db, e.into()))?;

    let board = Arc::new(Board::new(committed));
    board.note(|status| {
        (status.ledger_from, status.skipped) = (ledger_from, skipped);
        status.outbox_pending = outbox_pending;
        let waits_for_nothing = forward_to.is_none() && outbox_pending > 0;
        status.forwarding = waits_for_nothing.then(forward::without_target);
    });
    let streams = Arc::new(Streams::default());
    let ending = CancellationToken::new();
    let (session, open_session) = watch::channel(None);
    let (work, queue) = mpsc::channel(RECEIVE_QUEUE_FRAMES);

    let (order_resync, resyncs) = mpsc::channel(1);
    let (order_snapshot, snapshots) = mpsc::channel(1);
    let (order, orders) = mpsc::channel(1);

    let writer = Writer::new(store, committed, projection);
    let current = writer.current().clone();
    let gate = writer.gate().clone();
    let readers = Readers::new(db.clone(), gate.clone());
    let mut shown = service::routes(&board, &log, &name, readers, &current, ending.clone());
    let admin = Admin {
        name: name.clone(),
        log: log.clone(),
        board: board.clone(),
        order,
        order_resync,
        order_snapshot,
    };
    shown.routes.add_service(admin.service());
    let apply = Apply::new(writer, board.clone(), streams.clone(), rules, orders, ending.clone());
    let (closed, wait_closed) = oneshot::channel();
    thread::Builder::new()
        .name("apply".to_owned())
        .spawn(move || {
            let _ = closed.send(apply.run(queue)); // nobody waits any more: nothing to tell
        })
        .map_err(|error| Failure::Runtime(format!("no thread to apply events on: {error}")))?;
    let resync = Resync {
        publisher: publisher.clone(),
        db: db.clone(),
        current: current.clone(),
        asks: resync == ResyncPolicy::Ask,
        board: board.clone(),
        work: work.clone(),
        orders: resyncs,
        ending: ending.clone(),
        memory: resync::Memory::default(),
    };
    let offers = Offers {
        publisher: publisher.clone(),
        name: name.clone(),
        db: db.clone(),
        current: current.clone(),
        board: board.clone(),
        every: snapshot_every,
        orders: snapshots,
        ending: ending.clone(),
    };
    let both = |to: Target| Ok((Receipts::of(&to)?, Publisher::connect(to)?));
    let forwarding = forward_to.map(both).transpose();
    let forwarding = forwarding.map_err(|error: ConnectError| Failure::Usage(error.to_string()))?;
    let forwarding = forwarding.map(|(receipts, to)| Forwarding {
        to,
        receipts,
        readers: Readers::new(db.clone(), gate.clone()),
        board: board.clone(),
        work: work.clone(),
        ending: ending.clone(),
    });
    let replay = Replay {
        publisher,
        log: log.clone(),
        name: name.clone(),
        attempts: connect_attempts,
        board: board.clone(),
        work: work.clone(),
        current: current.clone(),
        streams,
        session,
        ending: ending.clone(),
    };
    let rebuild = successor.map(|successor| Rebuild {
        publisher: offers.publisher.clone(),
        db: db.clone(),
        from_version: current.projection().version(),
        successor,
        on_error: rules.on_error,
        board: board.clone(),
        work,
        ending: ending.clone(),
    });
    let readers = Readers::new(db.clone(), gate);
    let acks = Acks {
        log,
        name,
        readers,
        board: board.clone(),
        session: open_session,
        ending: ending.clone(),
    };
    let follow = resync::follow(replay, resync);
    let replay = alive("the task that receives events", tokio::spawn(follow), &ending);
    let offers = alive("the task that offers snapshots", tokio::spawn(offers.keep()), &ending);
    let rebuild = async {
        match rebuild {
            Some(rebuild) => {
                let task = tokio::spawn(rebuild.keep());
                alive("the task that rebuilds", task, &ending).await
            }
            None => Ok(()),
        }
    };
    let acks = alive("the task that acknowledges", tokio::spawn(acks.keep()), &ending);
    let forward = async {
        if let Some(forwarding) = forwarding {
            forwarding.keep().await;
        }
    };
    let forward = alive("the task that forwards", tokio::spawn(forward), &ending);

    let served = async {
        let served = serving(shown, board).await;
        ending.cancel();
        served
    };
    let closed = async {
        let mut closed = wait_closed;
        // It may close early, with nothing left to apply; only a panic takes the answer along.
        let early = tokio::select! {
            early = &mut closed => early,
            () = ending.cancelled() => return timeout(CLOSING, closed).await,
        };
        match early {
            Ok(_) => ending.cancelled().await,
            Err(_) => ending.cancel(),
        }
        Ok(early)
    };
    let (served, closed, replay, acks, offers, forward, rebuild) =
        tokio::join!(served, closed, replay, acks, offers, forward, rebuild);
    served?;
    match closed {
        Ok(Ok(Err(why))) => {
            let db = db.display();
            let what_to_do = "see to the disk, then run `receiver recover";
            return Err(Failure::Runtime(format!("{why} {what_to_do} --db {db}`")));
        }
        Ok(Ok(Ok(()))) => {}
        Ok(Err(_)) => return Err(died("the thread that applies events")),
        // As good as a crash, which costs nothing but a longer start.
        Err(_) => tracing::warn!("the database is still busy; ending without closing it"),
    }
    replay.and(acks).and(offers).and(forward).and(rebuild)
}

/// Waits for a task. It may be over early, with nothing left to do; if it
/// panicked, the whole receiver ends: nobody would notice what it leaves undone.
async fn alive(
    part: &str,
    task: JoinHandle<()>,
    ending: &CancellationToken,
) -> Result<(), Failure> {
    task.await.map_err(|_| {
        ending.cancel();
        died(part)
    })
}

fn died(part: &str) -> Failure {
    Failure::Runtime(format!("{part} has died; what is committed stands, start again"))
}

/// The database cannot be used: in which way, and what to do.
fn refused(db: &Path, error: OpenError) -> Failure {
    let why = format!("the database {} cannot be opened: {error}", db.display());
    let damaged = |error: &rusqlite::Error| {
        error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt)
    };
    match (error.trouble(), &error) {
        (None | Some(Trouble::Busy), _) => Failure::InUse(why),
        (_, OpenError::Sql(error)) if damaged(error) => {
            Failure::InUse(format!("{why}; restore it from a copy"))
        }
        (Some(Trouble::Broken), _) => {
            lock::mark_halted(db, &why);
            let db = db.display();
            let what_to_do = "see to the disk, then run `receiver recover";
            Failure::Runtime(format!("{why}; {what_to_do} --db {db}`"))
        }
        (Some(Trouble::Full | Trouble::Statement), _) => Failure::Runtime(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task that is over is none of a receiver's ends; one that panicked is.
    #[tokio::test]
    async fn a_dead_task_ends_the_receiver() {
        let ending = CancellationToken::new();
        alive("a task", tokio::spawn(async {}), &ending).await.expect("over");
        assert!(!ending.is_cancelled());
        let dying = tokio::spawn(async { panic!("as the test wants it") });
        let failure = alive("a task", dying, &ending).await.expect_err("dead");
        assert!(ending.is_cancelled());
        assert_eq!(failure.code(), 1);
        assert!(failure.to_string().starts_with("a task has died"), "{failure}");
    }
}
