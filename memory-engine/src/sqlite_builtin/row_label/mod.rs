//! Row labels (ENG-1420, 1421): a pure expression in a table's declaration that says, from a row's own values, whom the
//! row is confidential to and who vouches for it. Judged when declared ([`invalid`]), evaluated for every row written
//! ([`evaluate`]); a failure yields an error and never a part of a label.

#[cfg(test)]
mod agreement;
mod evaluate;
mod matcher;
mod pattern;
mod rule;
mod syntax;

use memory_wire::value::Value;

pub use evaluate::{RowContext, RowLabel, common, evaluate};
pub use rule::{inputs, invalid};

/// Where in a rule a node stands; which operators it may use depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    Confidentiality,
    Integrity,
}

impl Position {
    fn as_str(self) -> &'static str {
        match self {
            Position::Confidentiality => "confidentiality",
            Position::Integrity => "integrity",
        }
    }
}

/// One node of a rule: exactly one operator, with its operand.
#[derive(Clone, Copy, Debug)]
enum Node<'v> {
    AllOf(&'v Value),
    AnyOf(&'v Value),
    Intersect(&'v Value),
    Principal(&'v Value),
    DbOwner,
    Constant(&'v Value),
    When { condition: &'v Value, then: &'v Value },
    AuthoredBy(&'v Value),
    EndorsedBy(&'v Value),
}

const OPERATORS: [&str; 9] = [
    "allOf",
    "anyOf",
    "intersect",
    "principal",
    "dbOwner",
    "constant",
    "when",
    "authoredBy",
    "endorsedBy",
];

impl<'v> Node<'v> {
    fn read(value: &'v Value, position: Position) -> Result<Node<'v>, String> {
        let found: Vec<(&str, &Value)> = OPERATORS
            .iter()
            .filter_map(|name| value.member(name).map(|operand| (*name, operand)))
            .collect();
        let place = position.as_str();
        let (name, operand) = match found.as_slice() {
            [one] => *one,
            [] => return Err(format!("unknown rowLabel node in {place} position")),
            several => {
                let names: Vec<&str> = several.iter().map(|(name, _)| *name).collect();
                return Err(format!(
                    "ambiguous rowLabel node in {place} position: {{{}}} — exactly one op per node (fail closed)",
                    names.join(", ")
                ));
            }
        };
        let node = match name {
            "allOf" => Node::AllOf(operand),
            "anyOf" => Node::AnyOf(operand),
            "intersect" => Node::Intersect(operand),
            "principal" => Node::Principal(operand),
            "dbOwner" => Node::DbOwner,
            "constant" => Node::Constant(operand),
            "when" => {
                let then = value.member("then").ok_or("a when() node needs a then")?;
                Node::When {
                    condition: operand,
                    then,
                }
            }
            "authoredBy" => Node::AuthoredBy(operand),
            _ => Node::EndorsedBy(operand),
        };
        let placed = match node {
            Node::AllOf(_) | Node::Constant(_) | Node::When { .. } => true,
            Node::AnyOf(_) | Node::Principal(_) | Node::DbOwner => position == Position::Confidentiality,
            Node::Intersect(_) | Node::AuthoredBy(_) | Node::EndorsedBy(_) => position == Position::Integrity,
        };
        // A disjunction of integrity has an answer of its own.
        if placed || matches!(node, Node::AnyOf(_)) {
            Ok(node)
        } else {
            Err(format!("rowLabel op {name} has no meaning in {place} position"))
        }
    }
}

/// The members of a list operand.
fn terms(operand: &Value) -> Result<Vec<&Value>, String> {
    let list = operand
        .as_array()
        .ok_or("a rowLabel list operator needs an array")?;
    Ok(list.elements().map(|(_, term)| term).collect())
}

/// The match of `principal.of`, `when` and the like.
fn match_of(operand: &Value) -> Result<&Value, String> {
    operand
        .member("match")
        .ok_or_else(|| "a rowLabel pattern needs a match".to_owned())
}

const ONLY_VERSION: f64 = 1.0;

fn check_version(spec: &Value) -> Result<(), String> {
    match spec.member("version") {
        Some(Value::Number(n)) if *n == ONLY_VERSION => Ok(()),
        Some(Value::Number(n)) => Err(format!("unsupported rowLabel version {n}")),
        _ => Err("unsupported rowLabel version undefined".to_owned()),
    }
}
