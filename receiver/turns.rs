//! What a receiver has not applied in its turn: which events were set aside, and after which
//! ones the effect of some of them was made later. Whoever makes the tables once more, to
//! compare them or to replace them, has to keep to that order.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::store::skipped::Aside;
use crate::proto::event::Sequence;

/// What was set aside, and when it was applied later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turns {
    /// Each with its key and why, by sequence.
    aside: BTreeMap<Sequence, (String, Aside)>,
    /// What was applied later, in its order, by the sequence that it came after.
    late: BTreeMap<Sequence, Vec<Sequence>>,
}

impl Turns {
    /// Reads what a receiver's file has.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn read(tables: &Connection) -> rusqlite::Result<Self> {
        let mut found = Turns::default();
        // A file of an earlier format has none.
        if !tables.table_exists(None, "counterfoil_skipped")? {
            return Ok(found);
        }
        let select = "SELECT sequence, key, reason, fault, applied_after FROM counterfoil_skipped
                      ORDER BY applied_turn";
        let mut select = tables.prepare(select)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let sequence = row.get(0)?;
            let aside = Aside { reason: row.get(2)?, fault: row.get(3)? };
            found.aside.insert(sequence, (row.get(1)?, aside));
            if let Some(after) = row.get(4)? {
                found.late.entry(after).or_default().push(sequence);
            }
        }
        Ok(found)
    }

    /// Why it was set aside, and its key; none: it was not.
    pub fn aside(&self, sequence: Sequence) -> Option<&(String, Aside)> {
        self.aside.get(&sequence)
    }

    /// What was applied later, right after this one.
    pub fn after(&self, sequence: Sequence) -> &[Sequence] {
        self.late.get(&sequence).map_or(&[], Vec::as_slice)
    }

    /// What was applied later, after any one up to this one, in its order.
    pub fn up_to(&self, sequence: Sequence) -> impl Iterator<Item = Sequence> {
        self.late.range(..=sequence).flat_map(|(_, late)| late.iter().copied())
    }

    /// All that was applied later.
    pub fn late(&self) -> BTreeSet<Sequence> {
        self.late.values().flatten().copied().collect()
    }

    /// How many of these, the first of which was not set aside, can be applied in one go.
    pub fn run_of(&self, sequences: impl Iterator<Item = Sequence>) -> usize {
        let mut count = 0;
        for sequence in sequences {
            if count > 0 && self.aside.contains_key(&sequence) {
                break;
            }
            count += 1;
            if self.late.contains_key(&sequence) {
                break;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::{
        store::skipped::{keep, note_applied},
        testing::adjustments,
    };

    fn bad() -> (String, Aside) {
        ("k".to_owned(), Aside { reason: "bad".to_owned(), fault: "PAYLOAD".to_owned() })
    }

    #[test]
    fn events_run_up_to_what_was_set_aside_or_came_between() {
        let turns = Turns { aside: [(3, bad()), (7, bad())].into(), late: [(5, vec![3])].into() };
        for (from, expected) in [(0, 3), (1, 2), (4, 2), (6, 1), (8, 12)] {
            assert_eq!(turns.run_of(from..20), expected, "from {from}");
        }
        assert_eq!((turns.after(5), turns.after(6)), (&[3][..], &[][..]));
    }

    #[test]
    fn what_was_applied_later_comes_in_the_order_of_its_turns() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        for event in &adjustments(0, 5) {
            keep(&tables, event, &bad().1, 7).expect("kept");
        }
        for (sequence, after) in [(2, 5), (0, 5), (4, 9)] {
            note_applied(&tables, sequence, after, 9).expect("noted");
        }
        let turns = Turns::read(&tables).expect("readable");
        let up_to = |last| turns.up_to(last).collect::<Vec<_>>();
        assert_eq!((up_to(4), up_to(5), up_to(9)), (vec![], vec![2, 0], vec![2, 0, 4]));
        assert_eq!(turns.late(), [0, 2, 4].into());
        assert_eq!(turns.aside(1).map(|(_, aside)| aside), Some(&bad().1));
        assert_eq!(turns.aside(5), None);
    }
}
