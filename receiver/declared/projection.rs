//! A projection file as the receiver runs it: the way of one event through its handler.

use std::collections::HashMap;

use super::{
    emit, object, parts, payload,
    spec::{Handler, OnUnknownType, Spec, TypePattern},
    statement,
};
use crate::{
    proto::event::{Event, LOST_TYPE},
    receiver::projection::{
        Applied, DeclaredQuery, Fault, Migration, Part, Projection, Tables, Upgrade, Why,
    },
};

/// What a checked file says, ready to be run.
#[derive(Debug)]
pub struct Declared {
    spec: Spec,
    /// What each handler's payload has to have, in the order of the handlers.
    payloads: Vec<payload::Expected>,
    /// The handlers' places by the types that they name.
    exact: HashMap<String, usize>,
    /// By the beginnings of types, the longest first.
    prefixes: Vec<(String, usize)>,
}

impl Declared {
    /// Makes one of what a file says.
    pub fn new(spec: Spec) -> Self {
        let mut exact = HashMap::new();
        let mut prefixes = Vec::new();
        for (place, handler) in spec.handlers.iter().enumerate() {
            for pattern in &handler.types {
                match pattern {
                    TypePattern::Exact(name) => {
                        exact.insert(name.clone(), place);
                    }
                    TypePattern::Prefix(prefix) => prefixes.push((prefix.clone(), place)),
                }
            }
        }
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        let payloads = spec.handlers.iter().map(|on| payload::Expected::of(&on.require)).collect();
        Declared { spec, payloads, exact, prefixes }
    }

    /// What the file says.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The handler that takes a type.
    pub fn handler(&self, event_type: &str) -> Option<&Handler> {
        self.place(event_type).map(|place| &self.spec.handlers[place])
    }

    /// The place of the handler that takes a type: the one that names it, or else the one
    /// with the longest beginning of it.
    fn place(&self, event_type: &str) -> Option<usize> {
        self.exact.get(event_type).copied().or_else(|| {
            let takes = |prefix: &str| {
                // Nobody's event: not among "all" unless it is asked for.
                event_type.starts_with(prefix) && !(prefix.is_empty() && event_type == LOST_TYPE)
            };
            let mut prefixes = self.prefixes.iter();
            prefixes.find(|(prefix, _)| takes(prefix)).map(|(_, place)| *place)
        })
    }
}

impl Projection for Declared {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn version(&self) -> i64 {
        self.spec.version
    }

    fn migrations(&self) -> &[Migration] {
        &self.spec.migrations
    }

    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
        let event_type = &event.intent.event_type;
        match self.place(event_type) {
            Some(place) => {
                let handler = &self.spec.handlers[place];
                self.payloads[place].check(&handler.require, &event.intent)?;
                handle(handler, tables, event)
            }
            None => match self.spec.on_unknown_type {
                OnUnknownType::Ignore => Ok(Applied::Ignored),
                OnUnknownType::Halt if event_type == LOST_TYPE => Ok(Applied::Ignored),
                OnUnknownType::Halt => Err(Fault {
                    place: None,
                    why: Why::Refused {
                        class: "UNKNOWN_TYPE",
                        said: format!("no handler takes events of type {event_type}"),
                    },
                }),
            },
        }
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &self.spec.queries
    }

    fn emits(&self) -> bool {
        self.spec.handlers.iter().any(|handler| !handler.emit.is_empty())
    }

    fn upgrade(&self) -> Upgrade {
        self.spec.upgrade
    }

    fn source(&self) -> Option<&str> {
        Some(&self.spec.source)
    }

    fn parts(&self) -> Vec<Part> {
        parts::of(&self.spec)
    }
}

/// One event through its handler: rules before anything is written, then the statements,
/// then what they have come to.
fn handle<'t>(handler: &'t Handler, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
    for rule in &handler.reject_unless {
        if !statement::gives_a_row(&rule.row, tables, event)? {
            let reason = rule.reason.clone().into();
            let result = object::of(rule.result.as_ref(), tables, event)?;
            return Ok(Applied::Rejected { reason, result });
        }
    }
    for effect in &handler.sql {
        statement::run(effect, tables, event)?;
    }
    let result = object::of(handler.result.as_ref(), tables, event)?;
    for emission in &handler.emit {
        emit::follow_ups(emission, tables, event)?;
    }
    Ok(Applied::Done(result))
}
