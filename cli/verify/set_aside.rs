//! What a receiver has not applied in its turn: which events were set aside, and after which
//! ones the effect of some of them was made later.

use std::collections::BTreeMap;

use counterfoil::proto::event::Sequence;
use rusqlite::Connection;

/// What was set aside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAside {
    /// Why, by sequence.
    reasons: BTreeMap<Sequence, String>,
    /// What was applied later, in its order, by the sequence that it came after.
    late: BTreeMap<Sequence, Vec<Sequence>>,
}

impl SetAside {
    /// Reads what a receiver's file has.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn read(tables: &Connection) -> rusqlite::Result<Self> {
        let mut found = SetAside::default();
        // A file of an earlier format has none.
        if !tables.table_exists(None, "counterfoil_skipped")? {
            return Ok(found);
        }
        let select = "SELECT sequence, reason, applied_after FROM counterfoil_skipped
                      ORDER BY applied_turn";
        let mut select = tables.prepare(select)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let sequence = row.get(0)?;
            found.reasons.insert(sequence, row.get(1)?);
            if let Some(after) = row.get(2)? {
                found.late.entry(after).or_default().push(sequence);
            }
        }
        Ok(found)
    }

    /// Why it was set aside; none: it was not.
    pub fn reason(&self, sequence: Sequence) -> Option<&String> {
        self.reasons.get(&sequence)
    }

    /// What was applied later, right after this one.
    pub fn after(&self, sequence: Sequence) -> &[Sequence] {
        self.late.get(&sequence).map_or(&[], Vec::as_slice)
    }

    /// How many of these, the first of which was not set aside, can be applied in one go.
    pub fn run_of(&self, sequences: impl Iterator<Item = Sequence>) -> usize {
        let mut count = 0;
        for sequence in sequences {
            if count > 0 && self.reasons.contains_key(&sequence) {
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

    #[test]
    fn events_run_up_to_what_was_set_aside_or_came_between() {
        let set_aside = SetAside {
            reasons: [(3, "bad".to_owned()), (7, "bad".to_owned())].into(),
            late: [(5, vec![3])].into(),
        };
        for (from, expected) in [(0, 3), (1, 2), (4, 2), (6, 1), (8, 12)] {
            assert_eq!(set_aside.run_of(from..20), expected, "from {from}");
        }
        assert_eq!((set_aside.after(5), set_aside.after(6)), (&[3][..], &[][..]));
    }
}
