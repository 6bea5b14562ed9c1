//! The parameters of a handler's statements: those that every event has, and those that its
//! requirements name.

use super::sandbox::Prepared;
use crate::receiver::declared::{
    file::{Handler, Requirement},
    flaw::{Flaws, listed, meant},
    spec::Parameter,
    statements::{Piece, statements},
    text::Text,
    tokens::Kind,
};

/// The names that a handler's requirements give, colon included, in their order.
pub(super) struct Names(Vec<String>);

impl Names {
    /// Those of a handler. One that no statement takes is noted.
    pub(super) fn of(on: &Handler, flaws: &mut Flaws) -> Self {
        let named = on.require.iter().filter_map(|required| {
            let name = required.name.as_ref()?;
            Some((required, name, format!(":{}", name.text)))
        });
        let used = used(on);
        for (required, name, parameter) in named.clone() {
            if !used.contains(&parameter) {
                unused(required, name, &parameter, flaws);
            }
        }
        Names(named.map(|(.., parameter)| parameter).collect())
    }

    /// What a prepared statement is given, by SQLite's index of each parameter.
    pub(super) fn of_statement(
        &self,
        (text, piece): (&Text, &Piece<'_>),
        prepared: &Prepared<'_>,
        place: &str,
        flaws: &mut Flaws,
    ) -> Vec<(usize, Parameter)> {
        let mut parameters = Vec::new();
        let statement = &prepared.statement;
        for index in 1..=statement.parameter_count() {
            // One without a name, or with another mark before it, is told by its words.
            let Some(name) = statement.parameter_name(index) else { continue };
            match self.parameter(name) {
                Some(parameter) => parameters.push((index, parameter)),
                None if name.starts_with(':') => {
                    flaws.add(line_of(text, piece, name), place, self.unknown(name));
                }
                None => {}
            }
        }
        parameters
    }

    fn parameter(&self, name: &str) -> Option<Parameter> {
        let named = || self.0.iter().position(|known| known == name).map(Parameter::Field);
        Parameter::named(name).or_else(named)
    }

    fn unknown(&self, name: &str) -> String {
        let own = Parameter::ALL.iter().map(|(known, _)| *known);
        let known = || own.clone().chain(self.0.iter().map(String::as_str));
        let (near, field) = (meant(name, known()), &name[1..]);
        format!(
            "{name} is not known here; there are: {}{near}; a field of the payload is :data ->> \
             '{field}', or {name} where require has it with as = \"{field}\"",
            listed(known())
        )
    }
}

/// The parameters in the words of a handler's statements, for not every one of those can be
/// prepared.
fn used(on: &Handler) -> Vec<String> {
    let rules = on.reject_unless.iter().flat_map(|rule| [rule.row.as_ref(), rule.result.as_ref()]);
    let emitted = on.emit.iter().map(|emit| emit.query.as_ref());
    let texts = rules.chain([on.result.as_ref()]).chain(emitted).flatten().chain(&on.sql);
    let tokens = texts.flat_map(|text| statements(&text.text)).flat_map(|piece| piece.tokens);
    let parameters = tokens.filter(|token| token.kind == Kind::Parameter);
    parameters.map(|token| token.text.to_owned()).collect()
}

fn unused(required: &Requirement, name: &Text, parameter: &str, flaws: &mut Flaws) {
    let message = format!(
        "is {:?}, which no statement of the handler uses; write {parameter} in one, or leave it \
         out here",
        name.text
    );
    flaws.add(name.line_at(0), format!("{}.as", required.place), message);
}

/// Where a parameter stands first.
pub(super) fn line_of(text: &Text, piece: &Piece<'_>, parameter: &str) -> usize {
    let mut tokens = piece.tokens.iter();
    let token = tokens.find(|token| token.kind == Kind::Parameter && token.text == parameter);
    text.line_at(piece.at + token.map_or(0, |token| token.at))
}
