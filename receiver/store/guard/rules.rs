//! What each mode may do, by SQLite's words for what a statement does. Pure. What is not
//! known is refused.

use rusqlite::hooks::{AuthAction, AuthContext};

use super::{Mode, functions};

/// Table-valued functions whose rows follow from their arguments alone. All others show
/// settings, files or the schema.
pub const READABLE_MODULES: [&str; 4] = ["json_each", "json_tree", "jsonb_each", "jsonb_tree"];

/// Of the others, those that can be read without being made first. Beside them is
/// everything that begins with `pragma_`.
const OTHER_MODULES: [&str; 6] =
    ["dbstat", "fts3tokenize", "bytecode", "tables_used", "completion", "carray"];

/// What is refused of an action; none: it is allowed.
pub fn refusal(mode: Mode, context: &AuthContext<'_>) -> Option<String> {
    match mode {
        Mode::Own => None,
        Mode::Query => read(mode, &context.action).unwrap_or_else(|| Some(words(&context.action))),
        Mode::Handler => read(mode, &context.action)
            .or_else(|| written(&context.action))
            .unwrap_or_else(|| Some(words(&context.action))),
        Mode::Migration => internal(&context.action)
            .or_else(|| read(mode, &context.action))
            .or_else(|| written(&context.action))
            .or_else(|| declared(&context.action))
            .unwrap_or_else(|| Some(words(&context.action))),
    }
}

/// What is said of an action: allowed, refused in these words, or (none) not known here.
type Judged = Option<Option<String>>;

/// Reading, in all modes.
fn read(mode: Mode, action: &AuthAction<'_>) -> Judged {
    Some(match action {
        AuthAction::Select | AuthAction::Recursive => None,
        AuthAction::Read { table_name, .. } => {
            (!readable(table_name)).then(|| format!("a read of {table_name}"))
        }
        AuthAction::Function { function_name } => {
            let refused = match mode {
                Mode::Query => functions::has_effects(function_name),
                _ => !functions::is_deterministic(function_name),
            };
            refused.then(|| format!("the function {}()", function_name.to_ascii_lowercase()))
        }
        _ => return None,
    })
}

/// Rows of the projection's own tables.
fn written(action: &AuthAction<'_>) -> Judged {
    Some(match action {
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name } => (!own(table_name)).then(|| words(action)),
        _ => return None,
    })
}

/// The projection's own tables, indexes, views and triggers; none of them temporary or
/// virtual.
fn declared(action: &AuthAction<'_>) -> Judged {
    Some(match action {
        AuthAction::CreateTable { table_name: name }
        | AuthAction::DropTable { table_name: name }
        | AuthAction::CreateView { view_name: name }
        | AuthAction::DropView { view_name: name } => (!own(name)).then(|| words(action)),
        AuthAction::CreateIndex { index_name: name, table_name }
        | AuthAction::DropIndex { index_name: name, table_name }
        | AuthAction::CreateTrigger { trigger_name: name, table_name }
        | AuthAction::DropTrigger { trigger_name: name, table_name } => {
            // SQLite names the indexes itself that stand behind UNIQUE and PRIMARY KEY.
            let named = own(name) || begins(name, "sqlite_autoindex_");
            (!named || !own(table_name)).then(|| words(action))
        }
        AuthAction::AlterTable { database_name, table_name } => {
            let main = database_name.eq_ignore_ascii_case("main");
            (!main || !own(table_name)).then(|| words(action))
        }
        // What CREATE INDEX does once the index is there.
        AuthAction::Reindex { index_name } => (!own(index_name)).then(|| words(action)),
        _ => return None,
    })
}

/// What SQLite does by itself while it makes or changes a table: the schema's own tables,
/// which no statement of anybody else can write to, the counters of AUTOINCREMENT, functions
/// that nobody else can call, and a look at the rows that a new column's constraints concern.
fn internal(action: &AuthAction<'_>) -> Judged {
    let known = match action {
        AuthAction::Insert { table_name } | AuthAction::Delete { table_name } => {
            is(table_name, "sqlite_master") || is(table_name, "sqlite_sequence")
        }
        AuthAction::Update { table_name, .. } | AuthAction::Read { table_name, .. } => {
            ["sqlite_master", "sqlite_temp_master", "sqlite_sequence", "pragma_quick_check"]
                .iter()
                .any(|known| is(table_name, known))
        }
        AuthAction::CreateTable { table_name } => is(table_name, "sqlite_sequence"),
        AuthAction::Pragma { pragma_name, .. } => is(pragma_name, "quick_check"),
        AuthAction::Function { function_name } => {
            begins(function_name, "sqlite_rename_")
                || ["sqlite_drop_column", "sqlite_drop_constraint", "sqlite_add_constraint"]
                    .iter()
                    .chain(&["sqlite_fail", "sqlite_find_constraint"])
                    .any(|known| is(function_name, known))
        }
        _ => false,
    };
    known.then_some(None)
}

fn is(name: &str, known: &str) -> bool {
    name.eq_ignore_ascii_case(known)
}

fn begins(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
}

/// Neither the receiver's nor SQLite's.
fn own(name: &str) -> bool {
    !begins(name, "counterfoil_") && !begins(name, "sqlite_")
}

fn readable(name: &str) -> bool {
    own(name) && !begins(name, "pragma_") && !OTHER_MODULES.iter().any(|module| is(name, module))
}

/// An action, as people write it.
fn words(action: &AuthAction<'_>) -> String {
    match action {
        AuthAction::CreateIndex { index_name, .. } => format!("CREATE INDEX {index_name}"),
        AuthAction::CreateTable { table_name } => format!("CREATE TABLE {table_name}"),
        AuthAction::CreateTempIndex { index_name, .. } => format!("CREATE TEMP INDEX {index_name}"),
        AuthAction::CreateTempTable { table_name } => format!("CREATE TEMP TABLE {table_name}"),
        AuthAction::CreateTempTrigger { trigger_name, .. } => {
            format!("CREATE TEMP TRIGGER {trigger_name}")
        }
        AuthAction::CreateTempView { view_name } => format!("CREATE TEMP VIEW {view_name}"),
        AuthAction::CreateTrigger { trigger_name, table_name } => {
            format!("CREATE TRIGGER {trigger_name} on {table_name}")
        }
        AuthAction::CreateView { view_name } => format!("CREATE VIEW {view_name}"),
        AuthAction::CreateVtable { table_name, .. } => format!("CREATE VIRTUAL TABLE {table_name}"),
        AuthAction::DropIndex { index_name, .. } | AuthAction::DropTempIndex { index_name, .. } => {
            format!("DROP INDEX {index_name}")
        }
        AuthAction::DropTable { table_name }
        | AuthAction::DropTempTable { table_name }
        | AuthAction::DropVtable { table_name, .. } => format!("DROP TABLE {table_name}"),
        AuthAction::DropTrigger { trigger_name, .. }
        | AuthAction::DropTempTrigger { trigger_name, .. } => {
            format!("DROP TRIGGER {trigger_name}")
        }
        AuthAction::DropView { view_name } | AuthAction::DropTempView { view_name } => {
            format!("DROP VIEW {view_name}")
        }
        AuthAction::AlterTable { table_name, .. } => format!("ALTER TABLE {table_name}"),
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name }
            if is(table_name, "sqlite_master") =>
        {
            "a change of the schema".to_owned()
        }
        AuthAction::Insert { table_name } if is(table_name, "sqlite_temp_master") => {
            "TEMP".to_owned()
        }
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name } => format!("a write to {table_name}"),
        AuthAction::Pragma { pragma_name, .. } => format!("PRAGMA {pragma_name}"),
        AuthAction::Transaction { .. } => "transaction control".to_owned(),
        AuthAction::Savepoint { .. } => "SAVEPOINT".to_owned(),
        AuthAction::Attach { .. } => "ATTACH".to_owned(),
        AuthAction::Detach { .. } => "DETACH".to_owned(),
        AuthAction::Reindex { .. } => "REINDEX".to_owned(),
        AuthAction::Analyze { .. } => "ANALYZE".to_owned(),
        // ATTACH of something that is only known when it is run.
        AuthAction::Unknown { code: rusqlite::ffi::SQLITE_ATTACH, .. } => "ATTACH".to_owned(),
        _ => "what SQLite does not name".to_owned(),
    }
}
