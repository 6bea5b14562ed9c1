//! A text of several statements, taken apart. Pure.

use super::tokens::{Token, tokens};

/// One statement of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<'s> {
    /// From its first token to its last, without the semicolon.
    pub text: &'s str,
    /// Where it begins in the whole text, in bytes.
    pub at: usize,
    /// Its tokens, placed from its own beginning.
    pub tokens: Vec<Token<'s>>,
}

/// The statements of a text. What stands between BEGIN and END of a trigger is part of it.
pub fn statements(sql: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut current: Vec<Token<'_>> = Vec::new();
    for token in tokens(sql) {
        if token.is_mark(";") && !goes_on(&current) {
            pieces.extend(piece(sql, &current));
            current.clear();
        } else {
            current.push(token);
        }
    }
    pieces.extend(piece(sql, &current));
    pieces
}

/// Whether a semicolon here ends only a statement within a trigger: its last one is
/// followed by END, after a semicolon of its own.
fn goes_on(current: &[Token<'_>]) -> bool {
    let mut words = current.iter();
    let created = words.next().is_some_and(|first| first.is("CREATE"));
    let trigger = words
        .find(|token| !token.is("TEMP") && !token.is("TEMPORARY"))
        .is_some_and(|kind| kind.is("TRIGGER"));
    let ended = matches!(current, [.., before, last] if before.is_mark(";") && last.is("END"));
    created && trigger && !ended
}

fn piece<'s>(sql: &'s str, tokens: &[Token<'s>]) -> Option<Piece<'s>> {
    let (first, last) = (tokens.first()?, tokens.last()?);
    let at = first.at;
    Some(Piece {
        text: &sql[at..last.end()],
        at,
        tokens: tokens.iter().map(|token| Token { at: token.at - at, ..*token }).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons_that_end_them() {
        const TRIGGER: &str = "CREATE TRIGGER t AFTER INSERT ON a BEGIN \
                               UPDATE a SET b = CASE WHEN c THEN 1 END; DELETE FROM d; END";
        let with_trigger = format!("{TRIGGER}; SELECT 1");
        let temporary = "CREATE TEMP TRIGGER t BEFORE DELETE ON a BEGIN SELECT 1; END; X";
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            (" ; ;; -- nothing\n", &[]),
            ("SELECT 1", &["SELECT 1"]),
            ("SELECT 1; -- one\n SELECT ';' -- two\n;", &["SELECT 1", "SELECT ';'"]),
            (&with_trigger, &[TRIGGER, "SELECT 1"]),
            (temporary, &[&temporary[..temporary.len() - 3], "X"]),
            (
                "CREATE TABLE trigger_log (a); SELECT 1",
                &["CREATE TABLE trigger_log (a)", "SELECT 1"],
            ),
        ];
        for (sql, expected) in cases {
            let found: Vec<&str> = statements(sql).iter().map(|piece| piece.text).collect();
            assert_eq!(found, *expected, "{sql}");
        }
    }

    #[test]
    fn pieces_know_where_they_stand() {
        let sql = "-- é\nSELECT a;\n  SELECT b";
        let pieces = statements(sql);
        assert_eq!(&sql[pieces[1].at..], "SELECT b");
        assert_eq!(pieces[1].tokens[1].at, 7);
    }
}
