//! The comparison itself, on one thread: events as they come, beside the ledger's rows and
//! into the scratch database; then the tables of both.

use counterfoil::{
    proto::{
        chain::{Chain, Cursor},
        event::{Event, Sequence, hex},
    },
    receiver::{decide::Step, turns::Turns},
};
use indicatif::ProgressBar;
use tokio::sync::mpsc;

use super::{
    Stop,
    ledger::{self, Ledger},
    moment::Moment,
    report::{Difference, Report},
    scratch::{Base, Scratch},
    tables,
};

/// Some events of the publisher's log, in order.
pub struct Batch {
    /// The events.
    pub events: Vec<Event>,
    /// The cursor that the publisher states after them, where that is known.
    pub stated: Option<Cursor>,
}

/// Compares everything. `start`: what the publisher says comes before its first event.
///
/// # Errors
/// The first difference, or why it cannot be found out.
pub fn check(
    moment: Moment,
    base: Base,
    start: Cursor,
    mut batches: mpsc::Receiver<Batch>,
    progress: &ProgressBar,
    report: &mut Report,
) -> Result<(), Stop> {
    moment.is_whole()?;
    let mut scratch = Scratch::begin(base, &moment.log, start, Turns::read(&moment.tables)?)?;
    let mut rows = moment.tables.prepare(ledger::ROWS)?;
    let mut ledger = Ledger::of(&moment, &mut rows)?;
    let mut log = Log { cursor: start, moment: &moment };

    // What the publisher does not retain any more.
    while ledger.next <= start.sequence.min(moment.last()) {
        ledger.advance(None)?;
    }
    log.agrees(&ledger)?;
    agrees(&scratch, &start)?;
    while let Some(batch) = batches.blocking_recv() {
        let count = batch.events.len() as u64;
        log.read(batch, &mut ledger, &mut scratch)?;
        progress.inc(count);
    }
    if log.cursor.sequence < moment.last() {
        return Ok(()); // the events broke off, and whoever read them knows why
    }
    while ledger.next <= moment.last() {
        ledger.advance(None)?; // none but where the log begins above the cursor
    }
    ledger.ends(moment.last())?;
    log.ends()?;
    chain_ends(&moment, &ledger.chain)?;
    ledger::keys_are_settled(&moment)?;
    report.ledger_rows = Some(ledger.next - moment.baseline.from);
    report.outcomes = Some(ledger.outcomes);
    if start.sequence > moment.last() {
        report.unchecked.push(format!(
            "the events: the publisher retains none before sequence {}, the file ends at {}",
            start.sequence + 1,
            moment.last()
        ));
    } else {
        report.events = Some((start.sequence + 1, moment.last()));
    }

    let Some(scratch) = scratch else { return Ok(()) };
    progress.set_message("comparing tables");
    if scratch.last() != moment.last() {
        let expected = format!("everything applied up to {}", moment.last());
        return Err(Difference::new("the scratch database", expected, scratch.last()).into());
    }
    tables::outcomes_are_equal(&moment, &scratch, &ledger.outcomes)?;
    (report.tables, report.others) = tables::compare(&moment, &scratch)?;
    Ok(())
}

/// The publisher's log, as far as it has been read.
struct Log<'m> {
    /// The last event, with the chain worked out from the events.
    cursor: Cursor,
    moment: &'m Moment,
}

impl Log<'_> {
    fn read(
        &mut self,
        batch: Batch,
        ledger: &mut Ledger<'_>,
        scratch: &mut Option<Scratch>,
    ) -> Result<(), Stop> {
        let mut steps = Vec::with_capacity(batch.events.len());
        for event in batch.events {
            let expected = self.cursor.sequence + 1;
            if event.sequence != expected {
                let found = format!("event {}", event.sequence);
                let expected = format!("event {expected}");
                return Err(Difference::new("the publisher's log", expected, found).into());
            }
            self.cursor = self.cursor.advance(&event.intent.fingerprint, &event.intent.key);
            if event.sequence >= ledger.next {
                ledger.advance(Some(&event))?;
            }
            self.agrees(ledger)?;
            match &*scratch {
                Some(made) if event.sequence > made.last() => {
                    steps.push(Step::Next { event, after: self.cursor, judged: None });
                }
                made => agrees(made, &self.cursor)?,
            }
        }
        if let Some(stated) = batch.stated
            && (stated.sequence, stated.chain) != (self.cursor.sequence, self.cursor.chain)
        {
            let place = format!("the publisher's log, sequence {}", self.cursor.sequence);
            let found = format!("{} at {}", hex(&stated.chain), stated.sequence);
            let expected = format!("the chain of its events, {}", hex(&self.cursor.chain));
            return Err(Difference::new(place, expected, found).into());
        }
        match scratch {
            Some(scratch) => scratch.apply(&steps),
            None => Ok(()),
        }
    }

    /// Both chains, where both are at the same sequence.
    fn agrees(&self, ledger: &Ledger<'_>) -> Result<(), Difference> {
        let Cursor { sequence, chain, .. } = self.cursor;
        if ledger.next == sequence + 1 && ledger.chain != chain {
            return Err(chains_differ("the ledger", sequence, &chain, &ledger.chain));
        }
        Ok(())
    }

    /// The log's chain is the cursor's.
    fn ends(&self) -> Result<(), Difference> {
        match &self.moment.cursor {
            Some(cursor) if cursor.sequence == self.cursor.sequence => {
                let (expected, found) = (&self.cursor.chain, &cursor.chain);
                if expected == found {
                    return Ok(());
                }
                Err(chains_differ("the file's cursor", cursor.sequence, expected, found))
            }
            _ => Ok(()),
        }
    }
}

/// The ledger's chain is the cursor's.
fn chain_ends(moment: &Moment, chain: &Chain) -> Result<(), Difference> {
    match &moment.cursor {
        Some(cursor) if cursor.chain != *chain => {
            Err(chains_differ("the file's cursor", cursor.sequence, chain, &cursor.chain))
        }
        _ => Ok(()),
    }
}

fn agrees(scratch: &Option<Scratch>, log: &Cursor) -> Result<(), Difference> {
    scratch.as_ref().map_or(Ok(()), |scratch| scratch.agrees(log))
}

fn chains_differ(whose: &str, sequence: Sequence, expected: &Chain, found: &Chain) -> Difference {
    let chain = |chain: &Chain| format!("chain {}", hex(chain));
    Difference::new(format!("{whose}, sequence {sequence}"), chain(expected), chain(found))
}
