//! What fills the database now, for all who have to know: it changes while the receiver
//! runs, where a later version of the projection takes over.

use std::sync::Arc;

use tokio::sync::watch;

use super::{projection::Projection, store::Kind};

/// A projection, and what a database of it is.
#[derive(Clone)]
pub struct Serving {
    /// What fills the database.
    pub projection: Arc<dyn Projection>,
    /// What the database is.
    pub kind: Arc<Kind>,
}

/// The one that counts now. The writer alone replaces it, right after the commit that
/// changes what the database is.
#[derive(Clone)]
pub struct Current(Arc<watch::Sender<Serving>>);

impl Current {
    /// Begins with this one.
    pub fn new(projection: Arc<dyn Projection>, kind: Arc<Kind>) -> Self {
        Current(Arc::new(watch::Sender::new(Serving { projection, kind })))
    }

    /// What fills the database.
    pub fn projection(&self) -> Arc<dyn Projection> {
        self.0.borrow().projection.clone()
    }

    /// What the database is.
    pub fn kind(&self) -> Arc<Kind> {
        self.0.borrow().kind.clone()
    }

    /// What counts now, and its changes.
    pub fn watch(&self) -> watch::Receiver<Serving> {
        self.0.subscribe()
    }

    /// Another one has taken over.
    pub(super) fn replace(&self, serving: Serving) {
        self.0.send_replace(serving);
    }
}
