//! Stored events as frames of a Replay: filtered, in the form asked for, small
//! enough. In the form in which they are stored they are passed on as they are. Pure.

use bytes::Bytes;
use prost::Message as _;
use uuid::Uuid;

use super::log::Entry;
use crate::proto::{
    chain::Cursor,
    event::Sequence,
    limits::*,
    refusal::Refusal,
    stored::ReplayBatch,
    wire::{self, DataForm},
};

/// Which events a caller wants, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Only these types; empty: all.
    pub types: Vec<String>,
    /// How payloads are shown.
    pub form: DataForm,
}

/// Frames made of stored entries.
#[derive(Debug)]
pub struct Packed {
    /// In order. The last has the cursor at the last entry looked at.
    pub batches: Vec<ReplayBatch>,
    /// The same cursor.
    pub cursor: Cursor,
    /// Events in the frames.
    pub events: u64,
}

/// Packs entries from a sequence on, at least one, into frames: with `left`
/// events at most, where that is set, and no entry is looked at behind the last.
///
/// # Errors
/// CORRUPT.
pub fn pack(
    log_id: Uuid,
    from: Sequence,
    entries: &[Entry],
    shape: &Shape,
    left: Option<u64>,
) -> Result<Packed, Refusal> {
    let mut batches = Vec::new();
    let (mut batch, mut bytes) = (ReplayBatch::default(), 0);
    batch.events.reserve(entries.len().min(FRAME_EVENTS));
    let mut events = 0;
    let mut cursor = Cursor::beginning(log_id);
    for (sequence, entry) in (from..).zip(entries) {
        let shaped = shape.apply(entry).map_err(|refusal| refusal.with("sequence", sequence))?;
        if let Some(event) = shaped {
            let length = event.len();
            let full = bytes + length > FRAME_BYTES || batch.events.len() == FRAME_EVENTS;
            if full && !batch.events.is_empty() {
                // A frame is full: it ends before this event.
                batch.cursor = Some(wire::cursor_message(&cursor));
                batches.push(std::mem::take(&mut batch));
                bytes = 0;
            }
            batch.events.push(event);
            bytes += length;
            events += 1;
        }
        cursor = Cursor { log_id, sequence, chain: entry.chain };
        if left == Some(events) {
            break;
        }
    }
    batch.cursor = Some(wire::cursor_message(&cursor));
    batches.push(batch);
    Ok(Packed { batches, cursor, events })
}

impl Shape {
    /// The event's bytes as they are sent; none: it is not asked for.
    fn apply(&self, entry: &Entry) -> Result<Option<Bytes>, Refusal> {
        let stored = self.form == DataForm::Stored;
        if stored && self.types.is_empty() {
            return Ok(Some(entry.body.clone()));
        }
        let event = wire::decode_stored(entry.body.clone())?;
        if !self.types.is_empty() && !self.types.contains(&event.r#type) {
            return Ok(None);
        }
        if stored {
            return Ok(Some(entry.body.clone()));
        }
        let shaped = wire::in_form(event, self.form).encode_to_vec();
        // Small numbers in long lists take several times their text's bytes. A form
        // that would not fit a frame gives way to the stored one.
        if self.form == DataForm::Json && shaped.len() > MAX_FRAME_BYTES - FRAME_BYTES {
            return Ok(Some(entry.body.clone()));
        }
        Ok(Some(shaped.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::event::{Event, Time},
        publisher::testing::with_data,
    };

    const LOG: Uuid = Uuid::from_u128(1);

    /// Events of types a, b, a, b, … with this payload.
    fn entries(count: usize, data: &str) -> Vec<Entry> {
        (0..count as i64)
            .map(|sequence| {
                let mut intent = with_data(&format!("k{sequence}"), "camera", data);
                intent.event_type = if sequence % 2 == 0 { "a" } else { "b" }.into();
                let accept_time = Time { seconds: 0, nanos: 0 };
                let event = Event { sequence, subject_version: 1, accept_time, intent };
                Entry { chain: [sequence as u8; 32], accepted_at_ms: 0, body: wire::stored(&event) }
            })
            .collect()
    }

    fn shape(types: &[&str], form: DataForm) -> Shape {
        Shape { types: types.iter().map(|&name| name.to_owned()).collect(), form }
    }

    fn sequence(event: &Bytes) -> i64 {
        wire::decode_stored(event.clone()).expect("an event").sequence()
    }

    fn sequences(packed: &Packed) -> Vec<Vec<i64>> {
        packed.batches.iter().map(|batch| batch.events.iter().map(sequence).collect()).collect()
    }

    #[test]
    fn cursors_move_over_what_is_filtered() {
        let entries = entries(5, "{}");
        let pack = |types: &[&str], left| {
            pack(LOG, 0, &entries, &shape(types, DataForm::Stored), left).expect("readable")
        };
        // (types, limit, events, cursor)
        let cases: [(&[&str], _, &[i64], i64); 6] = [
            (&[], None, &[0, 1, 2, 3, 4], 4),
            (&["b"], None, &[1, 3], 4),
            (&["c"], None, &[], 4),
            (&[], Some(2), &[0, 1], 1),
            (&["b"], Some(2), &[1, 3], 3),
            (&["b", "a"], Some(9), &[0, 1, 2, 3, 4], 4),
        ];
        for (types, left, events, cursor) in cases {
            let packed = pack(types, left);
            assert_eq!(sequences(&packed), [events], "{types:?} {left:?}");
            assert_eq!(packed.cursor.sequence, cursor, "{types:?} {left:?}");
            assert_eq!(packed.cursor.chain, [cursor as u8; 32]);
            assert_eq!(packed.events, events.len() as u64);
        }
    }

    #[test]
    fn a_frame_is_closed_once_it_is_full() {
        let lengths = |entries: &[Entry]| {
            let shape = shape(&[], DataForm::Stored);
            let packed = pack(LOG, 0, entries, &shape, None).expect("readable");
            packed.batches.iter().map(|batch| batch.events.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&entries(2 * FRAME_EVENTS + 1, "{}")), [FRAME_EVENTS, FRAME_EVENTS, 1]);
        let half = format!("\"{}\"", "x".repeat(FRAME_BYTES / 2));
        assert_eq!(lengths(&entries(3, &half)), [1, 1, 1]);
        let third = format!("\"{}\"", "x".repeat(FRAME_BYTES / 3 - 500));
        assert_eq!(lengths(&entries(7, &third)), [3, 3, 1]);
    }

    #[test]
    fn no_frame_is_too_large_in_any_form() {
        let list = format!("{{\"n\":[{}1]}}", "1,".repeat((MAX_DATA_BYTES - 100) / 2));
        let entries = entries(3, &list);
        for form in [DataForm::Stored, DataForm::Json, DataForm::Binary] {
            let packed = pack(LOG, 0, &entries, &shape(&[], form), None).expect("readable");
            assert_eq!(sequences(&packed), [[0], [1], [2]], "{form:?}");
            for (index, batch) in packed.batches.iter().enumerate() {
                assert!(batch.encoded_len() <= MAX_FRAME_BYTES, "{form:?}");
                let cursor = batch.cursor.as_ref().expect("always set");
                assert_eq!(cursor.sequence(), index as i64);
            }
        }
    }
}
