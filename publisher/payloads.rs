//! Whether a log looks into payloads before it accepts them. Pure.

use crate::proto::{event::Stated, inventory, refusal::Refusal};

/// Types that begin so are the publisher's own: what it says to receivers in a log.
pub const OWN_TYPES: &str = "counterfoil.";
/// Keys and subjects that begin so are those of events that stand for lost ones.
pub const OWN_KEYS: &str = "counterfoil.lost/";

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
        if intent.content.event_type.starts_with(OWN_TYPES) {
            let wrong = format!("begins with {OWN_TYPES:?}, which is the publisher's own");
            return Err(Refusal::field(format!("events[{index}].type"), wrong));
        }
        let own = [("key", intent.key), ("subject", intent.content.subject)];
        if let Some((field, _)) = own.iter().find(|(_, text)| text.starts_with(OWN_KEYS)) {
            let wrong = format!("begins with {OWN_KEYS:?}, which is the publisher's own");
            return Err(Refusal::field(format!("events[{index}].{field}"), wrong));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{proto::event::Intent, publisher::testing::with_data};

    #[test]
    fn types_and_payloads_are_refused_by_the_rule() {
        // (payloads, type, data, the field at fault)
        let cases = [
            (Payloads::Any, "stock.adjusted", "{}", None),
            (Payloads::Inventory, "stock.adjusted", "{}", Some("events[3].data.delta")),
            (Payloads::Inventory, "stock.adjusted", "{\"delta\":1}", None),
            (Payloads::Inventory, "free", "{}", None),
            (Payloads::Any, "counterfoil.lost", "{}", Some("events[3].type")),
            (Payloads::Inventory, "counterfoil.lost", "{}", Some("events[3].type")),
            (Payloads::Any, "counterfoils", "{}", None),
        ];
        for (payloads, event_type, data, field) in cases {
            let intent = with_data("k", "camera", data);
            let intent = Intent { event_type: event_type.into(), ..intent };
            let checked = payloads.check(3, &intent.stated());
            let at_fault = checked.err().map(|refusal| refusal.fields[0].0.clone());
            assert_eq!(at_fault.as_deref(), field, "{payloads:?} {event_type} {data}");
        }
        // (key, subject, the field at fault)
        for (key, subject, field) in [
            ("counterfoil.lost/a/7", "camera", Some("events[3].key")),
            ("k", "counterfoil.lost/a", Some("events[3].subject")),
            ("counterfoil.lost", "counterfoil.loster", None),
        ] {
            let checked = Payloads::Any.check(3, &with_data(key, subject, "{}").stated());
            let at_fault = checked.err().map(|refusal| refusal.fields[0].0.clone());
            assert_eq!(at_fault.as_deref(), field, "{key} {subject}");
        }
    }
}
