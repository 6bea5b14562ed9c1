//! The projections that this program has, by name.

use std::sync::Arc;

use super::{inventory::Inventory, projection::Projection};

/// All their names, for people.
pub const NAMES: &str = "inventory";

/// The projection of a name, if there is one.
pub fn named(name: &str) -> Option<Arc<dyn Projection>> {
    match name {
        "inventory" => Some(Arc::new(Inventory)),
        _ => None,
    }
}
