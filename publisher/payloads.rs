//! Whether a log looks into payloads before it accepts them. Pure.

use crate::proto::{event::Stated, inventory, refusal::Refusal};

/// What the payloads of a log may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Payloads {
    /// Those of the types that the built-in projection handles have to be readable
    /// for it: one that is not would stop every receiver. Other types are free.
    #[default]
    Inventory,
    /// Anything.
    Any,
}

impl Payloads {
    /// Checks an event of a request, which is its `index`th from 0.
    ///
    /// # Errors
    /// INVALID_FIELD with the event's index, the field and the limit.
    pub fn check(self, index: usize, intent: &Stated<'_>) -> Result<(), Refusal> {
        if self == Payloads::Any {
            return Ok(());
        }
        inventory::read_stated(intent).map(drop).map_err(|unreadable| {
            let place = match unreadable.field {
                within @ ("subject" | "data") => within.to_owned(),
                payload => format!("data.{payload}"),
            };
            Refusal::field(format!("events[{index}].{place}"), unreadable.wrong)
        })
    }
}
