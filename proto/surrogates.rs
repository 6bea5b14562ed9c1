//! Escapes in JSON text that stand for no character. Pure.

/// Where a `\uD800` to `\uDFFF` stands that is not one of a pair, in bytes. `json` is JSON.
///
/// JSON's grammar allows them, and there is no text that they could become: each reader
/// makes something else of them, and SQLite bytes that are no UTF-8.
pub fn lone(json: &[u8]) -> Option<usize> {
    // Nearly no payload has an escape, and for one byte one looks quickly.
    if !json.contains(&b'\\') {
        return None;
    }
    let mut at = 0;
    while at < json.len() {
        at += match (json[at], unit(&json[at..])) {
            (b'\\', Some(0xd800..=0xdbff)) => match unit(&json[at + UNIT_BYTES..]) {
                Some(0xdc00..=0xdfff) => 2 * UNIT_BYTES,
                _ => return Some(at),
            },
            (b'\\', Some(0xdc00..=0xdfff)) => return Some(at),
            (b'\\', Some(_)) => UNIT_BYTES,
            // What is escaped may be a backslash.
            (b'\\', None) => 2,
            _ => 1,
        };
    }
    None
}

/// Bytes of an escape by number.
const UNIT_BYTES: usize = 6;

/// The number that an escape gives; none: there is no such escape at the beginning.
fn unit(json: &[u8]) -> Option<u32> {
    let digits = json.strip_prefix(b"\\u")?.get(..UNIT_BYTES - 2)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_pair_are_found() {
        let cases = [
            (r#"{"a":"plain"}"#, None),
            (r#""\n\\\u0041\"\uFFFF""#, None),
            (r#""\ud83d\ude00""#, None),
            (r#""\uD83D\uDE00\ud83d\ude00""#, None),
            (r#""\\ud800""#, None),
            (r#""\\\ud800""#, Some(3)),
            (r#""\ud800""#, Some(1)),
            (r#""\uDBFF""#, Some(1)),
            (r#""\udc00""#, Some(1)),
            (r#""\uDFFF""#, Some(1)),
            (r#""\ud83dx\ude00""#, Some(1)),
            (r#""\ud83d\n""#, Some(1)),
            (r#""\ud83d\u0041""#, Some(1)),
            (r#""\ud83d\ud83d\ude00""#, Some(1)),
            (r#""\ude00\ud83d""#, Some(1)),
            (r#"{"\ud83d\ude00":1,"b\ud800":2}"#, Some(20)),
            ("\"\u{e9}\\ud800\"", Some(3)),
        ];
        for (json, at) in cases {
            serde_json::from_str::<serde::de::IgnoredAny>(json).expect(json);
            assert_eq!(lone(json.as_bytes()), at, "{json}");
        }
    }
}
