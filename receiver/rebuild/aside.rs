//! Events that are not applied in their turn in a rebuilt database: what is set aside in the
//! live one is so here too, and what was applied later there, by order, is applied later here;
//! what fails by the new version is set aside too where that is wanted, and otherwise ends the
//! attempt.

use std::{collections::HashSet, path::Path};

use super::Stuck;
use crate::{
    proto::{
        crash,
        event::{Event, Sequence},
    },
    receiver::{
        apply::shortened,
        config::OnError,
        decide::Step,
        isolate::Hears,
        store::{self, skipped::Aside},
        transaction::{Committed, EventFault},
        turns::Turns,
        writer::Writer,
    },
};

/// What is set aside, and what is to become of more.
pub struct SetAside {
    /// In the live database.
    live: Turns,
    /// Of those that were applied later there, the ones that have been looked at here.
    seen: HashSet<Sequence>,
    on_error: OnError,
}

impl SetAside {
    /// What the live database has not applied in its turn by now.
    pub fn of(live: &Path, on_error: OnError) -> Result<Self, Stuck> {
        let live = Turns::read(&store::open_for_reading(live)?)?;
        Ok(SetAside { live, seen: HashSet::new(), on_error })
    }

    /// What the live database says of it.
    pub fn turns(&self) -> &Turns {
        &self.live
    }

    /// Why this event was set aside; none: it was not.
    pub fn holds(&self, event: &Event) -> Option<Aside> {
        let (key, aside) = self.live.aside(event.sequence)?;
        (*key == *event.intent.key).then(|| aside.clone())
    }

    /// What has to be applied later once all up to this sequence is: each is named once.
    pub fn due(&mut self, last: Sequence) -> Vec<Sequence> {
        self.live.up_to(last).filter(|sequence| self.seen.insert(*sequence)).collect()
    }

    /// One that was applied later in the live database cannot be so by the new version.
    pub fn fails_late(&self, sequence: Sequence, why: &EventFault) -> Result<(), Stuck> {
        let said = format!("event {sequence}, which was applied by order, fails: {}", why.noted());
        if !self.may(why) {
            return Err(Stuck::Event(said));
        }
        tracing::error!("{said}. It stays set aside in the database that is being rebuilt.");
        Ok(())
    }

    /// Whether what fails is set aside.
    fn may(&self, why: &EventFault) -> bool {
        self.on_error == OnError::Skip && why.class().is_some()
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
        let Step::Next { event, after, .. } = step else { return Err(Stuck::Event(said)) };
        if !self.may(&why) {
            return Err(Stuck::Event(said));
        }
        tracing::error!("{said}. It is set aside in the database that is being rebuilt.");
        let aside = Aside { reason: shortened(&why.noted()), fault: why.noted() };
        writer.set_aside(event, *after, &aside)?;
        Ok(())
    }
}
