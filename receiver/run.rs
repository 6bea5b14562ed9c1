//! The receiver's whole flow: events in, one transaction, acks out, and a
//! service that shows it.

use std::{path::Path, sync::Arc, thread, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    ack::Acks,
    apply::{Apply, Streams},
    config::Settings,
    projection::Projection,
    replay::Replay,
    service,
    status::Board,
    store::{self, OpenError, cursor, lock, trouble::Trouble},
    writer::Writer,
};
use crate::{
    process::{self, Failure},
    proto::limits::RECEIVE_QUEUE_FRAMES,
};

/// How long the apply thread may take to close the database at the end: a
/// process that was told to end is gone within 5 seconds.
const CLOSING: Duration = Duration::from_millis(4_500);

/// Runs a receiver until it is told to end.
///
/// # Errors
/// [`Failure`]: the database cannot be used, or the server failed.
pub async fn run(
    settings: Settings,
    projection: Box<dyn Projection>,
    listener: TcpListener,
) -> Result<(), Failure> {
    let Settings { publisher, log, name, db, connect_attempts, apply_attempts, .. } = settings;

    // The database, all of it on stable storage before anything else happens.
    let db = lock::real_name(&db).map_err(|error| {
        Failure::Runtime(format!("the database {} cannot be reached: {error}", db.display()))
    })?;
    let _lock = lock::lock(&db)?;
    lock::refuse_halted(&db)?;
    let store = store::open(&db, &log, projection.as_ref()).map_err(|e| refused(&db, e))?;
    let committed = cursor::read(&store.connection, &log).map_err(|e| refused(&db, e.into()))?;

    let board = Arc::new(Board::new(committed));
    let streams = Arc::new(Streams::default());
    let ending = CancellationToken::new();
    let (session, open_session) = watch::channel(None);
    let (work, queue) = mpsc::channel(RECEIVE_QUEUE_FRAMES);

    let shown = service::routes(&board, &log, &name, &db, projection.as_ref(), ending.clone());
    let writer = Writer::new(store, committed, projection);
    let apply = Apply::new(writer, board.clone(), streams.clone(), apply_attempts, ending.clone());
    let (closed, wait_closed) = oneshot::channel();
    thread::Builder::new()
        .name("apply".to_owned())
        .spawn(move || {
            let _ = closed.send(apply.run(queue)); // nobody waits any more: nothing to tell
        })
        .map_err(|error| Failure::Runtime(format!("no thread to apply events on: {error}")))?;
    let replay = Replay {
        publisher,
        log: log.clone(),
        name: name.clone(),
        attempts: connect_attempts,
        board: board.clone(),
        work,
        streams,
        session,
        ending: ending.clone(),
    };
    tokio::spawn(replay.keep());
    let acks = Acks { log, name, board, session: open_session, ending: ending.clone() };
    tokio::spawn(acks.keep());

    let served = async {
        let served = process::serve(listener, shown).await;
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
    let (served, closed) = tokio::join!(served, closed);
    served?;
    match closed {
        Ok(Ok(Err(why))) => {
            let db = db.display();
            let what_to_do = "see to the disk, then run `receiver recover";
            return Err(Failure::Runtime(format!("{why} {what_to_do} --db {db}`")));
        }
        Ok(Ok(Ok(()))) => {}
        Ok(Err(_)) => {
            let why = "the thread that applies events has died";
            return Err(Failure::Runtime(format!("{why}; what is committed stands, start again")));
        }
        // As good as a crash, which costs nothing but a longer start.
        Err(_) => tracing::warn!("the database is still busy; ending without closing it"),
    }
    Ok(())
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
