//! The projections that this program has, by name.

use super::{inventory::Inventory, projection::Projection};
use crate::process::Failure;

/// The projection of a name.
///
/// # Errors
/// [`Failure::Usage`] that names those there are.
pub fn named(name: &str) -> Result<Box<dyn Projection>, Failure> {
    match name {
        "inventory" => Ok(Box::new(Inventory)),
        other => Err(Failure::Usage(format!("projection: is {other:?}; there is: inventory"))),
    }
}
