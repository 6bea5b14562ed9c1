//! `[[query]]`: what callers may ask.

use super::{Query, fields::Fields, is_parameter, without_field};
use crate::{
    proto::wire,
    receiver::declared::{flaw::Flaws, text::Text},
};

pub(super) fn read(queries: &[Fields<'_>], flaws: &mut Flaws) -> Vec<Query> {
    let mut read: Vec<Query> = Vec::new();
    for fields in queries {
        let query = one(fields, flaws);
        let same = |other: &&Query| other.name == query.name && !query.name.is_empty();
        if let Some(other) = read.iter().find(same) {
            let message = format!("has the name of the query in line {}; take another", other.line);
            flaws.add(query.line, query.place.clone(), message);
        }
        read.push(query);
    }
    read
}

fn one(fields: &Fields<'_>, flaws: &mut Flaws) -> Query {
    let name = fields.needed("name", "the name that callers ask it by", flaws);
    let place =
        name.as_ref().map_or(fields.place().to_owned(), |name| format!("query[{}]", name.text));
    let fields = fields.placed(place);
    fields.only(&["name", "parameters", "sql", "description", "page_by"], flaws);
    if let Some(name) = &name
        && let Err(wrong) = wire::name(&name.text, "name")
    {
        flaws.add(name.line_at(0), fields.at("name"), without_field(&wrong.message));
    }
    let parameters = parameters(&fields, flaws);
    Query {
        place: fields.place().to_owned(),
        line: fields.line(),
        name: name.unwrap_or_default().text,
        parameters,
        sql: fields.needed("sql", "one statement that reads", flaws),
        description: fields
            .text("description", flaws)
            .map(|text: Text| text.text)
            .unwrap_or_default(),
        page_by: fields.texts("page_by", false, flaws),
    }
}

/// Those that are written rightly, or nearly so.
fn parameters(fields: &Fields<'_>, flaws: &mut Flaws) -> Vec<Text> {
    let mut read: Vec<Text> = Vec::new();
    for mut parameter in fields.texts("parameters", false, flaws) {
        let (line, place) = (parameter.line_at(0), fields.at("parameters"));
        if let Some(bare) = parameter.text.strip_prefix(':') {
            let message = format!("has \":{bare}\"; write it here without the colon: {bare:?}");
            flaws.add(line, place.as_str(), message);
            parameter.text = bare.to_owned();
        }
        let written = parameter.text.as_str();
        if !is_parameter(written) {
            let message = format!("has {written:?}; letters, digits and '_' were expected");
            flaws.add(line, place, message);
        } else if is_reserved(written) {
            let message = format!(
                "has {written:?}; names that begin with counterfoil_ are the receiver's own, which \
                 asks for pages by them; give it another name"
            );
            flaws.add(line, place, message);
            read.push(parameter);
        } else if read.iter().any(|other| other.text == written) {
            flaws.add(line, place, format!("has {written:?} twice; once is enough"));
        } else {
            read.push(parameter);
        }
    }
    read
}

fn is_reserved(text: &str) -> bool {
    let prefix = "counterfoil_";
    text.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
}
