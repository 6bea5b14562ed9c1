//! Projections that stand in files, on the real binaries: what their tables take in, what
//! stops them, and what a file may not say.

mod bounds;
mod conflicts;
mod faults;
mod payloads;
mod queries;
mod references;
mod shipped;
mod unknown_types;
mod versions;

use std::path::{Path, PathBuf};

use counterfoil::proto::pb::{Failure, NewEvent, QueryRequest, ReceiverState, new_event::Data};
use prost_types::Struct;
use rusqlite::types::FromSql;
use tempfile::TempDir;

use crate::harness::{
    events::event,
    ledger::open,
    pair::directory,
    publisher::Publisher,
    receiver::{Receiver, Setup},
};

/// A publisher that takes every payload, and a receiver with a projection of the story's.
struct Declared {
    receiver: Receiver,
    publisher: Publisher,
    dir: TempDir,
}

impl Declared {
    /// With the projection of this text.
    fn start(text: &str) -> Declared {
        Declared::with(text, |setup| setup)
    }

    /// The same, the receiver set up otherwise.
    fn with(text: &str, configured: impl FnOnce(Setup) -> Setup) -> Declared {
        let dir = directory();
        let publisher = Publisher::at(dir.path()).config("[logs.main]\npayloads = \"any\"").start();
        let setup = Receiver::at(dir.path(), &publisher.url()).projection(file(dir.path(), text));
        Declared { receiver: configured(setup).start(), publisher, dir }
    }

    /// Publishes events one after the other; the sequence of the last one.
    async fn publish(&self, events: impl IntoIterator<Item = NewEvent>) -> i64 {
        let mut last = -1;
        for event in events {
            last = self.publisher.accepts(event).await.sequence.expect("always set");
        }
        last
    }

    /// The same, and waits until the receiver has committed them.
    async fn carries(&self, events: impl IntoIterator<Item = NewEvent>) {
        let last = self.publish(events).await;
        self.receiver.applies(last).await;
    }

    /// Waits until it has halted on an event, and says why.
    async fn halts(&self) -> Failure {
        let status = self.receiver.waits_for_state(ReceiverState::Halted).await;
        let failure = status.failure.expect("says what stopped it");
        assert_eq!(failure.reason, "EVENT_FAILED", "{failure:?}");
        failure
    }

    /// One value out of the database, read beside the receiver.
    fn value<T: FromSql>(&self, sql: &str) -> T {
        value(self.receiver.db(), sql)
    }

    /// Asks a declared query with one text.
    async fn ask(&self, name: &str, parameter: &str, text: &str) -> Vec<Struct> {
        let text = prost_types::Value::from(text);
        let fields = [(parameter.to_owned(), text)].into();
        let parameters = Some(Struct { fields });
        let request = QueryRequest { name: name.into(), parameters, ..Default::default() };
        let answer = self.receiver.client.clone().query(request).await;
        answer.expect("a declared query").into_inner().rows
    }
}

/// Writes a projection file; a later one takes the place of the earlier.
fn file(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("projection.toml");
    std::fs::write(&path, text).expect("written");
    path
}

fn value<T: FromSql>(db: &Path, sql: &str) -> T {
    let value = open(db).query_row(sql, [], |row| row.get(0));
    value.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// `thing.noted` on a subject.
fn noted(key: &str, subject: &str, json: &str) -> NewEvent {
    event(key, "thing.noted", subject, json)
}

/// Bytes instead of JSON.
fn binary(event: NewEvent, bytes: &[u8]) -> NewEvent {
    NewEvent { data: Some(Data::Binary(bytes.to_vec().into())), ..event }
}
