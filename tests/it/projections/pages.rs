//! Reads a table through the receiver, page by page.

use counterfoil::proto::pb::QueryRequest;
use prost_types::{Struct, value::Kind};

use crate::harness::{ledger::open, receiver::Receiver};

/// A query that gives all of a table: its name, the table, and the columns that it is paged
/// by.
const WHOLE: [(&str, &str, &str, &[&str]); 4] = [
    ("orders", "customers", "customer", &["name"]),
    ("accounts", "accounts", "account", &["id"]),
    ("daily", "days", "counter", &["day", "type"]),
    ("inventory", "stock", "stock", &["item"]),
];

/// Small, so that there are several, and pages end behind odd texts.
const PAGE_SIZE: i32 = 3;

/// All pages together are the table, in the order of its key, whatever text that is.
pub async fn make_up_the_table(projection: &str, receiver: &Receiver) {
    let known = WHOLE.iter().find(|(name, ..)| *name == projection);
    let (_, query, table, columns) = known.expect("each projection has such a query");
    let mut shown = Vec::new();
    let mut request =
        QueryRequest { name: (*query).into(), page_size: PAGE_SIZE, ..Default::default() };
    loop {
        let answer = receiver.client.clone().query(request.clone()).await;
        let page = answer.expect("a page").into_inner();
        assert!(page.rows.len() <= PAGE_SIZE as usize, "{} rows", page.rows.len());
        shown.extend(page.rows.iter().map(|row| texts(row, columns)));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let names = columns.join(", ");
    let db = open(receiver.db());
    let mut rows = db
        .prepare(&format!("SELECT {names} FROM {table} ORDER BY {names}"))
        .expect("the table and its columns");
    let rows = rows.query_map([], |row| (0..columns.len()).map(|n| row.get(n)).collect());
    let rows: Vec<Vec<String>> = rows.and_then(Iterator::collect).expect("readable");
    assert_eq!(shown, rows, "{query}, page by page, and {table}");
}

fn texts(row: &Struct, columns: &[&str]) -> Vec<String> {
    let text = |column: &&str| match &row.fields[*column].kind {
        Some(Kind::StringValue(text)) => text.clone(),
        other => panic!("{column} is no text: {other:?}"),
    };
    columns.iter().map(text).collect()
}
