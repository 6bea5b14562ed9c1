//! Events that are not applied in a rebuilt database: what a person has set aside in the
//! live one stays so, until it is applied by order; what fails by the new version is set
//! aside too where that is wanted, and otherwise ends the attempt.

use std::{collections::BTreeMap, path::Path};

use super::Stuck;
use crate::{
    proto::{crash, event::Sequence},
    receiver::{
        apply::shortened,
        config::OnError,
        decide::Step,
        isolate::Hears,
        store::{
            self,
            skipped::{self, Aside},
        },
        transaction::{Committed, EventFault},
        writer::Writer,
    },
};

/// What is set aside, and what is to become of more.
pub struct SetAside {
    /// In the live database, with its key.
    live: BTreeMap<Sequence, (String, Aside)>,
    on_error: OnError,
}

impl SetAside {
    /// What waits in the live database.
    pub fn of(live: &Path, on_error: OnError) -> Result<Self, Stuck> {
        let live = skipped::all_waiting(&store::open_for_reading(live)?)?;
        Ok(SetAside { live, on_error })
    }

    /// Whether this event is one of them.
    pub fn holds(&self, step: &Step) -> bool {
        let event = step.event();
        let kept = self.live.get(&event.sequence);
        kept.is_some_and(|(key, _)| *key == event.intent.key)
    }

    /// Sets it aside again, as it was.
    pub fn again(&self, writer: &mut Writer, step: &Step) -> Result<(), Stuck> {
        match (step, self.live.get(&step.event().sequence)) {
            (Step::Next { event, after }, Some((_, aside))) => {
                writer.set_aside(event, *after, aside)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Hears for SetAside {
    type Stop = Stuck;

    fn committed(&mut self, _: &Committed) {
        crash::point(crash::RECEIVER_REBUILD_GROUP);
    }

    fn fails(&mut self, writer: &mut Writer, step: &Step, why: EventFault) -> Result<(), Stuck> {
        let event = step.event();
        let said = format!(
            "event {} ({}, subject {:?}) fails: {}",
            event.sequence,
            event.intent.event_type,
            event.intent.subject,
            why.noted()
        );
        let may = self.on_error == OnError::Skip && why.class().is_some();
        let Step::Next { event, after } = step else { return Err(Stuck::Event(said)) };
        if !may {
            return Err(Stuck::Event(said));
        }
        tracing::error!("{said}. It is set aside in the database that is being rebuilt.");
        let aside = Aside { reason: shortened(&why.noted()), fault: why.noted() };
        writer.set_aside(event, *after, &aside)?;
        Ok(())
    }
}
