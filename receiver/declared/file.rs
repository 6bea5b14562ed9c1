//! A projection file as TOML, read into what each part says. Knows the format and nothing of
//! SQL: what stands in a statement is looked at by `check`. Everything that is wrong is
//! noted, not only the first; what could not be read is left at a value that does no harm,
//! since no projection is made of a file with a flaw.

mod fields;
mod handler;
mod query;
mod requirement;

use toml::de::DeTable;

use self::fields::Fields;
use super::{
    flaw::Flaws,
    spec::{FieldKind, OnUnknownType, TypePattern},
    text::{Text, line_of},
};
use crate::{proto::wire, receiver::projection::Upgrade};

/// What a file says.
#[derive(Debug, Default)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: i64,
    /// What becomes of an event that no handler takes.
    pub on_unknown_type: OnUnknownType,
    /// What a database that an earlier version has filled gets.
    pub upgrade: Upgrade,
    /// The texts of its migrations.
    pub migrations: Vec<Text>,
    /// What it does with events.
    pub handlers: Vec<Handler>,
    /// What callers may ask.
    pub queries: Vec<Query>,
}

/// `[[on]]`.
#[derive(Debug, Default)]
pub struct Handler {
    /// `on[1]`.
    pub place: String,
    /// The types it takes, each with its line.
    pub types: Vec<(TypePattern, usize)>,
    /// What the payload has to have.
    pub require: Vec<Requirement>,
    /// Business rules.
    pub reject_unless: Vec<Rule>,
    /// Texts of statements.
    pub sql: Vec<Text>,
    /// How many rows they change.
    pub expect_rows: Option<ExpectRows>,
    /// Gives the ledger's result.
    pub result: Option<Text>,
    /// What follows.
    pub emit: Vec<Emission>,
}

/// One of `require`.
#[derive(Debug)]
pub struct Requirement {
    /// `on[1].require[0]`.
    pub place: String,
    /// A JSON pointer.
    pub field: String,
    /// What stands there; none: anything.
    pub kind: Option<FieldKind>,
    /// What statements know it by, without the colon.
    pub name: Option<Text>,
}

/// One of `reject_unless`.
#[derive(Debug)]
pub struct Rule {
    /// `on[1].reject_unless[0]`.
    pub place: String,
    /// Must return a row.
    pub row: Option<Text>,
    /// The reason otherwise.
    pub reason: String,
    /// The ledger's result then.
    pub result: Option<Text>,
}

/// `expect_rows`.
#[derive(Debug)]
pub struct ExpectRows {
    /// Where it stands.
    pub line: usize,
    /// What it says.
    pub rows: Rows,
}

/// How many rows statements change; none: any number.
#[derive(Debug)]
pub enum Rows {
    /// Each of them the same.
    Each(Option<u64>),
    /// One number a statement.
    List(Vec<Option<u64>>),
}

/// One of `emit`.
#[derive(Debug)]
pub struct Emission {
    /// `on[1].emit[0]`.
    pub place: String,
    /// Where it stands.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// The type, unless a row says another.
    pub event_type: Option<String>,
    /// Gives the events.
    pub query: Option<Text>,
}

/// `[[query]]`.
#[derive(Debug)]
pub struct Query {
    /// `query[stock]`.
    pub place: String,
    /// Where it stands.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// Its parameters, each with its line.
    pub parameters: Vec<Text>,
    /// What is asked.
    pub sql: Option<Text>,
    /// For people.
    pub description: String,
    /// Columns that tell rows apart.
    pub page_by: Vec<Text>,
}

/// Reads a file; none: it is no TOML.
pub fn read(source: &str, flaws: &mut Flaws) -> Option<File> {
    let (root, broken) = DeTable::parse_recoverable(source);
    if !broken.is_empty() {
        for error in broken {
            let line = error.span().map_or(1, |span| line_of(source, span.start));
            flaws.add(line, "", format!("this is no TOML: {}", error.message()));
        }
        return None;
    }
    let root = Fields::root(source, &root);
    root.only(&["projection", "migration", "on", "query"], flaws);
    let mut file = File::default();
    match root.table("projection", flaws) {
        Some(header) => read_header(&header, &mut file, flaws),
        None if root.has("projection") => {}
        None => flaws.add(
            1,
            "projection",
            "is missing; begin with [projection], name = \"…\" and version = 1",
        ),
    }
    for step in root.tables("migration", flaws) {
        step.only(&["sql"], flaws);
        file.migrations.extend(step.needed("sql", "the statements that make its tables", flaws));
    }
    file.handlers = root.tables("on", flaws).iter().map(|on| handler::read(on, flaws)).collect();
    if file.handlers.is_empty() && !root.has("on") {
        let message = "is missing: nothing is done with any event; write [[on]] with type and sql";
        flaws.add(1, "on", message);
    }
    handler::compare(&file.handlers, flaws);
    file.queries = query::read(&root.tables("query", flaws), flaws);
    Some(file)
}

/// What is said of a name, without the word that says it is one: the place does.
fn without_field(message: &str) -> &str {
    message.strip_prefix("name: ").unwrap_or(message)
}

/// What a name of a parameter is made of.
fn is_parameter(text: &str) -> bool {
    let within = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    !text.is_empty() && text.chars().all(within)
}

fn read_header(header: &Fields<'_>, file: &mut File, flaws: &mut Flaws) {
    header.only(&["name", "version", "on_unknown_type", "upgrade"], flaws);
    if let Some(name) = header.needed("name", "its name", flaws) {
        if let Err(wrong) = wire::name(&name.text, "name") {
            flaws.add(name.line_at(0), header.at("name"), without_field(&wrong.message));
        }
        file.name = name.text;
    }
    match header.integer("version", flaws) {
        Some(version) if version >= 1 => file.version = version,
        Some(version) => flaws.add(
            header.line_of("version"),
            header.at("version"),
            format!("is {version}; versions count from 1"),
        ),
        None if header.has("version") => {}
        None => {
            header.missing("version", "a whole number from 1, a new one for each change", flaws)
        }
    }
    let unknown = [("ignore", OnUnknownType::Ignore), ("halt", OnUnknownType::Halt)];
    file.on_unknown_type = header.choice("on_unknown_type", &unknown, flaws).unwrap_or_default();
    let upgrades = [("migrate", Upgrade::Migrate), ("rebuild", Upgrade::Rebuild)];
    file.upgrade = header.choice("upgrade", &upgrades, flaws).unwrap_or_default();
}
