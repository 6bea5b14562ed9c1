//! The keys of one table, with what is wrong about them noted in the same words everywhere.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::receiver::declared::{
    flaw::{Flaws, listed, meant},
    text::{Text, line_of},
};

/// A table of the file.
pub(super) struct Fields<'d> {
    source: &'d str,
    /// Where it stands; empty: it is the file.
    place: String,
    line: usize,
    table: &'d DeTable<'d>,
}

impl<'d> Fields<'d> {
    /// The whole file.
    pub(super) fn root(source: &'d str, root: &'d Spanned<DeTable<'d>>) -> Self {
        Fields { source, place: String::new(), line: 1, table: root.get_ref() }
    }

    /// Where it stands.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The line that it begins on.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// The place of a key.
    pub(super) fn at(&self, key: &str) -> String {
        if self.place.is_empty() { key.to_owned() } else { format!("{}.{key}", self.place) }
    }

    /// Whether a key is there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// The line of a key's value, or that of the table.
    pub(super) fn line_of(&self, key: &str) -> usize {
        self.table.get(key).map_or(self.line, |value| line_of(self.source, value.span().start))
    }

    /// Notes every key that is not one of these.
    pub(super) fn only(&self, known: &[&str], flaws: &mut Flaws) {
        for key in self.table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let name = key.get_ref().as_ref();
            let near = meant(name, known.iter().copied());
            flaws.add(
                line_of(self.source, key.span().start),
                self.at(name),
                format!("is no key of this format; there are: {}{near}", listed(known)),
            );
        }
    }

    /// Notes that a key is missing.
    pub(super) fn missing(&self, key: &str, what: &str, flaws: &mut Flaws) {
        flaws.add(self.line, self.at(key), format!("is missing; {what} was expected"));
    }

    fn wrong(&self, key: &str, found: &Spanned<DeValue<'_>>, expected: &str, flaws: &mut Flaws) {
        let line = line_of(self.source, found.span().start);
        let message = format!("is {}; {expected} was expected", described(found.get_ref()));
        flaws.add(line, key, message);
    }

    fn text_of(&self, value: &Spanned<DeValue<'_>>, text: &str) -> Text {
        Text::read(self.source, value.span(), text)
    }

    /// A text that may be left out.
    pub(super) fn text(&self, key: &str, flaws: &mut Flaws) -> Option<Text> {
        let value = self.table.get(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(self.text_of(value, text)),
            _ => {
                self.wrong(&self.at(key), value, "text in quotes", flaws);
                None
            }
        }
    }

    /// A text that has to be there.
    pub(super) fn needed(&self, key: &str, what: &str, flaws: &mut Flaws) -> Option<Text> {
        if !self.has(key) {
            self.missing(key, what, flaws);
        }
        self.text(key, flaws)
    }

    /// Texts, each with its place; a text alone where `alone` allows it.
    pub(super) fn texts(&self, key: &str, alone: bool, flaws: &mut Flaws) -> Vec<Text> {
        let Some(value) = self.table.get(key) else { return Vec::new() };
        match value.get_ref() {
            DeValue::String(text) if alone => vec![self.text_of(value, text)],
            DeValue::Array(list) => {
                let mut texts = Vec::new();
                for (n, item) in list.iter().enumerate() {
                    match item.get_ref() {
                        DeValue::String(text) => texts.push(self.text_of(item, text)),
                        _ => {
                            let place = format!("{}[{n}]", self.at(key));
                            self.wrong(&place, item, "text in quotes", flaws);
                        }
                    }
                }
                texts
            }
            _ => {
                let expected = if alone { "text, or a list of texts," } else { "a list of texts" };
                self.wrong(&self.at(key), value, expected, flaws);
                Vec::new()
            }
        }
    }

    /// A whole number.
    pub(super) fn integer(&self, key: &str, flaws: &mut Flaws) -> Option<i64> {
        let value = self.table.get(key)?;
        let number = whole(value.get_ref());
        if number.is_none() {
            self.wrong(&self.at(key), value, "a whole number of 64 bits", flaws);
        }
        number
    }

    /// Any number.
    pub(super) fn number(&self, key: &str, flaws: &mut Flaws) -> Option<f64> {
        let value = self.table.get(key)?;
        let number = match value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok().filter(|n: &f64| n.is_finite()),
            other => whole(other).map(|whole| whole as f64),
        };
        if number.is_none() {
            self.wrong(&self.at(key), value, "a number", flaws);
        }
        number
    }

    /// One of some words.
    pub(super) fn choice<T: Clone>(
        &self,
        key: &str,
        choices: &[(&str, T)],
        flaws: &mut Flaws,
    ) -> Option<T> {
        let text = self.text(key, flaws)?;
        let chosen = choices.iter().find(|(word, _)| *word == text.text);
        if chosen.is_none() {
            let words = choices.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>();
            let message = format!("is {:?}; {} was expected", text.text, words.join(" or "));
            flaws.add(text.line_at(0), self.at(key), message);
        }
        chosen.map(|(_, value)| value.clone())
    }

    /// How many rows: a number, "any", or a list of them.
    pub(super) fn rows(&self, key: &str, flaws: &mut Flaws) -> Option<super::Rows> {
        let value = self.table.get(key)?;
        let DeValue::Array(list) = value.get_ref() else {
            return self.row_count(&self.at(key), value, flaws).map(super::Rows::Each);
        };
        let counts = list.iter().enumerate().map(|(n, item)| {
            self.row_count(&format!("{}[{n}]", self.at(key)), item, flaws).unwrap_or_default()
        });
        Some(super::Rows::List(counts.collect()))
    }

    fn row_count(
        &self,
        place: &str,
        value: &Spanned<DeValue<'_>>,
        flaws: &mut Flaws,
    ) -> Option<Option<u64>> {
        let count = match value.get_ref() {
            DeValue::String(text) if text == "any" => Some(None),
            other => whole(other).and_then(|rows| u64::try_from(rows).ok()).map(Some),
        };
        if count.is_none() {
            self.wrong(place, value, "a number of rows, such as 1, or \"any\"", flaws);
        }
        count
    }

    /// A table: `[key]`.
    pub(super) fn table(&self, key: &str, flaws: &mut Flaws) -> Option<Fields<'d>> {
        let value = self.table.get(key)?;
        let table = self.within(value, self.at(key));
        if table.is_none() {
            self.wrong(&self.at(key), value, &format!("a table, [{}]", self.at(key)), flaws);
        }
        table
    }

    /// A list of tables: `[[key]]`, or `key = [{…}]` within another.
    pub(super) fn tables(&self, key: &str, flaws: &mut Flaws) -> Vec<Fields<'d>> {
        let Some(value) = self.table.get(key) else { return Vec::new() };
        let written = if self.place.is_empty() {
            format!("a list of tables, [[{key}]] in double brackets,")
        } else {
            format!("a list of tables, {key} = [{{ … }}],")
        };
        let DeValue::Array(list) = value.get_ref() else {
            self.wrong(&self.at(key), value, &written, flaws);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (n, item) in list.iter().enumerate() {
            let place = format!("{}[{n}]", self.at(key));
            match self.within(item, place.clone()) {
                Some(table) => tables.push(table),
                None => self.wrong(&place, item, "a table", flaws),
            }
        }
        tables
    }

    fn within(&self, value: &'d Spanned<DeValue<'d>>, place: String) -> Option<Fields<'d>> {
        let DeValue::Table(table) = value.get_ref() else { return None };
        let line = line_of(self.source, value.span().start);
        Some(Fields { source: self.source, place, line, table })
    }

    /// The same table under another place.
    pub(super) fn placed(&self, place: String) -> Fields<'d> {
        Fields { place, source: self.source, line: self.line, table: self.table }
    }
}

fn whole(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// What a value is, in words.
fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", text.as_ref()),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
