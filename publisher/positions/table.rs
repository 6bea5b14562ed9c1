//! The bytes of positions, and what they say together. Pure but for reading a file.
//!
//! ```text
//! frame    = ( position | removal | start )*
//! position = 1(u8) name session(i64) sequence(i64) log_id(16) chain(32) reported(i64) seen_ms(i64)
//! removal  = 2(u8) name session(i64)
//! start    = 3(u8) name at_ms(i64)      without a name
//! name     = length(u16) text
//! ```
//! Little-endian; format 2 had positions alone, without the byte before them and
//! `seen_ms`, and format 1 no `reported`, either.
//!
//! Of removed receivers one number stays, the highest of their sessions: a receiver
//! that comes back under such a name starts above it, so that nobody who speaks for the
//! removed one is taken for it. A removal without a name carries it through a rewrite.

use std::{collections::BTreeMap, fs, io, path::Path};

use bytes::{Buf as _, BufMut as _};
use uuid::Uuid;

use super::{FILE, Position};
use crate::{
    proto::chain::Cursor,
    publisher::{journal::Format, log::OpenError},
};

/// How the file is told from others.
pub const FORMAT: Format =
    Format { magic: *b"CFPOSIT", version: 3, mark: *b"CFpf", what: "positions" };
const POSITION: u8 = 1;
const REMOVAL: u8 = 2;
const START: u8 = 3;

/// What the frames say.
#[derive(Debug, Default)]
pub struct Table {
    /// The receivers that are known.
    pub positions: BTreeMap<String, Position>,
    /// The highest session of receivers that were removed.
    pub removed: i64,
    /// When the publisher was started, as far back as it matters, rising; milliseconds since
    /// the Unix epoch.
    pub starts: Vec<i64>,
}

/// A frame; `body` writes what is in it.
pub fn frame(body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    FORMAT.frame(&mut frame, body);
    frame
}

fn put_name(name: &str, out: &mut Vec<u8>) {
    out.put_u16_le(name.len() as u16); // names are bounded by `limits`
    out.put_slice(name.as_bytes());
}

/// Writes that a receiver was removed.
pub fn put_removal(name: &str, session: i64, out: &mut Vec<u8>) {
    out.put_u8(REMOVAL);
    put_name(name, out);
    out.put_i64_le(session);
}

/// Writes that the publisher was started.
pub fn put_start(at_ms: i64, out: &mut Vec<u8>) {
    out.put_u8(START);
    put_name("", out);
    out.put_i64_le(at_ms);
}

impl Position {
    /// Writes it.
    pub fn put(&self, out: &mut Vec<u8>) {
        let Position { name, session, acked, reported, seen_ms } = self;
        out.put_u8(POSITION);
        put_name(name, out);
        out.put_i64_le(*session);
        out.put_i64_le(acked.sequence);
        out.put_slice(acked.log_id.as_bytes());
        out.put_slice(&acked.chain);
        out.put_i64_le(*reported);
        out.put_i64_le(*seen_ms);
    }
}

impl Table {
    /// What the file of a directory says; None where there is none.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn read(dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = dir.join(FILE);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(OpenError::io("read", &path, error)),
        };
        let mut table = Table::default();
        FORMAT.read(&path, &content[..], |version, body| table.note(version, body))?;
        Ok(Some(table))
    }

    /// All of it as one frame.
    pub fn frame(&self) -> Vec<u8> {
        frame(|out| {
            if self.removed > 0 {
                put_removal("", self.removed, out);
            }
            self.starts.iter().for_each(|&at_ms| put_start(at_ms, out));
            self.positions.values().for_each(|position| position.put(out));
        })
    }

    /// Forgets a receiver, but not its last session.
    pub fn remove(&mut self, name: &str, session: i64) {
        self.positions.remove(name);
        self.removed = self.removed.max(session);
    }

    /// Takes note of what a frame says; None where that makes no sense.
    pub fn note(&mut self, version: u8, mut body: &[u8]) -> Option<()> {
        while !body.is_empty() {
            let kind = if version < 3 { POSITION } else { body.try_get_u8().ok()? };
            let length = body.try_get_u16_le().ok()? as usize;
            let name = std::str::from_utf8(body.split_off(..length)?).ok()?.to_owned();
            let number = body.try_get_i64_le().ok()?;
            match kind {
                POSITION => {
                    let position = position(version, name, number, &mut body)?;
                    self.positions.insert(position.name.clone(), position);
                }
                REMOVAL => self.remove(&name, number),
                START => self.starts.push(number),
                _ => return None,
            }
        }
        Some(())
    }
}

fn position(version: u8, name: String, session: i64, rest: &mut &[u8]) -> Option<Position> {
    let sequence = rest.try_get_i64_le().ok()?;
    let mut log_id = [0; 16];
    rest.try_copy_to_slice(&mut log_id).ok()?;
    let mut chain = [0; 32];
    rest.try_copy_to_slice(&mut chain).ok()?;
    let reported = if version < 2 { -1 } else { rest.try_get_i64_le().ok()? };
    let seen_ms = if version < 3 { 0 } else { rest.try_get_i64_le().ok()? };
    let acked = Cursor { log_id: Uuid::from_bytes(log_id), sequence, chain };
    Some(Position { name, session, acked, reported, seen_ms })
}
