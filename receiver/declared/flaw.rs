//! What is wrong with a projection file, as the person who writes it is told: where, what
//! was found, the rule, and what to write instead.

use std::fmt;

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
}

impl Flaws {
    /// None yet.
    pub fn of(file: &str) -> Self {
        Flaws { file: file.to_owned(), found: Vec::new() }
    }

    /// Notes one.
    pub fn add(&mut self, line: usize, place: impl Into<String>, message: impl Into<String>) {
        let flaw =
            Flaw { file: self.file.clone(), line, place: place.into(), message: message.into() };
        if !self.found.contains(&flaw) {
            self.found.push(flaw);
        }
    }

    /// All of them in the order of the file.
    pub fn into_sorted(mut self) -> Vec<Flaw> {
        self.found.sort_by_key(|flaw| flaw.line);
        self.found
    }
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
