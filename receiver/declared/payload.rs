//! What a handler's payload has to have, judged in one pass over its JSON: nothing is copied
//! out of it but a text that is not written there as it reads. Pure.
//!
//! A field that is asked for may not stand twice, since SQLite takes the first of two and
//! most others the last.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use serde::{
    Deserialize as _,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::spec::{FieldKind, Requirement};
use crate::{
    proto::event::{DataKind, Intent},
    receiver::{
        projection::Fault,
        values::{Value, Values},
    },
};

/// Characters of a wrong text that are repeated.
const SHOWN_CHARS: usize = 40;

/// So many places are noted without an allocation.
const FEW: usize = 8;
/// The place of the payload as a whole.
const WHOLE: usize = 0;

/// The fields that a handler asks for, as a tree.
#[derive(Debug)]
pub struct Expected {
    root: Node,
    /// How many places it has.
    places: usize,
    /// The place that each requirement is about.
    about: Vec<usize>,
}

/// A place in a payload.
#[derive(Debug)]
struct Node {
    /// Its own number.
    place: usize,
    /// Whether a number is asked for here: it is read as it is written, for SQLite tells
    /// `-0` from `-0.0`.
    is_number: bool,
    /// What stands under names and numbers.
    children: Vec<Child>,
}

#[derive(Debug)]
struct Child {
    name: String,
    /// The name as the number of an item.
    number: Option<usize>,
    node: Node,
}

/// What stands at a place.
#[derive(Debug, Clone, PartialEq)]
enum Found<'p> {
    Nothing,
    Null,
    Boolean(bool),
    /// Written as one, and 64 bits hold it.
    Integer(i64),
    /// Any other number.
    Number(f64),
    Text(Cow<'p, str>),
    List {
        items: usize,
    },
    Object,
}

impl Expected {
    /// Of a handler's requirements.
    pub fn of(requirements: &[Requirement]) -> Self {
        let (mut root, mut places) = (Node::new(WHOLE), WHOLE + 1);
        let about = requirements.iter().map(|requirement| {
            let mut node = &mut root;
            for token in requirement.field.split('/').skip(1) {
                node = node.child(token.replace("~1", "/").replace("~0", "~"), &mut places);
            }
            node.is_number |= matches!(requirement.kind, Some(FieldKind::Number { .. }));
            node.place
        });
        Expected { about: about.collect(), root, places }
    }

    /// Judges a payload, and gives the fields that have names. The requirements are those
    /// that this was made of.
    ///
    /// # Errors
    /// What is wrong: the first requirement that is not met, with its place.
    pub fn check(&self, requirements: &[Requirement], intent: &Intent) -> Result<Values, Fault> {
        let Some(first) = requirements.first() else { return Ok(Values::default()) };
        if intent.kind != DataKind::Json {
            return Err(Fault::payload("data: is no JSON, which was expected").at(&first.place));
        }
        let (mut few, mut more) = ([const { Found::Nothing }; FEW], Vec::new());
        let found = match few.get_mut(..self.places) {
            Some(few) => few,
            None => {
                more.resize(self.places, Found::Nothing);
                &mut more[..]
            }
        };
        let mut json = serde_json::Deserializer::from_slice(&intent.data);
        Walk { node: &self.root, found }.deserialize(&mut json).and_then(|()| json.end()).map_err(
            |error| {
                Fault::payload(format!("data: is not the JSON expected: {error}")).at(&first.place)
            },
        )?;
        let required = || requirements.iter().zip(&self.about);
        for (requirement, place) in required() {
            let Some(wrong) = wrong(requirement.kind.as_ref(), &found[*place]) else { continue };
            let whole = &found[WHOLE];
            let said = match requirement.field.as_str() {
                "" => format!("data: {wrong}"),
                field if !holds(whole, field) => {
                    format!("data: {whole}, an object was expected")
                }
                field => format!("{field}: {wrong}"),
            };
            return Err(Fault::payload(said).at(&requirement.place));
        }
        let named = required().filter(|(requirement, _)| requirement.name.is_some());
        Ok(named.map(|(_, place)| found[*place].value(&intent.data)).collect())
    }
}

impl Node {
    fn new(place: usize) -> Self {
        Node { place, is_number: false, children: Vec::new() }
    }

    fn child(&mut self, name: String, places: &mut usize) -> &mut Node {
        let known = match self.children.iter().position(|child| child.name == name) {
            Some(known) => known,
            None => {
                // RFC 6901: no leading zeros.
                let number = name.parse().ok().filter(|number: &usize| number.to_string() == name);
                self.children.push(Child { name, number, node: Node::new(*places) });
                *places += 1;
                self.children.len() - 1
            }
        };
        &mut self.children[known].node
    }
}

impl Found<'_> {
    /// A number as it is written; none: no double is as large.
    fn number(written: &str) -> Option<Self> {
        if let Ok(number) = written.parse() {
            return Some(Found::Integer(number));
        }
        written.parse().ok().filter(|number: &f64| number.is_finite()).map(Found::Number)
    }

    /// As statements are given it; none: SQL has no such value.
    fn value(&self, payload: &Bytes) -> Option<Value> {
        Some(match self {
            Found::Boolean(truth) => Value::Integer(i64::from(*truth)),
            Found::Integer(number) => Value::Integer(*number),
            Found::Number(number) => Value::Real(*number),
            Found::Text(Cow::Borrowed(text)) => Value::Text(payload.slice_ref(text.as_bytes())),
            Found::Text(Cow::Owned(text)) => Value::Text(text.clone().into()),
            Found::Nothing | Found::Null | Found::List { .. } | Found::Object => return None,
        })
    }
}

/// Whether a payload is of a kind that can hold a field at all.
fn holds(whole: &Found<'_>, field: &str) -> bool {
    let first = field.split('/').nth(1).unwrap_or_default();
    match whole {
        Found::Object => true,
        Found::List { .. } => first.parse::<usize>().is_ok(),
        _ => false,
    }
}

/// What is wrong with a field: found, and expected. None: nothing.
fn wrong(kind: Option<&FieldKind>, found: &Found<'_>) -> Option<String> {
    let fits = match (kind, found) {
        (_, Found::Nothing) => false,
        (None, _) => true,
        (Some(FieldKind::Integer { min, max }), Found::Integer(number)) => {
            (min..=max).contains(&number)
        }
        (Some(FieldKind::Number { min, max }), Found::Number(number)) => {
            (min..=max).contains(&number)
        }
        (Some(FieldKind::Number { min, max }), Found::Integer(number)) => {
            (min..=max).contains(&&(*number as f64))
        }
        (Some(FieldKind::Text { min, max }), Found::Text(text)) => {
            (*min..=*max).contains(&text.len())
        }
        (Some(FieldKind::List { min, max }), Found::List { items }) => (min..=max).contains(&items),
        (Some(FieldKind::Boolean), Found::Boolean(_))
        | (Some(FieldKind::Object), Found::Object) => true,
        _ => false,
    };
    (!fits).then(|| format!("{found}, {} was expected", Said(kind)))
}

/// Goes through a value and notes what stands at the places asked for.
struct Walk<'a, 'p> {
    node: &'a Node,
    found: &'a mut [Found<'p>],
}

impl<'p> Walk<'_, 'p> {
    fn note(&mut self, found: Found<'p>) {
        self.found[self.node.place] = found;
    }
}

impl<'p> DeserializeSeed<'p> for Walk<'_, 'p> {
    type Value = ();

    fn deserialize<D: Deserializer<'p>>(mut self, deserializer: D) -> Result<(), D::Error> {
        if !self.node.is_number {
            return deserializer.deserialize_any(self);
        }
        let written = <&RawValue>::deserialize(deserializer)?.get();
        if !written.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
            let mut other = serde_json::Deserializer::from_str(written);
            return other.deserialize_any(self).map_err(D::Error::custom);
        }
        let number = Found::number(written);
        self.note(number.ok_or_else(|| D::Error::custom("number out of range"))?);
        Ok(())
    }
}

impl<'p> Visitor<'p> for Walk<'_, 'p> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        self.note(Found::Null);
        Ok(())
    }

    fn visit_bool<E: Error>(mut self, truth: bool) -> Result<(), E> {
        self.note(Found::Boolean(truth));
        Ok(())
    }

    fn visit_i64<E: Error>(mut self, number: i64) -> Result<(), E> {
        self.note(Found::Integer(number));
        Ok(())
    }

    fn visit_u64<E: Error>(mut self, number: u64) -> Result<(), E> {
        self.note(match i64::try_from(number) {
            Ok(number) => Found::Integer(number),
            Err(_) => Found::Number(number as f64),
        });
        Ok(())
    }

    fn visit_f64<E: Error>(mut self, number: f64) -> Result<(), E> {
        self.note(Found::Number(number));
        Ok(())
    }

    fn visit_borrowed_str<E: Error>(mut self, text: &'p str) -> Result<(), E> {
        self.note(Found::Text(Cow::Borrowed(text)));
        Ok(())
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.note(Found::Text(Cow::Owned(text.to_owned())));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'p>>(mut self, mut list: A) -> Result<(), A::Error> {
        let mut items = 0;
        loop {
            let children = &self.node.children;
            let child = children.iter().find(|child| child.number == Some(items));
            let more = match child {
                Some(child) => list
                    .next_element_seed(Walk { node: &child.node, found: &mut *self.found })?
                    .is_some(),
                None => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
            items += 1;
        }
        self.note(Found::List { items });
        Ok(())
    }

    fn visit_map<A: MapAccess<'p>>(mut self, mut object: A) -> Result<(), A::Error> {
        let children = &self.node.children;
        while let Some(known) = object.next_key_seed(Name(children))? {
            let Some(Child { name, node, .. }) = known else {
                object.next_value::<IgnoredAny>()?;
                continue;
            };
            if self.found[node.place] != Found::Nothing {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            object.next_value_seed(Walk { node, found: &mut *self.found })?;
        }
        self.note(Found::Object);
        Ok(())
    }
}

/// Which child a name is; the name itself is not kept.
struct Name<'a>(&'a [Child]);

impl<'a, 'de> DeserializeSeed<'de> for Name<'a> {
    type Value = Option<&'a Child>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Name<'a> {
    type Value = Option<&'a Child>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|child| child.name == name))
    }
}

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Nothing => f.write_str("is missing"),
            Found::Null => f.write_str("is null"),
            Found::Boolean(truth) => write!(f, "is {truth}"),
            Found::Integer(number) => write!(f, "is {number}"),
            Found::Number(number) => write!(f, "is {}", serde_json::Value::from(*number)),
            Found::Text(text) => {
                let shown: String = text.chars().take(SHOWN_CHARS).collect();
                let (bytes, cut) = (text.len(), shown.len() < text.len());
                write!(f, "is {}", serde_json::Value::from(shown))?;
                if cut { write!(f, "… (text of {bytes} bytes)") } else { Ok(()) }
            }
            Found::List { items } => write!(f, "is a list of {items}"),
            Found::Object => f.write_str("is an object"),
        }
    }
}

/// What was expected, in words.
struct Said<'a>(Option<&'a FieldKind>);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("anything"),
            Some(FieldKind::Boolean) => f.write_str("true or false"),
            Some(FieldKind::Object) => f.write_str("an object"),
            Some(FieldKind::Integer { min, max }) => {
                let (least, most) = (*min != i64::MIN, *max != i64::MAX);
                bounded(f, "an integer", ["from", ""], least.then_some(min), most.then_some(max))
            }
            Some(FieldKind::Number { min, max }) => {
                let (least, most) = (min.is_finite(), max.is_finite());
                bounded(f, "a number", ["from", ""], least.then_some(min), most.then_some(max))
            }
            Some(FieldKind::Text { min, max }) => {
                let (least, most) = (*min != 0, *max != usize::MAX);
                let least = (least || most).then_some(min);
                bounded(f, "text", ["of", " bytes"], least, most.then_some(max))
            }
            Some(FieldKind::List { min, max }) => {
                let (least, most) = (*min != 0, *max != usize::MAX);
                let least = (least || most).then_some(min);
                bounded(f, "a list", ["of", " items"], least, most.then_some(max))
            }
        }
    }
}

fn bounded<N: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    [word, unit]: [&str; 2],
    least: Option<N>,
    most: Option<N>,
) -> fmt::Result {
    match (least, most) {
        (None, None) => f.write_str(what),
        (Some(least), None) => write!(f, "{what} of at least {least}{unit}"),
        (None, Some(most)) => write!(f, "{what} of at most {most}{unit}"),
        (Some(least), Some(most)) => write!(f, "{what} {word} {least} to {most}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::testing::event;

    fn required(field: &str, kind: Option<FieldKind>) -> Requirement {
        let (place, field) = (format!("on[0].require[{field}]"), field.to_owned());
        Requirement { place, field, kind, name: None }
    }

    fn judged(requirement: Requirement, json: &str) -> Result<(), String> {
        let requirements = [requirement];
        let intent = event(0, "k", "t", "s", json).intent;
        Expected::of(&requirements).check(&requirements, &intent).map(drop).map_err(|fault| {
            assert_eq!(fault.class(), "PAYLOAD");
            assert_eq!(fault.place.as_deref(), Some(requirements[0].place.as_str()));
            fault.to_string()
        })
    }

    const INTEGER: FieldKind = FieldKind::Integer { min: i64::MIN, max: i64::MAX };
    const SMALL: FieldKind = FieldKind::Integer { min: -1_000, max: 1_000 };
    const NUMBER: FieldKind = FieldKind::Number { min: 0.0, max: f64::INFINITY };
    const NAME: FieldKind = FieldKind::Text { min: 1, max: 4 };
    const LINES: FieldKind = FieldKind::List { min: 1, max: usize::MAX };

    #[test]
    fn what_is_as_expected_passes() {
        let cases = [
            ("/a", None, r#"{"a":null}"#),
            ("/a", Some(SMALL), r#" {"b":[{}],"a":-1000}"#),
            ("/a", Some(INTEGER), r#"{"a":9223372036854775807}"#),
            ("/a", Some(INTEGER), r#"{"a":-9223372036854775808}"#),
            ("/a", Some(NUMBER), r#"{"a":0.5}"#),
            ("/a", Some(NUMBER), r#"{"a":3}"#),
            ("/a", Some(NUMBER), r#"{"a":1e300}"#),
            ("/a/0/b", Some(NUMBER), r#"{"a":[{"b": 1 ,"c":2}]}"#),
            ("/a", Some(NAME), r#"{"a":"\u0000ü"}"#),
            ("/a", Some(FieldKind::Boolean), r#"{"a":false}"#),
            ("/a", Some(FieldKind::Object), r#"{"a":{"a":1,"a":2}}"#),
            ("/a/1/b", Some(SMALL), r#"{"a":[{"b":"x"},{"b":1}]}"#),
            ("/a", Some(LINES), r#"{"a":[[1,2,3]]}"#),
            ("/a~1b/~01", Some(SMALL), r#"{"a/b":{"~1":7}}"#),
            ("/\u{e4}", Some(SMALL), r#"{"\u00e4":7}"#),
            ("/", Some(SMALL), r#"{"":7}"#),
            ("", Some(SMALL), "7"),
            ("/0", Some(SMALL), "[7]"),
        ];
        for (field, kind, json) in cases {
            assert_eq!(judged(required(field, kind), json), Ok(()), "{field} of {json}");
        }
    }

    #[test]
    fn what_is_not_says_what_was_found_and_what_was_expected() {
        let cases = [
            ("/a", None, "{}", "/a: is missing, anything was expected"),
            ("/a/b", None, r#"{"a":7}"#, "/a/b: is missing"),
            ("/a/01", None, r#"{"a":[1,2]}"#, "/a/01: is missing"),
            ("/a", Some(SMALL), r#"{"a":1001}"#, "/a: is 1001, an integer from -1000 to 1000"),
            ("/a", Some(SMALL), r#"{"a":1.0}"#, "/a: is 1.0, an integer from"),
            ("/a", Some(SMALL), r#"{"a":1e2}"#, "/a: is 100.0, an integer from"),
            ("/a", Some(SMALL), r#"{"a":-0}"#, "/a: is -0.0, an integer from"),
            ("/a", Some(SMALL), r#"{"a":"1"}"#, "/a: is \"1\", an integer"),
            ("/a", Some(SMALL), r#"{"a":null}"#, "/a: is null, an integer"),
            ("/a", Some(INTEGER), r#"{"a":9223372036854775808}"#, "an integer was expected"),
            ("/a", Some(INTEGER), r#"{"a":-9223372036854775809}"#, "an integer was expected"),
            ("/a", Some(NUMBER), r#"{"a":-0.5}"#, "/a: is -0.5, a number of at least 0 was"),
            ("/a", Some(NUMBER), r#"{"a":-7}"#, "/a: is -7, a number"),
            ("/a", Some(NUMBER), r#"{"a":"7"}"#, "/a: is \"7\", a number"),
            ("/a", Some(NUMBER), r#"{"a":[{}]}"#, "/a: is a list of 1, a number"),
            ("/a", Some(NUMBER), r#"{"a":true}"#, "/a: is true, a number"),
            ("/a", Some(NUMBER), r#"{"a":1e400}"#, "data: is not the JSON expected: number out"),
            ("/a", Some(NUMBER), r#"{"a":01}"#, "data: is not the JSON expected: invalid number"),
            ("/a", Some(NUMBER), r#"{"a":1,"a":2}"#, "duplicate field `a`"),
            ("/a", Some(NAME), r#"{"a":""}"#, "/a: is \"\", text of 1 to 4 bytes was expected"),
            ("/a", Some(NAME), r#"{"a":"üüü"}"#, "text of 1 to 4 bytes"),
            ("/a", Some(LINES), r#"{"a":[]}"#, "/a: is a list of 0, a list of at least 1 items"),
            ("/a", Some(LINES), r#"{"a":{}}"#, "/a: is an object, a list"),
            ("/a", Some(FieldKind::Boolean), r#"{"a":0}"#, "/a: is 0, true or false"),
            (
                "/a",
                Some(SMALL),
                r#"{"a":1,"a":2}"#,
                "data: is not the JSON expected: duplicate field `a`",
            ),
            ("/a/b", Some(SMALL), r#"{"a":{"b":1,"\u0062":2}}"#, "duplicate field `b`"),
            ("", Some(FieldKind::Object), "[7]", "data: is a list of 1, an object was expected"),
            ("/a", Some(SMALL), "[7]", "data: is a list of 1, an object was expected"),
            ("/a", Some(SMALL), "null", "data: is null, an object was expected"),
            ("/1", Some(SMALL), "[7]", "/1: is missing"),
            ("/a", None, "", "data: is not the JSON expected: EOF"),
            ("/a", None, r#"{"a":1} x"#, "data: is not the JSON expected: trailing"),
        ];
        for (field, kind, json, part) in cases {
            let said = judged(required(field, kind), json).expect_err(json);
            assert!(said.contains(part), "{part:?} is missing in: {said}");
        }
    }

    #[test]
    fn a_payload_that_is_no_json_is_a_fault_only_where_something_is_asked_for() {
        let mut intent = event(0, "k", "t", "s", "{}").intent;
        intent.kind = DataKind::Binary;
        let requirements = [required("/a", None)];
        let fault = Expected::of(&requirements).check(&requirements, &intent).expect_err("none");
        assert!(fault.to_string().contains("no JSON"), "{fault}");
        Expected::of(&[]).check(&[], &intent).expect("nothing is asked for");
    }

    /// More of them than have room without an allocation, and a field within a field.
    #[test]
    fn each_of_many_fields_is_judged_and_named() {
        let last = 2 * FEW;
        let mut requirements: Vec<_> = (0..=last)
            .map(|n| Requirement {
                name: (n % 2 == 0).then(|| format!("n{n}")),
                ..required(&format!("/a/{n}"), Some(SMALL))
            })
            .collect();
        requirements.push(required("/a", Some(FieldKind::Object)));
        let expected = Expected::of(&requirements);
        let fields = |skipped: usize| {
            let fields = (0..=last).rev().filter(|n| *n != skipped);
            fields.map(|n| format!(r#""{n}":{n}"#)).collect::<Vec<_>>().join(",")
        };
        let json = |skipped| format!(r#"{{"a":{{{}}}}}"#, fields(skipped));
        let intent = event(0, "k", "t", "s", &json(usize::MAX)).intent;
        let values = expected.check(&requirements, &intent).expect("all are there");
        for n in 0..=FEW {
            assert_eq!(values.get(n), Some(&Value::Integer(2 * n as i64)));
        }
        assert_eq!(values.get(FEW + 1), None);
        let intent = event(0, "k", "t", "s", &json(last)).intent;
        let fault = expected.check(&requirements, &intent).expect_err("one is not");
        assert_eq!(fault.place.as_deref(), Some(&*requirements[last].place));
    }
}
