//! A projection file as the receiver runs it: the way of one event through its handler.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    emit, object, parts, payload,
    spec::{Handler, OnUnknownType, Spec, TypePattern},
    statement::{self, Given},
};
use crate::{
    proto::event::{Event, LOST_TYPE},
    receiver::{
        judged::Judged,
        projection::{Applied, DeclaredQuery, Fault, Migration, Part, Projection, Tables, Upgrade},
        values::Values,
    },
};

/// What a checked file says, ready to be run.
#[derive(Debug)]
pub struct Declared {
    /// Tells it from every other that was read.
    number: u64,
    spec: Spec,
    /// What each handler's payload has to have, in the order of the handlers.
    payloads: Vec<payload::Expected>,
    /// The handlers' places by the types that they name.
    exact: HashMap<String, usize>,
    /// By the beginnings of types, the longest first.
    prefixes: Vec<(String, usize)>,
}

/// How many files were read.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

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
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Declared { number, spec, payloads, exact, prefixes }
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

    /// Judges an event by itself.
    ///
    /// # Errors
    /// Its payload is not what the handler of its type requires, or there has to be a handler
    /// and is none.
    pub fn judged(&self, event: &Event) -> Result<Judged, Fault> {
        let event_type = &event.intent.event_type;
        let place = self.place(event_type);
        let values = match place {
            Some(place) => {
                self.payloads[place].check(&self.spec.handlers[place].require, &event.intent)?
            }
            None if self.spec.on_unknown_type == OnUnknownType::Ignore
                || event_type == LOST_TYPE =>
            {
                Values::default()
            }
            None => {
                let said = format!("no handler takes events of type {event_type}");
                return Err(statement::refused("UNKNOWN_TYPE", said));
            }
        };
        Ok(Judged { by: self.number, place, values })
    }

    /// Makes the effect of an event, after it has judged it.
    ///
    /// # Errors
    /// What a statement says, or comes to.
    pub fn carry_out<'t>(
        &'t self,
        tables: &Tables<'t>,
        event: &Event,
        judged: &Judged,
    ) -> Result<Applied, Fault> {
        match judged.place {
            Some(place) => {
                let given = Given { event, values: &judged.values };
                handle(&self.spec.handlers[place], tables, given)
            }
            None => Ok(Applied::Ignored),
        }
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
        self.carry_out(tables, event, &self.judged(event)?)
    }

    fn judge(&self, event: &Event) -> Option<Judged> {
        // What is wrong with it is said in its turn.
        self.judged(event).ok()
    }

    fn apply_judged<'t>(
        &'t self,
        tables: &Tables<'t>,
        event: &Event,
        judged: Option<&Judged>,
    ) -> Result<Applied, Fault> {
        match judged.filter(|judged| judged.by == self.number) {
            Some(judged) => self.carry_out(tables, event, judged),
            None => self.apply(tables, event),
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
fn handle<'t>(
    handler: &'t Handler,
    tables: &Tables<'t>,
    given: Given<'_>,
) -> Result<Applied, Fault> {
    for rule in &handler.reject_unless {
        if !statement::gives_a_row(&rule.row, tables, given)? {
            let reason = rule.reason.clone().into();
            let result = object::of(rule.result.as_ref(), tables, given)?;
            return Ok(Applied::Rejected { reason, result });
        }
    }
    for effect in &handler.sql {
        statement::run(effect, tables, given)?;
    }
    let result = object::of(handler.result.as_ref(), tables, given)?;
    for emission in &handler.emit {
        emit::follow_ups(emission, tables, given)?;
    }
    Ok(Applied::Done(result))
}
