//! Whether a projection goes on with what a database has been filled by. Pure: what is
//! noted there on one side, what the projection is made of on the other.

use std::collections::BTreeMap;

use super::contents::Contents;
use crate::{
    proto::event::hex,
    receiver::projection::{Part, Projection, Upgrade},
};

/// Digests by place, as they are noted.
pub type Digests = BTreeMap<String, String>;

/// Characters of a digest that a person is shown.
const SHOWN: usize = 8;

/// How a projection goes on with a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// It has filled it.
    Same,
    /// A database of before, which does not say what it was filled by beyond name and
    /// version: its tables have to be those of the first so many steps. Then as it says.
    Unsaid {
        /// Steps that have run.
        ran: usize,
    },
    /// The steps from this one on are to be run.
    Migrate {
        /// Steps that have run.
        ran: usize,
    },
    /// Another database is to be filled beside it.
    Rebuild,
}

/// Judges by what is noted.
///
/// # Errors
/// Why it does not go on with it, and what to do: one sentence.
pub fn fit(contents: &Contents, projection: &dyn Projection) -> Result<Fit, String> {
    if contents.name != projection.name() {
        return Err(other("projection", &contents.name, projection.name()));
    }
    let (was, is) = (contents.version, projection.version());
    if was > is {
        return Err(format!(
            "{}; a database does not go back to an earlier version: start with version {was} or a \
             later one, or on a new database",
            other("projection_version", &was.to_string(), &is.to_string())
        ));
    }
    let steps = projection.migrations().len();
    let Some(noted) = &contents.parts else {
        // Tables came about in one step then.
        let ran = if was == is { steps } else { steps.min(1) };
        return match projection.upgrade() {
            Upgrade::Rebuild if was < is => Ok(Fit::Rebuild),
            _ => Ok(Fit::Unsaid { ran }),
        };
    };
    if was == is {
        return match difference(noted, &digests(&projection.parts())) {
            None => Ok(Fit::Same),
            Some(difference) => Err(format!(
                "it was filled by other content of projection {} version {is}: {difference}; \
                 what is changed needs a higher version",
                contents.name
            )),
        };
    }
    if projection.upgrade() == Upgrade::Rebuild {
        return Ok(Fit::Rebuild);
    }
    let parts = digests(&projection.parts());
    for step in 0..contents.migrations {
        let place = format!("migration[{step}]");
        if noted.get(&place) != parts.get(&place) {
            let changed = changed(&place, noted.get(&place), parts.get(&place));
            return Err(format!(
                "version {was} has run other steps than version {is} begins with: {changed}; a \
                 later version only adds steps behind those that have run, or says upgrade = \
                 \"rebuild\""
            ));
        }
    }
    Ok(Fit::Migrate { ran: contents.migrations })
}

/// What is there, and what should be.
pub(super) fn other(name: &str, found: &str, ours: &str) -> String {
    format!("it was filled with {name} {found}, this receiver has {ours}")
}

/// Parts as they are noted.
pub fn digests(parts: &[Part]) -> Digests {
    parts.iter().map(|part| (part.place.clone(), hex(&part.digest))).collect()
}

/// What differs between the parts that are noted and those that there are, place by place;
/// none: nothing does.
pub fn difference(noted: &Digests, parts: &Digests) -> Option<String> {
    let mut places: Vec<_> = noted.keys().chain(parts.keys()).collect();
    places.sort_by_key(|place| (place.len(), place.as_str()));
    places.dedup();
    let differing = places.into_iter().filter(|place| noted.get(*place) != parts.get(*place));
    let said: Vec<_> =
        differing.map(|place| changed(place, noted.get(place), parts.get(place))).collect();
    if said.is_empty() { None } else { Some(said.join("; ")) }
}

fn changed(place: &str, was: Option<&String>, is: Option<&String>) -> String {
    let short = |digest: &str| format!("{}…", digest.get(..SHOWN).unwrap_or(digest));
    match (was, is) {
        (Some(was), Some(is)) => format!("{place} was {}, is {}", short(was), short(is)),
        (Some(was), None) => format!("{place} was {} and is gone", short(was)),
        (None, _) => format!("{place} is new"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::testing::Steps;

    fn contents(version: i64, of: Option<&Steps>) -> Contents {
        Contents {
            name: "steps".to_owned(),
            version,
            parts: of.map(|steps| digests(&steps.parts())),
            migrations: of.map_or(0, |steps| steps.migrations().len()),
            since: -1,
            source: None,
        }
    }

    #[test]
    fn what_a_projection_does_with_a_database() {
        let steps = |version, steps: &[&'static str]| Steps::new(version, steps);
        let rebuilt = |version, of: &[&'static str]| Steps {
            upgrade: Upgrade::Rebuild,
            ..steps(version, of)
        };
        let one = steps(1, &["a"]);
        let noted = contents(1, Some(&one));
        let before = contents(1, None);
        let cases = [
            (&noted, steps(1, &["a"]), Ok(Fit::Same)),
            (&noted, rebuilt(1, &["a"]), Ok(Fit::Same)),
            (&noted, steps(2, &["a"]), Ok(Fit::Migrate { ran: 1 })),
            (&noted, steps(7, &["a", "b", "c"]), Ok(Fit::Migrate { ran: 1 })),
            (&noted, rebuilt(2, &["x"]), Ok(Fit::Rebuild)),
            (&before, steps(1, &["a"]), Ok(Fit::Unsaid { ran: 1 })),
            (&before, steps(2, &["a", "b"]), Ok(Fit::Unsaid { ran: 1 })),
            (&before, rebuilt(2, &["a", "b"]), Ok(Fit::Rebuild)),
            (&noted, steps(1, &["a", "b"]), Err("migration[1] is new; what is changed needs")),
            (&noted, steps(1, &["b"]), Err("migration[0] was ca978112…, is 3e23e816…; what")),
            (&noted, steps(1, &[]), Err("migration[0] was ca978112… and is gone")),
            (
                &noted,
                steps(2, &["b", "c"]),
                Err("migration[0] was ca978112…, is 3e23e816…; a later"),
            ),
            (&noted, steps(2, &[]), Err("and is gone")),
            (
                &noted,
                steps(0, &["a"]),
                Err("projection_version 1, this receiver has 0; a database"),
            ),
            (&before, steps(0, &["a"]), Err("does not go back")),
        ];
        for (contents, projection, expected) in cases {
            match (fit(contents, &projection), expected) {
                (Ok(fit), Ok(expected)) => assert_eq!(fit, expected),
                (Err(said), Err(words)) => {
                    assert!(said.contains(words), "{said:?} lacks {words:?}")
                }
                (found, expected) => panic!("{found:?}, expected {expected:?}"),
            }
        }
        let named = Contents { name: "other".to_owned(), ..noted.clone() };
        let said = fit(&named, &one).expect_err("another one");
        assert_eq!(said, "it was filled with projection other, this receiver has steps");
    }

    #[test]
    fn a_difference_names_each_place_in_order() {
        let digests = |parts: &[(&str, &str)]| {
            let parts = parts.iter().map(|(place, text)| Part::of(*place, text));
            digests(&parts.collect::<Vec<_>>())
        };
        let was = digests(&[("on[10]", "a"), ("on[2]", "b"), ("query[stock]", "c")]);
        let is = digests(&[("on[10]", "b"), ("on[2]", "b"), ("on[3]", "c")]);
        let said = "on[3] is new; on[10] was ca978112…, is 3e23e816…; query[stock] was 2e7d2c03… \
                    and is gone";
        assert_eq!(difference(&was, &is).as_deref(), Some(said));
        assert_eq!(difference(&was, &was), None);
    }
}
