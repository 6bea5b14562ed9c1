//! Configuration files: TOML, with errors that name the line, the key and what
//! was expected. Flags override the environment, which overrides the file.

use std::{fmt, fs, net::SocketAddr, path::Path, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use super::Failure;

/// Reads a configuration file.
///
/// # Errors
/// [`Failure::Usage`] with the file, the line, the key and what was expected.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("configuration {}: {error}", path.display())))?;
    parse(&text)
        .map_err(|wrong| Failure::Usage(format!("configuration {}: {wrong}", path.display())))
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
}

/// A setting that is text, for `#[serde(deserialize_with)]`: read by the same
/// [`FromStr`] as its flag, so that a value that cannot be used has its line.
pub fn text<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    String::deserialize(from)?.parse().map(Some).map_err(serde::de::Error::custom)
}

/// An address to serve on.
#[derive(Debug, Clone, Copy)]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Address)
            .map_err(|_| format!("{text:?} is no address such as 127.0.0.1:7601 or [::]:0"))
    }
}

/// A duration as text with a unit, such as "7d" or "1500ms".
///
/// # Errors
/// One sentence with an example.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{text:?} is no duration such as \"7d\" or \"30s\": {error}"))
}

/// For `#[serde(deserialize_with)]` on an `Option<Duration>`.
pub fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[serde(default, deserialize_with = "duration")]
        max_age: Option<Duration>,
        #[serde(default, deserialize_with = "text")]
        listen: Option<Address>,
        #[serde(default)]
        count: u32,
    }

    #[test]
    fn durations_have_units() {
        let sample: Sample = parse("max_age = \"7d\"\ncount = 1").expect("valid");
        assert_eq!(sample.max_age, Some(Duration::from_secs(7 * 86_400)));
        assert_eq!(sample.count, 1);
        assert!(sample.listen.is_none());
    }

    #[test]
    fn errors_name_line_key_and_what_was_expected() {
        let cases = [
            ("count = 1\nmax_agee = \"1d\"", "line 2", "max_agee", "max_age"),
            ("max_age = \"7\"", "line 1", "max_age", "such as"),
            ("\n\ncount = \"x\"", "line 3", "count", "u32"),
            ("\nlisten = \"nowhere\"", "line 2", "listen", "127.0.0.1:7601"),
        ];
        for (text, line, key, expected) in cases {
            let wrong = parse::<Sample>(text).expect_err(text);
            for part in [line, key, expected] {
                assert!(wrong.contains(part), "{part:?} is missing in: {wrong}");
            }
        }
    }
}
