//! Pages of a query: the statement of one, and the token that says where the next one begins.
//! Pure.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rusqlite::types::Value;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{
    proto::{event::hex, refusal::Refusal},
    receiver::projection::DeclaredQuery,
};

/// The parameter that bounds a page.
pub const LIMIT: &str = ":counterfoil_limit";

/// The parameter that the `n`th column of a page has to be behind.
pub fn after(n: usize) -> String {
    format!(":counterfoil_after_{n}")
}

/// The statement of one page, the first or one behind another; of a query without pages, its
/// own.
pub fn statement(query: &DeclaredQuery, behind: bool) -> String {
    if query.page_by.is_empty() {
        return query.sql.to_string();
    }
    // Qualified, so that SQLite takes none of them for a text.
    let columns = query.page_by.iter().map(|column| {
        let quoted = column.replace('"', "\"\"");
        format!("counterfoil_page.\"{quoted}\"")
    });
    // Compared as their bytes are, whatever collation the columns have: what one calls the same
    // tells rows apart as well. It stands beside the values, where it does not keep SQLite from
    // seeking the rows through an index.
    let columns: Vec<_> = columns.collect();
    let behind = match behind {
        true => {
            let places: Vec<_> =
                (0..columns.len()).map(|n| format!("{} COLLATE BINARY", after(n))).collect();
            format!("WHERE ({}) > ({}) ", columns.join(", "), places.join(", "))
        }
        false => String::new(),
    };
    let order: Vec<_> = columns.iter().map(|column| format!("{column} COLLATE BINARY")).collect();
    let order = order.join(", ");
    let sql = query.sql.trim_end().trim_end_matches(';');
    format!("SELECT * FROM ({sql}\n) AS counterfoil_page {behind}ORDER BY {order} LIMIT {LIMIT}")
}

/// Whether SQL calls two places the same, when it compares text by its bytes: 1 and 1.0 are.
pub fn same(one: &[Value], other: &[Value]) -> bool {
    let equal = |pair: (&Value, &Value)| match pair {
        (Value::Integer(whole), Value::Real(number))
        | (Value::Real(number), Value::Integer(whole)) => {
            // Within 64 bits, where no rounding makes them the same.
            let bound = -(i64::MIN as f64);
            (-bound..bound).contains(number) && *number as i64 == *whole && number.fract() == 0.0
        }
        (one, other) => one == other,
    };
    one.len() == other.len() && one.iter().zip(other).all(equal)
}

/// The last row of a page, by what its query's pages go by.
#[derive(Debug, Clone, PartialEq)]
pub struct Token(Vec<Value>);

impl Token {
    /// Behind this row.
    pub fn of(place: Vec<Value>) -> Self {
        Token(place)
    }

    /// What the next page's rows have to be behind.
    pub fn values(&self) -> &[Value] {
        &self.0
    }

    /// As callers carry it from one call to the next.
    pub fn written(&self, query: &DeclaredQuery, parameters: &[(String, Value)]) -> String {
        let values: Vec<_> = self.0.iter().map(written).collect();
        let token = json!([digest(query, parameters), values]).to_string();
        URL_SAFE_NO_PAD.encode(token)
    }

    /// Reads one that was [`Token::written`] for the same query and parameters.
    ///
    /// # Errors
    /// INVALID_FIELD.
    pub fn read(
        token: &str,
        query: &DeclaredQuery,
        parameters: &[(String, Value)],
    ) -> Result<Token, Refusal> {
        let wrong = |wrong: &str| Refusal::field("page_token", wrong);
        if query.page_by.is_empty() {
            return Err(wrong("was given, and this query has no pages"));
        }
        let unknown = || wrong("is none that this service has given");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| unknown())?;
        let (of, values): (String, Vec<(char, String)>) =
            serde_json::from_slice(&bytes).map_err(|_| unknown())?;
        if of != digest(query, parameters) {
            return Err(wrong("is of another query, or of other parameters"));
        }
        let values: Option<Vec<_>> = values.into_iter().map(read).collect();
        let values = values.filter(|values| values.len() == query.page_by.len());
        Ok(Token(values.ok_or_else(unknown)?))
    }
}

/// Exact, whatever it is.
fn written(value: &Value) -> (char, String) {
    match value {
        Value::Null => ('n', String::new()),
        Value::Integer(number) => ('i', number.to_string()),
        Value::Real(number) => ('r', number.to_bits().to_string()),
        Value::Text(text) => ('t', text.clone()),
        Value::Blob(bytes) => ('b', URL_SAFE_NO_PAD.encode(bytes)),
    }
}

fn read((kind, text): (char, String)) -> Option<Value> {
    Some(match kind {
        'i' => Value::Integer(text.parse().ok()?),
        'r' => Value::Real(f64::from_bits(text.parse().ok()?)),
        't' => Value::Text(text),
        'b' => Value::Blob(URL_SAFE_NO_PAD.decode(text).ok()?),
        _ => return None,
    })
}

/// Of what a page is a page of. A changed query has other pages.
fn digest(query: &DeclaredQuery, parameters: &[(String, Value)]) -> String {
    let mut given: Vec<_> =
        parameters.iter().map(|(name, value)| (name.as_str(), written(value))).collect();
    given.sort();
    let all = json!([query.name, query.sql, query.page_by, given]).to_string();
    hex(&Sha256::digest(all)[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(page_by: &[&'static str]) -> DeclaredQuery {
        DeclaredQuery {
            name: "stock".into(),
            sql: "SELECT * FROM stock -- all of it".into(),
            page_by: page_by.iter().map(|&column| column.into()).collect::<Vec<_>>().into(),
            ..DeclaredQuery::default()
        }
    }

    #[test]
    fn a_page_is_bounded_on_both_sides() {
        let two = query(&["shelf", "o\"dd"]);
        let cases = [
            (query(&[]), true, "SELECT * FROM stock -- all of it"),
            (
                query(&["item"]),
                false,
                "SELECT * FROM (SELECT * FROM stock -- all of it\n) AS counterfoil_page ORDER BY \
                 counterfoil_page.\"item\" COLLATE BINARY LIMIT :counterfoil_limit",
            ),
            (
                two,
                true,
                "SELECT * FROM (SELECT * FROM stock -- all of it\n) AS counterfoil_page WHERE \
                 (counterfoil_page.\"shelf\", counterfoil_page.\"o\"\"dd\") > \
                 (:counterfoil_after_0 COLLATE BINARY, :counterfoil_after_1 COLLATE BINARY) ORDER BY \
                 counterfoil_page.\"shelf\" COLLATE BINARY, counterfoil_page.\"o\"\"dd\" COLLATE \
                 BINARY LIMIT :counterfoil_limit",
            ),
        ];
        for (query, behind, expected) in cases {
            assert_eq!(statement(&query, behind), expected);
        }
    }

    #[test]
    fn what_sql_calls_the_same() {
        let cases = [
            (Value::Integer(1), Value::Real(1.0), true),
            (Value::Real(-0.0), Value::Real(0.0), true),
            (Value::Real(-0.0), Value::Integer(0), true),
            (Value::Integer(1), Value::Real(1.5), false),
            (Value::Integer(i64::MAX), Value::Real(9_223_372_036_854_775_807.0), false),
            (Value::Integer((1 << 53) + 1), Value::Real(9_007_199_254_740_992.0), false),
            (Value::Integer(i64::MIN), Value::Real(-9_223_372_036_854_775_808.0), true),
            (Value::Integer(1), Value::Text("1".to_owned()), false),
            (Value::Text("a".to_owned()), Value::Text("A".to_owned()), false),
        ];
        for (one, other, expected) in cases {
            let (one, other) = ([one], [other]);
            assert_eq!(same(&one, &other), expected, "{one:?} {other:?}");
            assert_eq!(same(&other, &one), expected, "{one:?} {other:?}");
        }
        assert!(!same(&[], &[Value::Null]));
    }

    #[test]
    fn a_token_is_exact_and_holds_for_what_it_was_given_for() {
        let all = [
            Value::Integer(i64::MIN),
            Value::Integer(i64::MAX),
            Value::Real(0.1),
            Value::Text("é\0".to_owned()),
            Value::Blob(vec![0, 255]),
        ];
        let five = query(&["a", "b", "c", "d", "e"]);
        let given = [(":least".to_owned(), Value::Integer(1))];
        let token = Token::of(all.to_vec());
        let written = token.written(&five, &given);
        assert_eq!(Token::read(&written, &five, &given), Ok(token));

        let renamed = DeclaredQuery { name: "other".into(), ..five.clone() };
        let changed = DeclaredQuery { sql: "SELECT 1".into(), ..five.clone() };
        let other = [(":least".to_owned(), Value::Text("1".to_owned()))];
        let short = Token::of(vec![Value::Integer(1)]).written(&five, &given);
        let null = Token::of(vec![Value::Null; 5]).written(&five, &given);
        let cases = [
            (&*written, &renamed, &given, "another query"),
            (&*written, &changed, &given, "another query"),
            (&*written, &five, &other, "other parameters"),
            (&*written, &query(&[]), &given, "no pages"),
            ("?", &five, &given, "none that"),
            ("e30", &five, &given, "none that"),
            (&*short, &five, &given, "none that"),
            (&*null, &five, &given, "none that"),
        ];
        for (token, query, given, words) in cases {
            let refusal = Token::read(token, query, given).expect_err(words);
            assert_eq!(refusal.fields[0].0, "page_token");
            assert!(refusal.message.contains(words), "{}", refusal.message);
        }
    }
}
