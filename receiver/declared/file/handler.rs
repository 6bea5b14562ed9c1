//! `[[on]]`: types, rules, statements, what follows.

use super::{Emission, ExpectRows, Handler, Rule, fields::Fields, requirement};
use crate::{
    proto::limits::{MAX_REASON_BYTES, MAX_TYPE_BYTES},
    receiver::{
        declared::{flaw::Flaws, spec::TypePattern, text::Text},
        follow_up,
    },
};

/// Why an event is rejected whose key came before with other content.
const KEY_CONFLICT: &str = "key_conflict";

const KEYS: [&str; 7] =
    ["type", "require", "reject_unless", "sql", "expect_rows", "result", "emit"];

pub(super) fn read(on: &Fields<'_>, flaws: &mut Flaws) -> Handler {
    on.only(&KEYS, flaws);
    if !on.has("type") {
        on.missing("type", "the type of event that it takes, such as \"stock.adjusted\",", flaws);
    }
    let types = on.texts("type", true, flaws);
    if types.is_empty() && on.has("type") {
        flaws.add(on.line_of("type"), on.at("type"), "names no type; one at least was expected");
    }
    let types = types.iter().filter_map(|text| pattern(text, &on.at("type"), flaws)).collect();
    Handler {
        place: on.place().to_owned(),
        types,
        require: requirement::read(&on.tables("require", flaws), flaws),
        reject_unless: on.tables("reject_unless", flaws).iter().map(|r| rule(r, flaws)).collect(),
        sql: on.texts("sql", true, flaws),
        expect_rows: on
            .rows("expect_rows", flaws)
            .map(|rows| ExpectRows { line: on.line_of("expect_rows"), rows }),
        result: on.text("result", flaws),
        emit: on.tables("emit", flaws).iter().map(|follows| emission(follows, flaws)).collect(),
    }
}

fn pattern(text: &Text, place: &str, flaws: &mut Flaws) -> Option<(TypePattern, usize)> {
    let line = text.line_at(0);
    let written = text.text.as_str();
    let wrong = if written.is_empty() {
        Some(
            "is empty; a type such as \"stock.adjusted\", or \"*\" for all, was expected"
                .to_owned(),
        )
    } else if written.len() > MAX_TYPE_BYTES {
        Some(format!("has {} bytes; types have at most {MAX_TYPE_BYTES}", written.len()))
    } else {
        let rest = written.strip_suffix('*').unwrap_or(written);
        rest.contains('*').then(|| {
            format!(
                "is {written:?}; * stands for the rest of a type, so only at its end: \"stock.*\""
            )
        })
    };
    if let Some(wrong) = wrong {
        flaws.add(line, place, wrong);
        return None;
    }
    let pattern = match written.strip_suffix('*') {
        Some(prefix) => TypePattern::Prefix(prefix.to_owned()),
        None => TypePattern::Exact(written.to_owned()),
    };
    Some((pattern, line))
}

/// No type is taken twice.
pub(super) fn compare(handlers: &[Handler], flaws: &mut Flaws) {
    let mut seen: Vec<(&TypePattern, &str)> = Vec::new();
    for handler in handlers {
        for (pattern, line) in &handler.types {
            if let Some((_, by)) = seen.iter().find(|(known, _)| *known == pattern) {
                let written = match pattern {
                    TypePattern::Exact(name) => name.clone(),
                    TypePattern::Prefix(prefix) => format!("{prefix}*"),
                };
                let message = format!(
                    "{written:?} is taken by {by} already; one handler has all that is done with a \
                     type, its statements run in their order"
                );
                flaws.add(*line, format!("{}.type", handler.place), message);
            }
            seen.push((pattern, &handler.place));
        }
    }
}

fn rule(fields: &Fields<'_>, flaws: &mut Flaws) -> Rule {
    fields.only(&["row", "reason", "result"], flaws);
    let row = fields.needed("row", "a query that gives a row unless the event is rejected", flaws);
    let reason = fields.needed("reason", "a word such as \"unknown_item\"", flaws);
    if let Some(reason) = &reason {
        check_reason(reason, fields, flaws);
    }
    Rule {
        place: fields.place().to_owned(),
        row,
        reason: reason.unwrap_or_default().text,
        result: fields.text("result", flaws),
    }
}

fn check_reason(reason: &Text, fields: &Fields<'_>, flaws: &mut Flaws) {
    let written = reason.text.as_str();
    let wrong = if written == KEY_CONFLICT {
        format!("is {KEY_CONFLICT:?}, which the receiver says itself; take another word")
    } else if is_word(written) && written.len() <= MAX_REASON_BYTES {
        return;
    } else {
        format!(
            "is {written:?}; programs branch on it, so a word of letters, digits, '_', '-' and \
             '.' was expected, at most {MAX_REASON_BYTES} bytes"
        )
    };
    flaws.add(reason.line_at(0), fields.at("reason"), wrong);
}

fn emission(fields: &Fields<'_>, flaws: &mut Flaws) -> Emission {
    fields.only(&["name", "type", "query"], flaws);
    let name = fields.needed("name", "a name for this kind of follow-up", flaws);
    if let Some(name) = name.as_ref().filter(|name| !is_word(&name.text)) {
        let message = format!(
            "is {:?}; the follow-up's key is made of it, so a word of letters, digits, '_', '-' \
             and '.' was expected",
            name.text
        );
        flaws.add(name.line_at(0), fields.at("name"), message);
    } else if let Some(name) = &name
        && let Err(wrong) = follow_up::check_name(&name.text)
    {
        flaws.add(name.line_at(0), fields.at("name"), wrong);
    }
    let event_type = fields.text("type", flaws);
    if let Some(text) = &event_type {
        let wrong = if text.text.is_empty() || text.text.len() > MAX_TYPE_BYTES {
            Some(format!("has {} bytes; 1 to {MAX_TYPE_BYTES} were expected", text.text.len()))
        } else if text.text.starts_with("counterfoil.") {
            Some("begins with counterfoil., which is the publisher's own; take another".to_owned())
        } else {
            None
        };
        if let Some(wrong) = wrong {
            flaws.add(text.line_at(0), fields.at("type"), wrong);
        }
    }
    Emission {
        place: fields.place().to_owned(),
        line: fields.line(),
        name: name.unwrap_or_default().text,
        event_type: event_type.map(|text| text.text),
        query: fields.needed("query", "a query whose rows are events", flaws),
    }
}

/// Letters, digits and a few marks.
fn is_word(text: &str) -> bool {
    let within = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    !text.is_empty() && text.chars().all(within)
}
