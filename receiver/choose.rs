//! Which of the publisher's snapshots to go on from. Pure: knows nothing of files, sockets
//! or clocks.

use uuid::Uuid;

use crate::proto::{chain::Cursor, event::Sequence};

/// Where other content stands against what is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is further on.
    Further,
    /// It is at the same place.
    Same,
    /// It is older, or of another history at this place.
    Behind,
}

/// Judges content by its cursor. None: nothing is applied.
pub fn standing(ours: Option<&Cursor>, theirs: Option<&Cursor>) -> Standing {
    let place = |cursor: Option<&Cursor>| cursor.map_or(-1, |cursor| cursor.sequence);
    match place(theirs).cmp(&place(ours)) {
        std::cmp::Ordering::Greater => Standing::Further,
        std::cmp::Ordering::Equal if theirs == ours => Standing::Same,
        _ => Standing::Behind,
    }
}

/// A snapshot as the publisher lists it, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Everything up to here is in it.
    pub cursor: Cursor,
    /// The projection's name.
    pub projection: String,
    /// The projection's version.
    pub projection_version: i64,
    /// Of the tables that are declared.
    pub schema_digest: Vec<u8>,
    /// Its size in bytes.
    pub size: u64,
    /// SHA-256 of its bytes: its name.
    pub sha256: [u8; 32],
}

/// What a snapshot has to be.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The projection's name.
    pub projection: &'a str,
    /// The projection's version.
    pub projection_version: i64,
    /// Of the tables that are declared.
    pub schema_digest: &'a [u8],
    /// Those that turned out to be wrong.
    pub refused: &'a [[u8; 32]],
}

/// An incarnation of the log, and up to where it is the same as the one that there is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incarnation {
    /// Its UUID.
    pub log_id: Uuid,
    /// The last sequence that is the same.
    pub last: Sequence,
}

/// Whether a place belongs to the log's history, as far as its `log_id` tells.
pub fn is_kin(cursor: &Cursor, lineage: &[Incarnation]) -> bool {
    lineage.iter().any(|one| one.log_id == cursor.log_id && cursor.sequence <= one.last)
}

/// The one to install, out of all that are listed: the newest that fits and is kin to the
/// log as it is now. None: there is none.
pub fn newest<'l>(
    listed: &'l [Listed],
    wanted: &Wanted<'_>,
    lineage: &[Incarnation],
) -> Option<&'l Listed> {
    let fits = |snapshot: &&Listed| {
        snapshot.projection == wanted.projection
            && snapshot.projection_version == wanted.projection_version
            && snapshot.schema_digest == wanted.schema_digest
            && !wanted.refused.contains(&snapshot.sha256)
            && is_kin(&snapshot.cursor, lineage)
    };
    listed.iter().filter(fits).max_by_key(|snapshot| snapshot.cursor.sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(log: u128, sequence: Sequence) -> Cursor {
        Cursor { log_id: Uuid::from_u128(log), sequence, chain: [sequence as u8; 32] }
    }

    #[test]
    fn older_same_and_further() {
        let forked = Cursor { chain: [99; 32], ..at(1, 5) };
        let cases = [
            (None, Some(at(1, 0)), Standing::Further),
            (Some(at(1, 5)), Some(at(1, 6)), Standing::Further),
            (Some(at(1, 5)), Some(at(2, 6)), Standing::Further),
            (Some(at(1, 5)), Some(at(1, 5)), Standing::Same),
            (None, None, Standing::Same),
            (Some(at(1, 5)), Some(forked), Standing::Behind),
            (Some(at(1, 120)), Some(at(1, 100)), Standing::Behind), // SNP-03
            (Some(at(1, 5)), None, Standing::Behind),
        ];
        for (ours, theirs, expected) in cases {
            assert_eq!(standing(ours.as_ref(), theirs.as_ref()), expected, "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn the_newest_that_fits() {
        let listed = |log, sequence, version, digest: u8| Listed {
            cursor: at(log, sequence),
            projection: "inventory".to_owned(),
            projection_version: version,
            schema_digest: vec![digest; 32],
            size: 1,
            sha256: [sequence as u8; 32],
        };
        let all = [
            listed(1, 50, 1, 7),
            listed(1, 40, 1, 7),
            listed(1, 90, 2, 7),
            listed(1, 80, 1, 8),
            listed(3, 70, 1, 7),
            listed(2, 60, 1, 7),
            listed(2, 65, 1, 7),
        ];
        let lineage = [(1, 100), (2, 60)]
            .map(|(log, last)| Incarnation { log_id: Uuid::from_u128(log), last });
        let chosen = |version, digest: u8, refused: &[[u8; 32]], projection| {
            let schema_digest = &[digest; 32];
            let wanted = Wanted { projection, projection_version: version, schema_digest, refused };
            newest(&all, &wanted, &lineage).map(|snapshot| snapshot.cursor.sequence)
        };
        assert_eq!(chosen(1, 7, &[], "inventory"), Some(60), "65 is beyond what 2 has in common");
        assert_eq!(chosen(1, 7, &[[60; 32]], "inventory"), Some(50), "60 was wrong");
        assert_eq!(chosen(2, 7, &[], "inventory"), Some(90));
        assert_eq!(chosen(1, 8, &[], "inventory"), Some(80));
        assert_eq!(chosen(1, 9, &[], "inventory"), None);
        assert_eq!(chosen(1, 7, &[], "orders"), None);
    }
}
