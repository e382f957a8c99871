//! Judging a rule when it is declared, and listing the columns it reads.

use memory_wire::value::Value;

use super::pattern::Pattern;
use super::{Node, Position, check_version, match_of, terms};

/// Why `spec` is no rule for a table with these columns; `None` when it is one.
pub fn invalid(spec: &Value, columns: &[String]) -> Option<String> {
    check(spec, columns).err()
}

fn check(spec: &Value, columns: &[String]) -> Result<(), String> {
    check_version(spec)?;
    let parts = [
        ("confidentiality", Position::Confidentiality),
        ("integrity", Position::Integrity),
    ];
    let declared: Vec<(&Value, Position)> = parts
        .into_iter()
        .filter_map(|(name, position)| spec.member(name).map(|node| (node, position)))
        .collect();
    if declared.is_empty() {
        return Err("rowLabel rule must declare confidentiality and/or integrity".to_owned());
    }
    declared
        .into_iter()
        .try_for_each(|(node, position)| check_node(node, position, columns))
}

/// Recursion follows the nesting of the declaration's text, which WIRE-312 bounds.
fn check_node(value: &Value, position: Position, columns: &[String]) -> Result<(), String> {
    match Node::read(value, position)? {
        Node::AllOf(operand) => check_terms("all()", operand, position, columns),
        Node::Intersect(operand) => check_terms("intersect()", operand, position, columns),
        Node::AnyOf(_) if position == Position::Integrity => Err(
            "disjunctive integrity does not exist (CFC spec §3.1.8): integrity is a conjunction combined by meet".to_owned(),
        ),
        Node::AnyOf(operand) => {
            for alternative in terms(operand)? {
                check_alternative(alternative)?;
            }
            check_terms("any()", operand, position, columns)
        }
        Node::When { condition, then } => {
            check_pattern(match_of(condition)?, columns)?;
            check_node(then, position, columns)
        }
        Node::Principal(operand) => check_principal(operand, columns),
        Node::AuthoredBy(operand) | Node::EndorsedBy(operand) => {
            let principal = operand.member("principal").ok_or("a provenance claim needs a principal")?;
            check_principal(principal, columns)
        }
        Node::DbOwner | Node::Constant(_) => Ok(()),
    }
}

fn check_terms(name: &str, operand: &Value, position: Position, columns: &[String]) -> Result<(), String> {
    let terms = terms(operand)?;
    if terms.is_empty() {
        return Err(format!("{name} needs at least one term"));
    }
    terms
        .into_iter()
        .try_for_each(|term| check_node(term, position, columns))
}

/// An alternative is a leaf, also behind a gate.
fn check_alternative(value: &Value) -> Result<(), String> {
    match Node::read(value, Position::Confidentiality)? {
        Node::AllOf(_) | Node::AnyOf(_) => Err(
            "an any() alternative must be a single principal-like term, not all()/any() — a conjunction or nested \
             disjunction cannot be an OR-clause alternative (CFC spec §3.1.8)"
                .to_owned(),
        ),
        Node::When { then, .. } => check_alternative(then),
        _ => Ok(()),
    }
}

fn check_principal(operand: &Value, columns: &[String]) -> Result<(), String> {
    let protocol = operand
        .member("protocol")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut chars = protocol.chars();
    let valid = chars.next().is_some_and(|c| c.is_ascii_lowercase())
        && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+.-".contains(c));
    if !valid {
        return Err(format!("invalid DID protocol \"{protocol}\""));
    }
    let of = operand.member("of").ok_or("a principal needs an of")?;
    check_pattern(match_of(of)?, columns)
}

fn check_pattern(operand: &Value, columns: &[String]) -> Result<(), String> {
    let pattern = Pattern::read(operand)?;
    if !columns.iter().any(|column| column == pattern.field) {
        return Err(format!("rule references unknown column \"{}\"", pattern.field));
    }
    pattern.invalid().map_or(Ok(()), Err)
}

/// The columns a rule reads, each once, in the order they are met. Works on invalid rules as well.
pub fn inputs(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for part in ["confidentiality", "integrity"] {
        if let Some(node) = spec.member(part) {
            collect(node, &mut found);
        }
    }
    found
}

fn collect(value: &Value, found: &mut Vec<String>) {
    if let Some(field) = value
        .member("match")
        .and_then(|operand| operand.member("field"))
        .and_then(Value::as_str)
        && !found.iter().any(|known| known == field)
    {
        found.push(field.to_owned());
    }
    for name in ["principal", "of", "when", "then", "authoredBy", "endorsedBy"] {
        if let Some(inner) = value.member(name) {
            collect(inner, found);
        }
    }
    for name in ["allOf", "anyOf", "intersect"] {
        let list = value.member(name).and_then(Value::as_array);
        list.into_iter()
            .flat_map(|list| list.elements())
            .for_each(|(_, term)| collect(term, found));
    }
}
