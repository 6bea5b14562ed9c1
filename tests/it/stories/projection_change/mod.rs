//! Another version of a projection on a database that is filled: refused, migrated or
//! rebuilt, through deaths at every place; and tried on a copy before.

mod carried;
mod migrated;
mod rebuilt;
mod tried;
mod verified;

use std::{
    fs,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags};

use crate::harness::{receiver::Receiver, wait::wait_until};

/// What two versions have in common.
const COMMON: &str = r#"
[[migration]]
sql = "CREATE TABLE count (item TEXT NOT NULL PRIMARY KEY, n INTEGER NOT NULL) STRICT, WITHOUT ROWID"

[[on]]
type = "stock.adjusted"
sql = "INSERT INTO count (item, n) VALUES (:subject, 1) ON CONFLICT (item) DO UPDATE SET n = n + 1"

[[query]]
name = "counts"
sql = "SELECT item, n FROM count ORDER BY item"
"#;

/// Sums up what the first version counts: in other tables, for other questions.
const SUMS: &str = r#"
[[migration]]
sql = "CREATE TABLE sum (item TEXT NOT NULL PRIMARY KEY, total INTEGER NOT NULL) STRICT, WITHOUT ROWID"

[[on]]
type = "stock.adjusted"
sql = '''
INSERT INTO sum VALUES (:subject, :data ->> 'delta')
    ON CONFLICT (item) DO UPDATE SET total = total + excluded.total
'''

[[query]]
name = "sums"
sql = "SELECT item, total FROM sum ORDER BY item"
"#;

/// A projection file of this version.
fn file(directory: &Path, version: i64, upgrade: &str, rest: &str) -> PathBuf {
    let path = directory.join(format!("version-{version}-{upgrade}.toml"));
    let head =
        format!("[projection]\nname = \"goods\"\nversion = {version}\nupgrade = \"{upgrade}\"\n");
    fs::write(&path, head + rest).expect("written");
    path
}

fn flag(file: &Path) -> String {
    format!("--projection={}", file.display())
}

/// What a database says, each row as text.
fn rows(db: &Path, sql: &str) -> Vec<String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let tables = Connection::open_with_flags(db, flags).expect("opened");
    let mut select = tables.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let rows = select.query_map([], |row| row.get(0)).expect("readable");
    rows.collect::<Result<_, _>>().expect("texts")
}

/// Waits until a version has taken over.
async fn takes_over(receiver: &Receiver, to: i64) {
    wait_until(&format!("version {to} takes over"), async || {
        let status = receiver.try_status().await.ok()?;
        (status.projection_version == Some(to) && status.rebuild.is_none()).then_some(())
    })
    .await;
}

/// The version that is noted in a database.
fn version(db: &Path) -> String {
    let select = "SELECT value FROM counterfoil_meta WHERE name = 'projection_version'";
    rows(db, select).concat()
}
