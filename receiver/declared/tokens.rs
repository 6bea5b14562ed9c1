//! SQL cut into its words, the way SQLite's own tokenizer does it. Knows nothing of what
//! they mean. Pure.

/// A piece of SQL that means something by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'s> {
    /// What it is.
    pub kind: Kind,
    /// What it says, quotes included.
    pub text: &'s str,
    /// Where it begins, in bytes.
    pub at: usize,
}

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A keyword or a name.
    Word,
    /// A name in quotes: `"x"`, `[x]` or `` `x` ``.
    Name,
    /// Text, or a blob: `'x'`, `x'00'`.
    Literal,
    /// A number.
    Number,
    /// `:name`, `@name`, `$name`, `?` or `?1`.
    Parameter,
    /// One character of everything else.
    Mark,
    /// Quotes or a comment that do not end.
    Open,
}

impl<'s> Token<'s> {
    /// Whether it is this keyword.
    pub fn is(&self, keyword: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(keyword)
    }

    /// Whether it is this character.
    pub fn is_mark(&self, mark: &str) -> bool {
        self.kind == Kind::Mark && self.text == mark
    }

    /// Where it ends.
    pub fn end(&self) -> usize {
        self.at + self.text.len()
    }

    /// The name that it is, without quotes; none: it is no name.
    pub fn name(&self) -> Option<&'s str> {
        match self.kind {
            Kind::Word => Some(self.text),
            Kind::Name => self.text.get(1..self.text.len() - 1),
            _ => None,
        }
    }
}

/// All tokens, comments and blanks left out.
pub fn tokens(sql: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < sql.len() {
        let rest = &sql[at..];
        let (kind, length) = next(rest);
        if let Some(kind) = kind {
            found.push(Token { kind, text: &rest[..length], at });
        }
        at += length;
    }
    found
}

/// What begins here, and its length; no kind: nothing that means anything.
fn next(rest: &str) -> (Option<Kind>, usize) {
    let bytes = rest.as_bytes();
    let first = rest.chars().next().unwrap_or_default();
    match first {
        _ if first.is_ascii_whitespace() => (None, 1),
        // What an editor may put before a file; SQLite passes over it too.
        '\u{feff}' => (None, first.len_utf8()),
        '-' if rest.starts_with("--") => (None, rest.find('\n').unwrap_or(rest.len())),
        '/' if rest.starts_with("/*") => match rest[2..].find("*/") {
            Some(end) => (None, end + 4),
            None => (Some(Kind::Open), rest.len()),
        },
        '\'' => quoted(rest, '\'', Kind::Literal),
        '"' => quoted(rest, '"', Kind::Name),
        '`' => quoted(rest, '`', Kind::Name),
        '[' => match rest.find(']') {
            Some(end) => (Some(Kind::Name), end + 1),
            None => (Some(Kind::Open), rest.len()),
        },
        'x' | 'X' if bytes.get(1) == Some(&b'\'') => {
            let (kind, length) = quoted(&rest[1..], '\'', Kind::Literal);
            (kind, length + 1)
        }
        ':' | '@' | '$' | '#' if rest[1..].starts_with(in_word) => {
            (Some(Kind::Parameter), 1 + word(&rest[1..]))
        }
        '?' => {
            let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
            (Some(Kind::Parameter), 1 + digits)
        }
        '0'..='9' => (Some(Kind::Number), number(rest)),
        '.' if bytes.get(1).is_some_and(u8::is_ascii_digit) => (Some(Kind::Number), number(rest)),
        _ if in_word(first) => (Some(Kind::Word), word(rest)),
        _ => (Some(Kind::Mark), first.len_utf8()),
    }
}

fn in_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == '$' || !letter.is_ascii()
}

fn word(rest: &str) -> usize {
    rest.find(|letter| !in_word(letter)).unwrap_or(rest.len())
}

/// Digits, a fraction, an exponent with its sign; also hexadecimal ones.
fn number(rest: &str) -> usize {
    let mut last = ' ';
    let within = |letter: char| {
        let signed = matches!(letter, '+' | '-') && matches!(last, 'e' | 'E');
        last = letter;
        signed || letter == '.' || in_word(letter)
    };
    let mut within = within;
    rest.find(|letter| !within(letter)).unwrap_or(rest.len())
}

/// From one quote to the other; two in a row stand for one within.
fn quoted(rest: &str, quote: char, kind: Kind) -> (Option<Kind>, usize) {
    let mut letters = rest.char_indices().skip(1).peekable();
    while let Some((at, letter)) = letters.next() {
        if letter == quote && letters.next_if(|(_, next)| *next == quote).is_none() {
            return (Some(kind), at + 1);
        }
    }
    (Some(Kind::Open), rest.len())
}

#[cfg(test)]
mod tests {
    use super::{Kind::*, *};

    #[test]
    fn sql_is_cut_as_sqlite_cuts_it() {
        let cases: &[(&str, &[(Kind, &str)])] = &[
            ("", &[]),
            (" -- only this\n/* and ; this */ ", &[]),
            ("SELECT a-1", &[(Word, "SELECT"), (Word, "a"), (Mark, "-"), (Number, "1")]),
            ("'it''s; fine'", &[(Literal, "'it''s; fine'")]),
            ("x'00ff' xs", &[(Literal, "x'00ff'"), (Word, "xs")]),
            ("\"a\"\"b\" [c;d] `e`", &[(Name, "\"a\"\"b\""), (Name, "[c;d]"), (Name, "`e`")]),
            (
                ":data->>'a'",
                &[(Parameter, ":data"), (Mark, "-"), (Mark, ">"), (Mark, ">"), (Literal, "'a'")],
            ),
            (
                "? ?12 @a $b",
                &[(Parameter, "?"), (Parameter, "?12"), (Parameter, "@a"), (Parameter, "$b")],
            ),
            ("1.5e-3 .5 0xFF", &[(Number, "1.5e-3"), (Number, ".5"), (Number, "0xFF")]),
            ("a--b\nc", &[(Word, "a"), (Word, "c")]),
            ("größe", &[(Word, "größe")]),
            ("'open", &[(Open, "'open")]),
            ("a /* open", &[(Word, "a"), (Open, "/* open")]),
        ];
        for (sql, expected) in cases {
            let found: Vec<_> = tokens(sql).iter().map(|token| (token.kind, token.text)).collect();
            assert_eq!(found, *expected, "{sql}");
        }
    }

    #[test]
    fn every_token_stands_where_it_says() {
        let sql = "é 'ü' :größe \u{feff} [x";
        for token in tokens(sql) {
            assert_eq!(&sql[token.at..token.end()], token.text);
        }
    }
}
