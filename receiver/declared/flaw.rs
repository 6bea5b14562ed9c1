//! What is wrong with a projection file, as the person who writes it is told: where, what
//! was found, the rule, and what to write instead.

use std::fmt;

/// Most flaws that are told of one file. Who has mended so many looks again.
const MOST: usize = 100;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// The file, as it was named.
    pub file: String,
    /// The line in it, from 1.
    pub line: usize,
    /// The part of the projection: `on[1].sql[0]`; empty where the file cannot be read.
    pub place: String,
    /// What was found, and what to write instead.
    pub message: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.message)
    }
}

/// All that has been found so far in one file.
#[derive(Debug)]
pub struct Flaws {
    file: String,
    found: Vec<Flaw>,
    /// There were more than are told.
    more: bool,
}

impl Flaws {
    /// None yet.
    pub fn of(file: &str) -> Self {
        Flaws { file: file.to_owned(), found: Vec::new(), more: false }
    }

    /// Notes one, in one line.
    pub fn add(&mut self, line: usize, place: impl Into<String>, message: impl Into<String>) {
        if self.more {
            return;
        }
        let (place, message) = (one_line(place.into()), one_line(message.into()));
        let flaw = Flaw { file: self.file.clone(), line, place, message };
        if self.found.contains(&flaw) {
            return;
        }
        if self.found.len() == MOST {
            self.more = true;
        } else {
            self.found.push(flaw);
        }
    }

    /// Whether no more are told, so that there is nothing to look for.
    pub fn are_enough(&self) -> bool {
        self.more
    }

    /// All of them in the order of the file.
    pub fn into_sorted(mut self) -> Vec<Flaw> {
        self.found.sort_by_key(|flaw| flaw.line);
        if self.more {
            let line = self.found.last().map_or(1, |flaw| flaw.line);
            let message = format!("there are more than these {MOST} flaws");
            self.found.push(Flaw { file: self.file, line, place: String::new(), message });
        }
        self.found
    }
}

/// Names that the file or SQLite gives may span lines.
fn one_line(text: String) -> String {
    if text.contains(['\n', '\r']) {
        return text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    text
}

/// Words of a list, for a sentence.
pub fn listed<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<T> = words.into_iter().collect();
    if words.is_empty() {
        return "none".to_owned();
    }
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    words.join(", ")
}

/// The one of several words that was probably meant, as the end of a sentence; empty where
/// none is near.
pub fn meant<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> String {
    let near = |word: &&str| distance(written, word) <= (word.chars().count() / 3).min(2);
    match words.into_iter().filter(near).min_by_key(|word| distance(written, word)) {
        Some(word) => format!("; {word} is near it"),
        None => String::new(),
    }
}

/// How many letters have to be put in, left out or changed to get from one to the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (n, letter) in one.to_lowercase().chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = n + 1;
        for (m, wanted) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *wanted);
            diagonal = row[m + 1];
            row[m + 1] = changed.min(diagonal + 1).min(row[m] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaws_are_lines_and_not_without_end() {
        let mut flaws = Flaws::of("a.toml");
        flaws.add(7, "", "count(*)\r\n  + 1");
        for line in 1..=1_000 {
            assert_eq!(flaws.are_enough(), line > MOST);
            flaws.add(line, "on[0]", "is wrong");
            flaws.add(line, "on[0]", "is wrong");
        }
        let told: Vec<String> = flaws.into_sorted().iter().map(Flaw::to_string).collect();
        assert_eq!(told.len(), MOST + 1);
        assert!(told.contains(&"a.toml:7: count(*) + 1".to_owned()), "{told:?}");
        assert_eq!(told[MOST], "a.toml:99: there are more than these 100 flaws");
    }

    #[test]
    fn a_slip_of_the_pen_finds_its_word() {
        let words = ["reject_unless", "require", "result", "sql"];
        let cases = [
            ("reject_unles", "; reject_unless is near it"),
            ("requires", "; require is near it"),
            ("SQL", "; sql is near it"),
            ("expect", ""),
            ("sq", "; sql is near it"),
            ("so", ""),
            ("", ""),
        ];
        for (written, expected) in cases {
            assert_eq!(meant(written, words), expected, "{written}");
        }
    }
}
