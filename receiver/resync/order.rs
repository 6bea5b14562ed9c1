//! What a person has to say: that what the database has may be replaced, now and for the
//! reason that is shown.

use tokio::sync::oneshot;

use super::Resync;
use crate::{
    proto::chain::Cursor,
    receiver::status::{Failure, Resyncing, Status},
};

/// A person's word that what the database has may be replaced.
#[derive(Debug)]
pub struct Order {
    /// What was shown when it was given.
    pub meant: Meant,
    /// Answered once it is taken; dropped where it is not meant for what there is now.
    pub taken: oneshot::Sender<()>,
}

/// What an order is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meant {
    /// Why the receiver does not go on.
    reason: Option<&'static str>,
    /// What would be replaced.
    cursor: Option<Cursor>,
}

impl Meant {
    /// What an order means that is given now.
    pub fn of(status: &Status) -> Self {
        Meant { reason: status.failure().map(|failure| failure.reason), cursor: status.cursor }
    }
}

impl Resync {
    /// Waits for an order; an older one, or one whose caller has gone, is none. It is shown
    /// as taken before it is answered. `waiting`: what to show meanwhile; none: the halt.
    /// `false`: told to end, or halted while something else was shown.
    pub(super) async fn order(&mut self, failure: &Failure, waiting: Option<&str>) -> bool {
        loop {
            match waiting {
                Some(step) => self.say(failure, step, true),
                // Whatever was being done for another reason is not done any more.
                None => self.board.note(|status| status.resyncing = None),
            }
            let order = tokio::select! {
                Some(order) = self.orders.recv() => order,
                () = self.board.halted(), if waiting.is_some() => return false,
                () = self.ending.cancelled() => return false,
                else => return false,
            };
            let now = Meant::of(&self.board.status().borrow());
            if order.taken.is_closed() || order.meant != now {
                continue;
            }
            let (failure, step) =
                (failure.clone(), "What the database has is about to be replaced, as ordered.");
            self.board.resyncing(Resyncing { failure, step: step.to_owned(), waits: false });
            if order.taken.send(()).is_ok() {
                tracing::info!("{step}");
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, sync::Arc};

    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::receiver::{
        current::Current, inventory::Inventory, resync::Memory, status::Board, store::Kind,
        testing::log_id,
    };

    /// Two are thrown away at the next wait: an order whose caller has gone, and one that
    /// was given for another stop than this.
    #[tokio::test]
    async fn only_what_is_meant_for_now_is_taken() {
        let board = Arc::new(Board::new(Some(Cursor::beginning(log_id()))));
        let (work, _queue) = mpsc::channel(1);
        let (give, orders) = mpsc::channel(4);
        let kind = Arc::new(Kind::of("main", &Inventory).expect("declared"));
        let mut resync = Resync {
            publisher: Endpoint::from_static("http://127.0.0.1:1"),
            db: PathBuf::from("none.db"),
            current: Current::new(Arc::new(Inventory), kind),
            asks: true,
            board: board.clone(),
            work,
            orders,
            ending: CancellationToken::new(),
            memory: Memory::default(),
        };
        let expired = Failure { reason: "CURSOR_EXPIRED", ..Failure::default() };
        let meant = |reason, cursor| Meant { reason: Some(reason), cursor };
        let given = |meant| {
            let (taken, answer) = oneshot::channel();
            give.try_send(Order { meant, taken }).expect("room");
            answer
        };
        let cursor = Some(Cursor::beginning(log_id()));
        drop(given(meant("CURSOR_EXPIRED", cursor)));
        let halted = given(meant("DIVERGED", cursor));
        let before = given(meant("CURSOR_EXPIRED", None));
        let right = given(meant("CURSOR_EXPIRED", cursor));
        let asks = async {
            right.await.expect("taken");
            let status = board.status();
            let waits = status.borrow().resyncing.as_ref().map(|resyncing| resyncing.waits);
            assert_eq!(waits, Some(false), "whoever has the answer sees it as taken");
        };
        let (taken, ()) = tokio::join!(resync.order(&expired, Some("Waiting.")), asks);
        assert!(taken);
        halted.await.expect_err("it was for a halt");
        before.await.expect_err("it was for other content");

        // With nothing but those left, it waits until the end.
        drop(given(meant("CURSOR_EXPIRED", cursor)));
        resync.ending.cancel();
        assert!(!resync.order(&expired, Some("Waiting.")).await);
    }
}
