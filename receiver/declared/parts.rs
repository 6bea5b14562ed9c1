//! What a projection is made of, part by part, in a spelling that stays the same from one
//! version of this program to the next: its digests are kept in databases.

use serde_json::{Value, json};

use super::spec::{
    Effect, Emission, FieldKind, Handler, OnUnknownType, Requirement, Rule, Spec, Statement,
    TypePattern,
};
use crate::receiver::projection::{DeclaredQuery, Part, Upgrade};

/// The header without the version, each migration, each handler, each query.
pub fn of(spec: &Spec) -> Vec<Part> {
    let header = json!({
        "name": spec.name,
        "on_unknown_type": match spec.on_unknown_type {
            OnUnknownType::Ignore => "ignore",
            OnUnknownType::Halt => "halt",
        },
        "upgrade": match spec.upgrade {
            Upgrade::Migrate => "migrate",
            Upgrade::Rebuild => "rebuild",
        },
    });
    let header = [Part::of("projection", &header.to_string())];
    let migrations = spec.migrations.iter().enumerate();
    let migrations = migrations.map(|(n, step)| Part::of(format!("migration[{n}]"), &step.sql));
    let handlers = spec.handlers.iter();
    let handlers = handlers.map(|on| Part::of(on.place.clone(), &handler(on).to_string()));
    let queries = spec.queries.iter();
    let queries =
        queries.map(|asked| Part::of(format!("query[{}]", asked.name), &query(asked).to_string()));
    header.into_iter().chain(migrations).chain(handlers).chain(queries).collect()
}

fn handler(on: &Handler) -> Value {
    let types = on.types.iter().map(|pattern| match pattern {
        TypePattern::Exact(name) => name.clone(),
        TypePattern::Prefix(prefix) => format!("{prefix}*"),
    });
    json!({
        "type": types.collect::<Vec<_>>(),
        "require": on.require.iter().map(requirement).collect::<Vec<_>>(),
        "reject_unless": on.reject_unless.iter().map(rule).collect::<Vec<_>>(),
        "sql": on.sql.iter().map(effect).collect::<Vec<_>>(),
        "result": text(on.result.as_ref()),
        "emit": on.emit.iter().map(emission).collect::<Vec<_>>(),
    })
}

fn requirement(required: &Requirement) -> Value {
    let kind = match &required.kind {
        None => json!(null),
        Some(FieldKind::Integer { min, max }) => json!(["integer", min, max]),
        Some(FieldKind::Number { min, max }) => json!(["number", min, max]),
        Some(FieldKind::Text { min, max }) => json!(["text", min, max]),
        Some(FieldKind::Boolean) => json!(["boolean"]),
        Some(FieldKind::List { min, max }) => json!(["list", min, max]),
        Some(FieldKind::Object) => json!(["object"]),
    };
    match &required.name {
        // As it was spelled before there were names.
        None => json!({"field": required.field, "type": kind}),
        Some(name) => json!({"field": required.field, "type": kind, "as": name}),
    }
}

fn rule(rule: &Rule) -> Value {
    json!({"row": rule.row.text, "reason": rule.reason, "result": text(rule.result.as_ref())})
}

fn effect(effect: &Effect) -> Value {
    json!({"sql": effect.statement.text, "expect_rows": effect.expect_rows})
}

fn emission(emission: &Emission) -> Value {
    json!({"name": emission.name, "type": emission.event_type, "query": emission.query.text})
}

fn text(statement: Option<&Statement>) -> Option<&str> {
    statement.map(|statement| statement.text.as_str())
}

fn query(query: &DeclaredQuery) -> Value {
    json!({
        "parameters": query.parameters,
        "sql": query.sql,
        "description": query.description,
        "page_by": query.page_by,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Databases hold the digest of the first spelling.
    #[test]
    fn a_name_is_spelled_only_where_there_is_one() {
        let spelled = |name: Option<&str>| {
            let (place, field) = ("on[0].require[0]".to_owned(), "/n".to_owned());
            let kind = Some(FieldKind::Integer { min: 1, max: 9 });
            let name = name.map(str::to_owned);
            requirement(&Requirement { place, field, kind, name }).to_string()
        };
        assert_eq!(spelled(None), r#"{"field":"/n","type":["integer",1,9]}"#);
        assert_eq!(spelled(Some("n")), r#"{"as":"n","field":"/n","type":["integer",1,9]}"#);
    }
}
