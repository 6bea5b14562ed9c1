//! The projections that this program has, by name.

use super::{inventory::Inventory, projection::Projection};

/// All their names, for people.
pub const NAMES: &str = "inventory";

/// The projection of a name, if there is one.
pub fn named(name: &str) -> Option<Box<dyn Projection>> {
    match name {
        "inventory" => Some(Box::new(Inventory)),
        _ => None,
    }
}
