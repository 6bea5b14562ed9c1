//! `require`: what a payload has to have.

use super::{Requirement, fields::Fields, is_parameter};
use crate::receiver::declared::{
    flaw::{Flaws, listed},
    spec::{FieldKind, Parameter},
    text::Text,
};

const KINDS: [&str; 6] = ["integer", "number", "text", "boolean", "list", "object"];

pub(super) fn read(requirements: &[Fields<'_>], flaws: &mut Flaws) -> Vec<Requirement> {
    let mut read: Vec<Requirement> = Vec::new();
    for fields in requirements {
        let mut requirement = one(fields, flaws);
        if read.iter().any(|other| other.field == requirement.field) && fields.has("field") {
            let message = format!("{:?} is required above already", requirement.field);
            flaws.add(fields.line_of("field"), fields.at("field"), message);
        }
        let same = |other: &&Requirement| {
            let name = |of: &Requirement| of.name.as_ref().map(|name| name.text.clone());
            name(other).is_some() && name(other) == name(&requirement)
        };
        if let (Some(other), Some(name)) = (read.iter().find(same), &requirement.name) {
            let message =
                format!("is {:?}, the name of {} already; take another", name.text, other.place);
            flaws.add(name.line_at(0), fields.at("as"), message);
            requirement.name = None;
        }
        read.push(requirement);
    }
    read
}

fn one(fields: &Fields<'_>, flaws: &mut Flaws) -> Requirement {
    fields.only(&["field", "type", "min", "max", "as"], flaws);
    let field = fields.needed("field", "a JSON pointer such as \"/delta\"", flaws);
    if let Some(field) = &field
        && let Some(wrong) = wrong_pointer(&field.text)
    {
        flaws.add(field.line_at(0), fields.at("field"), wrong);
    }
    let kind = kind(fields, flaws);
    Requirement {
        place: fields.place().to_owned(),
        field: field.unwrap_or_default().text,
        name: name(fields, kind.as_ref(), flaws),
        kind,
    }
}

/// `as`, where it is written rightly, or nearly so.
fn name(fields: &Fields<'_>, kind: Option<&FieldKind>, flaws: &mut Flaws) -> Option<Text> {
    let mut name = fields.text("as", flaws)?;
    let (line, place) = (name.line_at(0), fields.at("as"));
    let mut add = |message: String| flaws.add(line, place.as_str(), message);
    match kind {
        None if fields.has("type") => {}
        None => {
            add("stands where there is no type, so it is not known what a statement is given; \
                 write type = \"integer\", \"number\", \"text\" or \"boolean\" beside it"
                .to_owned())
        }
        Some(kind) if kind.is_value() => {}
        Some(_) => {
            add("has no meaning for a list or an object, since SQL has no such value; leave it \
                 out, and take what stands within from :data"
                .to_owned())
        }
    }
    if let Some(bare) = name.text.strip_prefix(':') {
        add(format!("is \":{bare}\"; write it here without the colon: {bare:?}"));
        name.text = bare.to_owned();
    }
    let written = name.text.as_str();
    if !is_parameter(written) || written.starts_with(|first: char| first.is_ascii_digit()) {
        add(format!("is {written:?}; letters, digits and '_' were expected, no digit first"));
        return None;
    }
    if Parameter::named(&format!(":{written}")).is_some() {
        add(format!("is {written:?}, but :{written} is the event's own; take another name"));
        return None;
    }
    Some(name)
}

/// Why a text is no JSON pointer (RFC 6901).
fn wrong_pointer(text: &str) -> Option<String> {
    if !text.is_empty() && !text.starts_with('/') {
        let bare = text.trim_start_matches(['$', '.']).replace('.', "/");
        return Some(format!(
            "is {text:?}, no JSON pointer: each step begins with a slash; write \"/{bare}\""
        ));
    }
    let mut steps = text.split('~').skip(1);
    steps.any(|after| !after.starts_with(['0', '1'])).then(|| {
        format!("is {text:?}, no JSON pointer: write ~0 for a ~ in a name, and ~1 for a slash")
    })
}

fn kind(fields: &Fields<'_>, flaws: &mut Flaws) -> Option<FieldKind> {
    let bounded = ["min", "max"].into_iter().find(|key| fields.has(key));
    let Some(written) = fields.text("type", flaws) else {
        if let Some(key) = bounded.filter(|_| !fields.has("type")) {
            let message = "has a bound but no type, so it is not known what is bounded; write type \
                           = \"integer\", \"number\", \"text\" or \"list\" beside it";
            flaws.add(fields.line_of(key), fields.at(key), message);
        }
        return None;
    };
    match written.text.as_str() {
        "integer" => {
            let [min, max] = ["min", "max"].map(|key| fields.integer(key, flaws));
            let (min, max) = (min.unwrap_or(i64::MIN), max.unwrap_or(i64::MAX));
            ordered(fields, min <= max, flaws);
            Some(FieldKind::Integer { min, max })
        }
        "number" => {
            let [min, max] = ["min", "max"].map(|key| fields.number(key, flaws));
            let (min, max) = (min.unwrap_or(f64::MIN), max.unwrap_or(f64::MAX));
            ordered(fields, min <= max, flaws);
            Some(FieldKind::Number { min, max })
        }
        "text" => lengths(fields, flaws).map(|(min, max)| FieldKind::Text { min, max }),
        "list" => lengths(fields, flaws).map(|(min, max)| FieldKind::List { min, max }),
        plain @ ("boolean" | "object") => {
            if let Some(key) = bounded {
                let message = format!("has no meaning for type {plain:?}; leave it out");
                flaws.add(fields.line_of(key), fields.at(key), message);
            }
            Some(if plain == "object" { FieldKind::Object } else { FieldKind::Boolean })
        }
        other => {
            let instead = match other {
                "string" | "str" => "; write \"text\"",
                "array" => "; write \"list\"",
                "bool" => "; write \"boolean\"",
                "int" => "; write \"integer\"",
                "float" | "real" => "; write \"number\"",
                _ => "",
            };
            let message = format!("is {other:?}; there are: {}{instead}", listed(KINDS));
            flaws.add(written.line_at(0), fields.at("type"), message);
            None
        }
    }
}

fn lengths(fields: &Fields<'_>, flaws: &mut Flaws) -> Option<(usize, usize)> {
    let bounds = [("min", 0), ("max", i64::MAX)].map(|(key, default)| {
        let length = fields.integer(key, flaws).unwrap_or(default);
        if length < 0 {
            let message = format!("is {length}; a length of 0 or more was expected");
            flaws.add(fields.line_of(key), fields.at(key), message);
        }
        length
    });
    ordered(fields, bounds[0] <= bounds[1] || bounds[1] < 0, flaws);
    let [min, max] = bounds.map(|length| usize::try_from(length).unwrap_or_default());
    Some((min, if bounds[1] == i64::MAX { usize::MAX } else { max }))
}

fn ordered(fields: &Fields<'_>, right: bool, flaws: &mut Flaws) {
    if !right {
        let message = "min is above max, so no value would do; exchange them";
        flaws.add(fields.line_of("min"), fields.place(), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::declared;

    /// Then no number is said that nobody has written.
    #[test]
    fn what_has_no_bound_has_none() {
        let file = "projection = { name = 'p', version = 1 }
            on = [{ type = 't', require = [{ field = '/a', type = 'text', min = 1 }] }]";
        let spec = declared::read("p.toml", file).expect("no flaws");
        let kind = &spec.handlers[0].require[0].kind;
        assert_eq!(*kind, Some(FieldKind::Text { min: 1, max: usize::MAX }));
    }

    #[test]
    fn pointers_are_as_rfc_6901_has_them() {
        for right in ["", "/", "/a", "/a/0/b", "/a~0b~1c", "/größe", "/a b"] {
            assert_eq!(wrong_pointer(right), None, "{right}");
        }
        let cases = [
            ("a", "write \"/a\""),
            ("a.b", "write \"/a/b\""),
            ("$.a", "write \"/a\""),
            ("/a~", "~0"),
            ("/~2", "~0"),
        ];
        for (wrong, part) in cases {
            let said = wrong_pointer(wrong).expect(wrong);
            assert!(said.contains(part), "{said}");
        }
    }
}
