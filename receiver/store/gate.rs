//! Readers in, but not while the write-ahead log has to be cut. It can only start over at a
//! moment when nobody reads in it; readers that overlap leave no such moment, and it grows
//! for as long as they do. So the writer closes the gate where that has kept it from starting
//! over: new reads wait outside, those inside come to an end, which is bounded, and the writer
//! cuts the log between two commits and opens again. The writer itself never waits.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// Shared by the writer and all readers of one database.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    opened: Notify,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    inside: usize,
    closed: bool,
}

/// A read that is under way, until this is dropped.
#[derive(Debug)]
pub struct Entered(Gate);

impl Gate {
    /// Waits while it is closed, but no longer than this: then something else is in the way.
    pub async fn enter(&self, patience: Duration) -> Entered {
        let until = Instant::now() + patience;
        loop {
            let mut opened = std::pin::pin!(self.0.opened.notified());
            // From here on no opening is missed.
            opened.as_mut().enable();
            if let Some(entered) = self.try_enter() {
                return entered;
            }
            if timeout_at(until, opened).await.is_err() {
                let entered = self.enter_if(|_| true);
                return entered.unwrap_or_else(|| unreachable!("everybody may"));
            }
        }
    }

    /// Enters, if it is open.
    pub fn try_enter(&self) -> Option<Entered> {
        self.enter_if(|state| !state.closed)
    }

    fn enter_if(&self, may: impl FnOnce(&State) -> bool) -> Option<Entered> {
        let mut state = self.state();
        if !may(&state) {
            return None;
        }
        state.inside += 1;
        Some(Entered(self.clone()))
    }

    /// The write-ahead log has to be cut, and cannot be. Where nobody is inside, others are
    /// in the way, and it stays open.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = state.inside > 0;
    }

    /// It is cut, or cannot be.
    pub fn open(&self) {
        self.state().closed = false;
        self.0.opened.notify_waiters();
    }

    /// Whether new reads wait.
    pub fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Whether nobody is inside.
    pub fn is_empty(&self) -> bool {
        self.state().inside == 0
    }

    /// Returns once the last one has left while it was closed.
    pub async fn emptied(&self) {
        self.0.emptied.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.inside -= 1;
        if state.closed && state.inside == 0 {
            self.0.0.emptied.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    async fn waits(gate: &Gate) -> bool {
        timeout(Duration::from_millis(1), gate.enter(PATIENCE)).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_inside_comes_to_an_end_and_who_comes_waits() {
        let gate = Gate::default();
        gate.close();
        assert!(!gate.is_closed(), "nobody is in the way");
        let (one, other) = (gate.enter(PATIENCE).await, gate.enter(PATIENCE).await);
        gate.close();
        assert!(gate.is_closed() && waits(&gate).await);
        drop(one);
        assert!(!gate.is_empty() && timeout(PATIENCE, gate.emptied()).await.is_err());
        drop(other);
        assert!(gate.is_empty());
        timeout(PATIENCE, gate.emptied()).await.expect("the writer is told");
        assert!(waits(&gate).await, "until the log is cut");
        let entering = gate.enter(PATIENCE);
        let opening = async {
            tokio::task::yield_now().await;
            gate.open();
        };
        let (entered, ()) = tokio::join!(entering, opening);
        assert!(!gate.is_empty());
        drop(entered);
        assert!(timeout(PATIENCE, gate.emptied()).await.is_err(), "nobody waits for that");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let gate = Gate::default();
        let stuck = gate.enter(PATIENCE).await;
        gate.close();
        let begun = Instant::now();
        let entered = gate.enter(PATIENCE).await;
        assert_eq!(begun.elapsed(), PATIENCE);
        drop((stuck, entered));
        assert!(gate.is_empty());
    }
}
