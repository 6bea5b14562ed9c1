//! Events as they may come, from a seed: most of them sound, some against a rule, some
//! that no handler can read, some of types that nobody knows.

use std::collections::BTreeMap;

use counterfoil::proto::pb::{NewEvent, new_event::Data};
use prost_types::Timestamp;

use crate::harness::{chance::Chance, events::event};

/// Names of customers, accounts and items. None is plain to everyone.
const NAMES: [&str; 8] =
    ["ada", "ben", "cy", "O'Neil\"; --", "\u{202e}עדה", "\u{1f4f7}", "e\u{301}", "%s\\"];
/// Numbers around which integers end, and what is no integer.
const ODD_NUMBERS: [&str; 14] = [
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "4611686018427387904",
    "9007199254740993",
    "0",
    "-1",
    "1.0",
    "1e2",
    "0.5",
    "\"3\"",
    "true",
    "null",
];
/// Texts that a column has to hold as they are, as JSON writes them.
const ODD_TEXTS: [&str; 8] = [
    r#""""#,
    r#""\u0000""#,
    r#""before\u0000after""#,
    r#""\ud83d\udcf7""#,
    r#""  ""#,
    r#""\"\\\/\b\f\n\r\t""#,
    "7",
    "[\"ada\"]",
];
/// JSON that is not what any handler expects.
const ODD_PAYLOADS: [&str; 7] = ["{}", "[]", "7", "null", "\"text\"", "[{\"cents\":1}]", " { } "];

/// Makes the events of one history up.
pub struct Maker {
    chance: Chance,
    number: usize,
    /// What the stock should be by now; right as long as nothing odd has happened to it.
    stock: BTreeMap<&'static str, (i64, i64)>,
}

impl Maker {
    pub fn new(seed: u64) -> Self {
        Maker { chance: Chance::seeded(seed), number: 0, stock: BTreeMap::new() }
    }

    /// The next event for a projection.
    pub fn next(&mut self, projection: &str) -> NewEvent {
        let (kind, subject, payload) = match projection {
            "orders" => self.order(),
            "accounts" => self.money(),
            "daily" => self.visit(),
            _ => self.movement(),
        };
        let key =
            format!("{}-{}", self.chance.one_of(&["k", "\u{1f511}", "' OR 1=1"]), self.number);
        self.number += 1;
        let mut made = event(&key, &kind, &subject, &payload);
        if self.chance.once_in(25) {
            made.data = Some(self.odd_payload(&payload));
        }
        if self.chance.once_in(40) {
            made.subject.clear();
        }
        if self.chance.once_in(20) {
            made.r#type = format!("{kind}.unheard-of");
        }
        if self.chance.once_in(3) {
            made.time = Some(self.time());
        }
        if self.chance.once_in(10) {
            made.attributes.insert("note".into(), "\u{0}\u{202e}'".into());
        }
        made
    }

    fn order(&mut self) -> (String, String, String) {
        let order = format!("order-{}", self.chance.below(30));
        match self.chance.below(10) {
            0..5 => {
                let lines: Vec<_> = (0..=self.chance.below(3))
                    .map(|_| {
                        let (item, quantity) = (self.text(), self.number(1, 5));
                        let price = self.number(0, 100_000);
                        format!(r#"{{"item":{item},"quantity":{quantity},"price_cents":{price}}}"#)
                    })
                    .collect();
                let customer = self.text();
                let payload = format!(r#"{{"customer":{customer},"lines":[{}]}}"#, lines.join(","));
                ("order.placed".into(), order, payload)
            }
            5..8 => {
                let (line, quantity) = (self.number(0, 4), self.number(1, 1001));
                let payload = format!(r#"{{"line":{line},"quantity":{quantity}}}"#);
                ("order.line_changed".into(), order, payload)
            }
            8 => ("order.cancelled".into(), order, "{}".into()),
            _ => ("customer.forgotten".into(), self.name().into(), "{}".into()),
        }
    }

    fn money(&mut self) -> (String, String, String) {
        let account = self.name().to_owned();
        match self.chance.below(10) {
            0..2 => ("account.opened".into(), account, "{}".into()),
            2..5 => {
                let payload = format!(r#"{{"cents":{}}}"#, self.amount());
                ("money.deposited".into(), account, payload)
            }
            _ => {
                let (from, to, cents) = (self.text(), self.text(), self.amount());
                let payload = format!(r#"{{"from":{from},"to":{to},"cents":{cents}}}"#);
                ("money.transferred".into(), account, payload)
            }
        }
    }

    fn visit(&mut self) -> (String, String, String) {
        let kind =
            *self.chance.one_of(&["visit.page", "visit.image", "visit.", "visit.a.b", "visit"]);
        if self.chance.once_in(3) {
            let (visits, kind) = (self.number(1, 1_000_000_000), format!("{kind:?}"));
            let kind = if self.chance.once_in(8) { self.text() } else { kind };
            let payload = format!(r#"{{"type":{kind},"visits":{visits}}}"#);
            return ("visit.counted".into(), String::new(), payload);
        }
        (kind.into(), self.name().into(), "{}".into())
    }

    fn movement(&mut self) -> (String, String, String) {
        let item = self.name();
        let (available, version) = self.stock.get(item).copied().unwrap_or_default();
        if self.chance.once_in(3) {
            let quantity = 50 * (1 + self.chance.below(8) as i64);
            let fits = available >= quantity && version > 0;
            let expected = if self.chance.once_in(6) { version + 1 } else { version };
            if fits && expected == version {
                self.stock.insert(item, (available - quantity, version + 1));
            }
            let payload = format!(
                r#"{{"task":{},"quantity":{quantity},"expected_version":{expected}}}"#,
                self.text()
            );
            return ("stock.reserved".into(), item.into(), payload);
        }
        let delta = 50 * (self.chance.below(20) as i64 - 6);
        self.stock.insert(item, (available + delta, version + 1));
        let delta = if self.chance.once_in(12) { self.number(1, 2_000) } else { delta.to_string() };
        ("stock.adjusted".into(), item.into(), format!(r#"{{"delta":{delta}}}"#))
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.chance.below(NAMES.len() as u64) as usize]
    }

    /// A name as JSON, or now and then some other text, or none.
    fn text(&mut self) -> String {
        if self.chance.once_in(40) {
            return (*self.chance.one_of(&ODD_TEXTS)).to_owned();
        }
        serde_json::to_string(self.name()).expect("text is JSON")
    }

    /// A number within bounds as JSON, or now and then an odd one.
    fn number(&mut self, least: u64, most: u64) -> String {
        if self.chance.once_in(40) {
            return (*self.chance.one_of(&ODD_NUMBERS)).to_owned();
        }
        (least + self.chance.below(most - least + 1)).to_string()
    }

    /// Few different ones, so that now and then an account gives the last that it has.
    fn amount(&mut self) -> String {
        if self.chance.once_in(20) {
            return self.number(1, 1_000);
        }
        (100 * (1 + self.chance.below(4))).to_string()
    }

    fn odd_payload(&mut self, usual: &str) -> Data {
        let text = match self.chance.below(8) {
            0 => return Data::Binary([0xff, 0, 0xfe].as_slice().into()),
            1 => return Data::Binary(Vec::new().into()),
            2 => usual.replacen('{', "{\"more\":{\"of\":[1,null,{}]},", 1),
            3 => usual.replace(':', " :\n\t"),
            // Every field twice: nobody can say which counts.
            5 if usual.len() > 2 => {
                let fields = &usual[1..usual.len() - 1];
                format!("{{{fields},{fields}}}")
            }
            // A field under its name, but written otherwise.
            4 => usual.replacen("\"c", "\"\\u0063", 1).replacen("\"t", "\"\\u0074", 1),
            _ => (*self.chance.one_of(&ODD_PAYLOADS)).to_owned(),
        };
        // What the first of these makes of `{}` is no JSON.
        Data::JsonText(text.replace(",}", "}"))
    }

    fn time(&mut self) -> Timestamp {
        let days = [0, 19_782, 20_786, 20_787, -719_162, 2_932_896];
        let seconds = *self.chance.one_of(&days) * 86_400 + self.chance.below(86_400) as i64;
        let nanos = *self.chance.one_of(&[0, 1, 999_999_999, 500_000_000]);
        Timestamp { seconds, nanos }
    }
}
