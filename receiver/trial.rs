//! `receiver check FILE --publisher URL`: the real events of a log, run through a projection
//! on a copy that is thrown away. What would be applied, what rejected, and what would fail.
//! The same code applies them as in service; only an event that fails is set aside and
//! counted, so that the next ones have their turn.

mod report;
mod scratch;

use std::{ops::ControlFlow, sync::Arc};

use tokio::{sync::mpsc, task::spawn_blocking};
use tonic::Status;

use self::scratch::Scratch;
use super::{
    config::Trial,
    feed::{self, Fed, From},
    projection::Projection,
    retry,
    source::Source,
};
use crate::{process::Failure, proto::event::Sequence};

pub use report::Report;

/// Runs them.
///
/// # Errors
/// [`Failure::Usage`]: the database is none of a receiver's. [`Failure::Runtime`]: it does
/// not go together with the projection, or the events cannot be had.
pub async fn run(trial: Trial, projection: Arc<dyn Projection>) -> Result<Report, Failure> {
    let Trial { publisher, log, db, from, limit } = trial;
    let copied = {
        let log = log.clone();
        spawn_blocking(move || Scratch::of(db.as_deref(), &log, projection)).await
    };
    let mut scratch = copied.map_err(|error| Failure::Runtime(error.to_string()))??;
    let source = Source::connect(&publisher, &log).await.map_err(asked)?;
    let extent = source.extent().await.map_err(asked)?;
    let first = from.unwrap_or_else(|| scratch.next());
    if first < extent.floor {
        return Err(Failure::Runtime(format!(
            "event {first} is no longer retained: the log begins at {}; to run what there is, as \
             if it came now: --from {}",
            extent.floor, extent.floor
        )));
    }
    let end = limit.map_or(extent.next, |limit| extent.next.min(first.saturating_add(limit)));
    let start = match from {
        Some(_) => From::Oldest,
        None => From::After(scratch.committed()),
    };
    let (take, fed) = mpsc::channel::<Fed>(feed::AHEAD);
    let running = spawn_blocking(move || {
        scratch.begin_at(from);
        let ended = take_all(&mut scratch, fed, first);
        ended.map(|()| scratch.into_report(first, end))
    });
    let feeding = feed::read(&publisher, &log, start, end - 1, take);
    let (ran, fed) = tokio::join!(running, feeding);
    let report = ran.map_err(|error| Failure::Runtime(error.to_string()))??;
    fed.map_err(asked)?;
    Ok(report)
}

/// Takes what is fed, from the event `first` on, until there is no more of it.
fn take_all(
    scratch: &mut Scratch,
    mut fed: mpsc::Receiver<Fed>,
    first: Sequence,
) -> Result<(), Failure> {
    let mut pending = Vec::new();
    while let Some(next) = fed.blocking_recv() {
        let mut next = ControlFlow::Continue(next);
        while let ControlFlow::Continue(now) = next {
            match now {
                Fed::Begins(cursor) => scratch.pass(cursor),
                Fed::Adopt(cursor) => scratch.adopt(cursor)?,
                Fed::Events(steps) => {
                    for step in steps {
                        if step.event().sequence < first {
                            scratch.pass_step(&step);
                        } else {
                            pending.push(step);
                        }
                    }
                }
            }
            next = match fed.try_recv() {
                Ok(more) if !feed::is_full(&pending) => ControlFlow::Continue(more),
                Ok(more) => {
                    scratch.apply(&std::mem::take(&mut pending))?;
                    ControlFlow::Continue(more)
                }
                Err(_) => ControlFlow::Break(()),
            };
        }
        scratch.apply(&std::mem::take(&mut pending))?;
    }
    Ok(())
}

fn asked(status: Status) -> Failure {
    Failure::Runtime(format!("the publisher said: {}", retry::said(&status)))
}
