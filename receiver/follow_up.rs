//! What an event has let follow, as it is to be published: under a key that is derived, and
//! checked before it is kept. Pure: the same event gives the same keys and the same content,
//! whenever and wherever it is applied.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::{
    projection::{Fault, Why},
    store::outbox::Outgoing,
    tables::FollowUp,
};
use crate::proto::{
    event::{DataKind, Event, Time, hex},
    limits::{MAX_FOLLOW_UP_NAME_BYTES, MAX_FOLLOW_UPS, MAX_KEY_BYTES},
    pb, wire,
};

/// What stands before a hash in a derived key.
const HASHED: &str = "sha256:";

/// The key of a follow-up event: `KEY/PROJECTION/NAME/N`, of the event, the projection, the
/// name of the follow-up and its number among those of that name. Where that has more bytes
/// than a key may have, `sha256:` and the hash of the event's key stand in for it; so they do
/// for a key that begins so itself. Names hold no `/`, so no two follow-ups have one key.
pub fn key(event_key: &str, projection: &str, name: &str, number: usize) -> String {
    let key = format!("{event_key}/{projection}/{name}/{number}");
    if key.len() <= MAX_KEY_BYTES && !event_key.starts_with(HASHED) {
        return key;
    }
    let hash = hex(&Sha256::digest(event_key));
    format!("{HASHED}{hash}/{projection}/{name}/{number}")
}

/// Whether follow-up events may have this name; else what is wrong, to go on after it.
///
/// # Errors
/// One sentence's end.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() > MAX_FOLLOW_UP_NAME_BYTES {
        let length = name.len();
        return Err(format!("has {length} bytes, at most {MAX_FOLLOW_UP_NAME_BYTES} are allowed"));
    }
    wire::name(name, "name").map_err(|refusal| {
        refusal.fields.into_iter().next().map_or(refusal.message, |(_, wrong)| wrong)
    })
}

/// What follows from an event, in its order.
///
/// # Errors
/// [`Fault`] that names the follow-up and the limit.
pub fn outgoing(
    event: &Event,
    projection: &str,
    emitted: Vec<FollowUp>,
) -> Result<Vec<Outgoing>, Fault> {
    if emitted.len() > MAX_FOLLOW_UPS {
        let many = emitted.len();
        return Err(refused(format!(
            "it has {many} follow-ups, at most {MAX_FOLLOW_UPS} are allowed"
        )));
    }
    wire::name(projection, "the projection's name").map_err(|wrong| refused(wrong.message))?;
    let mut of_name: BTreeMap<String, usize> = BTreeMap::new();
    let mut outgoing = Vec::with_capacity(emitted.len());
    for (number, follow_up) in (0..).zip(emitted) {
        let name = follow_up.name.clone();
        check_name(&name).map_err(|wrong| refused(format!("a follow-up's name {wrong}")))?;
        let same = of_name.entry(name.clone()).or_default();
        let key = key(&event.intent.key, projection, &name, *same);
        *same += 1;
        let intent = intent(key, follow_up).map_err(|fault| fault.at(format!("emit[{name}]")))?;
        outgoing.push(Outgoing { sequence: event.sequence, number, intent });
    }
    Ok(outgoing)
}

/// Checks a follow-up as the publisher that gets it will, but for what depends on a clock.
fn intent(key: String, follow_up: FollowUp) -> Result<crate::proto::event::Intent, Fault> {
    /// After any time that an intent may state, so that none of them lies ahead.
    const NO_CLOCK: Time = Time { seconds: i64::MAX, nanos: 0 };
    let data = match follow_up.kind {
        DataKind::Json => {
            let text = String::from_utf8(follow_up.data.into());
            let text = text.map_err(|_| refused("a follow-up's JSON is not text".to_owned()))?;
            pb::new_event::Data::JsonText(text)
        }
        DataKind::Binary => pb::new_event::Data::Binary(follow_up.data),
    };
    let event = pb::NewEvent {
        key,
        r#type: follow_up.event_type,
        subject: follow_up.subject,
        first_attempt_time: follow_up.first_attempt_time.map(wire::timestamp),
        expected_version: follow_up.expected_version,
        time: follow_up.time.map(wire::timestamp),
        attributes: Default::default(),
        content_type: follow_up.content_type,
        data: Some(data),
    };
    wire::intent(event, format_args!("follow_up"), NO_CLOCK)
        .map_err(|refusal| refused(refusal.message))
}

fn refused(said: String) -> Fault {
    Fault { place: None, why: Why::Refused { class: "FOLLOW_UP", said } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::testing::event;

    #[test]
    fn keys_are_readable_where_they_fit() {
        let hash_of_long = hex(&Sha256::digest("k".repeat(240)));
        let hash_of_hashed = hex(&Sha256::digest("sha256:1"));
        let fits = "k".repeat(MAX_KEY_BYTES - "/shop/low/0".len());
        let cases = [
            ("order-7", "shop", "low", 0, "order-7/shop/low/0".to_owned()),
            ("order-7", "shop", "low", 12, "order-7/shop/low/12".to_owned()),
            ("a/b c/ä", "shop", "low", 0, "a/b c/ä/shop/low/0".to_owned()),
            (&fits, "shop", "low", 0, format!("{fits}/shop/low/0")),
            (
                &"k".repeat(240),
                "warehouse",
                "running-low",
                999,
                format!("sha256:{hash_of_long}/warehouse/running-low/999"),
            ),
            // One that looks like a hashed one is hashed itself.
            ("sha256:1", "shop", "low", 0, format!("sha256:{hash_of_hashed}/shop/low/0")),
        ];
        for (event_key, projection, name, number, expected) in cases {
            assert_eq!(key(event_key, projection, name, number), expected);
        }
    }

    #[test]
    fn the_longest_names_fit() {
        let (key_text, projection) = ("k".repeat(256), "p".repeat(128));
        let name = "n".repeat(MAX_FOLLOW_UP_NAME_BYTES);
        assert!(key(&key_text, &projection, &name, MAX_FOLLOW_UPS - 1).len() <= MAX_KEY_BYTES);
        check_name(&name).expect("allowed");
    }

    #[test]
    fn no_two_have_one_key() {
        let keys = ["a", "a/p/n/0", "p", &"k".repeat(250), &"k".repeat(251), "sha256:a"];
        let mut seen = std::collections::BTreeSet::new();
        for event_key in keys {
            for projection in ["p", "n", "p.n"] {
                for (name, number) in [("n", 0), ("n", 1), ("p", 0), ("n-1", 0)] {
                    assert!(seen.insert(key(event_key, projection, name, number)), "{event_key}");
                }
            }
        }
    }

    fn follow_up(name: &str) -> FollowUp {
        FollowUp {
            name: name.into(),
            event_type: "stock.low".into(),
            subject: "camera".into(),
            content_type: String::new(),
            kind: DataKind::Json,
            data: r#"{"left":2}"#.into(),
            time: None,
            first_attempt_time: None,
            expected_version: None,
        }
    }

    #[test]
    fn they_are_numbered_within_the_event_and_within_their_name() {
        let event = event(7, "k", "stock.adjusted", "camera", "{}");
        let emitted = ["low", "bill", "low"].map(follow_up).to_vec();
        let out = outgoing(&event, "shop", emitted.clone()).expect("allowed");
        let named: Vec<_> =
            out.iter().map(|out| (out.sequence, out.number, &*out.intent.key)).collect();
        assert_eq!(
            named,
            [(7, 0, "k/shop/low/0"), (7, 1, "k/shop/bill/0"), (7, 2, "k/shop/low/1")]
        );
        assert_eq!(out[0].intent.content_type, "application/json");
        assert_eq!(outgoing(&event, "shop", emitted).expect("allowed"), out, "and so again");
    }

    #[test]
    fn limits_are_named() {
        type Spoil = fn(&mut FollowUp);
        let wrong: [(Spoil, &str); 9] = [
            (|f| f.name = String::new(), "name is empty"),
            (|f| f.name = "a/b".into(), "name holds '/'"),
            (|f| f.name = "n".repeat(49), "name has 49 bytes, at most 48"),
            (|f| f.event_type = String::new(), "type: is empty"),
            (|f| f.subject = "s".repeat(257), "subject: has 257 bytes, at most 256"),
            (|f| f.data = "{".into(), "json_text: is not JSON"),
            (|f| f.data = vec![255].into(), "JSON is not text"),
            (|f| f.data = format!("\"{}\"", "x".repeat(512 * 1024)).into(), "at most 524288"),
            (|f| f.expected_version = Some(-1), "expected_version: is -1"),
        ];
        let event = event(7, "k", "stock.adjusted", "camera", "{}");
        for (spoil, words) in wrong {
            let mut spoilt = follow_up("low");
            spoil(&mut spoilt);
            let fault = outgoing(&event, "shop", vec![spoilt]).expect_err(words);
            assert_eq!(fault.class(), "FOLLOW_UP");
            assert!(fault.to_string().contains(words), "{fault} lacks {words:?}");
        }
        let many = vec![follow_up("low"); MAX_FOLLOW_UPS + 1];
        let fault = outgoing(&event, "shop", many).expect_err("too many");
        assert!(fault.to_string().contains("1001 follow-ups, at most 1000"), "{fault}");
        outgoing(&event, "a/b", vec![follow_up("low")]).expect_err("no name");
    }

    /// Whether it may be applied does not depend on the time of day.
    #[test]
    fn no_clock_is_asked() {
        let event = event(7, "k", "stock.adjusted", "camera", "{}");
        let far = Some(Time { seconds: 253_402_300_799, nanos: 0 });
        let late = FollowUp { first_attempt_time: far, ..follow_up("low") };
        outgoing(&event, "shop", vec![late]).expect("allowed");
    }
}
