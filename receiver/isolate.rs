//! A group of events of which some may fail: all the others are applied together as far as
//! that goes, and each that fails is handed to whoever decides. Where nobody waits for a
//! mended event: in a rebuild, and in a trial.

use super::{
    decide::Step,
    transaction::{Committed, EventFault, Faulty},
    writer::{Failed, Writer},
};

/// Who hears of what comes of the events.
pub trait Hears {
    /// Why all of it ends.
    type Stop: From<Failed>;

    /// A commit has come through.
    fn committed(&mut self, group: &Committed);

    /// An event cannot be applied. It is the next one: whoever goes on sets it aside.
    ///
    /// # Errors
    /// To end.
    fn fails(
        &mut self,
        writer: &mut Writer,
        step: &Step,
        why: EventFault,
    ) -> Result<(), Self::Stop>;
}

/// Applies events that follow, in their order.
///
/// # Errors
/// The store's, or what `hears` has ended with.
pub fn apply<H: Hears>(writer: &mut Writer, steps: &[Step], hears: &mut H) -> Result<(), H::Stop> {
    let mut rest = steps;
    while !rest.is_empty() {
        let Faulty { at, why } = match writer.attempt(rest) {
            Ok(group) => {
                hears.committed(&group);
                return writer.after_commit().map_err(|error| Failed::Store(error).into());
            }
            Err(Failed::Event(faulty)) => faulty,
            Err(failed) => return Err(failed.into()),
        };
        match at {
            _ if rest.len() == 1 => return hears.fails(writer, &rest[0], why),
            Some(at) => {
                apply(writer, &rest[..at], hears)?;
                apply(writer, &rest[at..=at], hears)?;
                rest = &rest[at + 1..];
            }
            // What shows only with the commit is in one of its halves.
            None => {
                let (first, second) = rest.split_at(rest.len() / 2);
                apply(writer, first, hears)?;
                rest = second;
            }
        }
    }
    Ok(())
}
