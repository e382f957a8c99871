//! Evaluating a rule over a row.

use memory_wire::equality::value_equal;
use memory_wire::value;
use memory_wire::value::{Object, Value};
use rustc_hash::FxHashSet;

use super::pattern::{Pattern, Programs};
use super::{Node, Position, check_version, match_of, terms};

/// What a rule may use beside the row; one for all the rows of a commit, which share what matching them may take.
#[derive(Clone, Debug, Default)]
pub struct RowContext {
    db_owner: Option<Value>,
    programs: Programs,
}

impl RowContext {
    /// For rows of a database with this owner.
    pub fn new(db_owner: Option<Value>) -> RowContext {
        RowContext {
            db_owner,
            ..RowContext::default()
        }
    }

    /// For rows of a database with this owner from now on.
    pub(in crate::sqlite_builtin) fn set_owner(&mut self, db_owner: Option<Value>) {
        self.db_owner = db_owner;
    }
}

/// A row's label. Each list is a conjunction; an element `{anyOf: […]}` is a disjunction.
#[derive(Clone, Debug, Default)]
pub struct RowLabel {
    /// Whom the row is confidential to.
    pub confidentiality: Vec<Value>,
    /// Who vouches for it.
    pub integrity: Vec<Value>,
}

/// The label of `row`.
///
/// # Errors
/// The reason why no label can be given; never a part of one.
pub fn evaluate(spec: &Value, row: &Object, context: &RowContext) -> Result<RowLabel, String> {
    check_version(spec)?;
    let part = |name: &str, position| match spec.member(name) {
        Some(node) => Row { row, context }.node(node, position).map(distinct),
        None => Ok(Vec::new()),
    };
    Ok(RowLabel {
        confidentiality: part("confidentiality", Position::Confidentiality)?,
        integrity: part("integrity", Position::Integrity)?,
    })
}

/// Texts are as many as a row makes them, and therefore looked up; other atoms are no more than the rule has.
fn distinct(atoms: Vec<Value>) -> Vec<Value> {
    let mut texts = FxHashSet::default();
    let mut others: Vec<Value> = Vec::new();
    let mut first = |atom: &Value| match atom {
        Value::String(text) => texts.insert(text.clone()),
        other if others.iter().any(|known| value_equal(known, other)) => false,
        other => {
            others.push(other.clone());
            true
        }
    };
    atoms.into_iter().filter(|atom| first(atom)).collect()
}

struct Row<'r> {
    row: &'r Object,
    context: &'r RowContext,
}

impl Row<'_> {
    /// Recursion follows the nesting of the declaration's text, which WIRE-312 bounds.
    fn node(&self, value: &Value, position: Position) -> Result<Vec<Value>, String> {
        match Node::read(value, position)? {
            Node::AllOf(operand) | Node::Intersect(operand) => {
                let mut atoms = Vec::new();
                for term in terms(operand)? {
                    atoms.extend(self.node(term, position)?);
                }
                Ok(atoms)
            }
            Node::AnyOf(_) if position == Position::Integrity => {
                Err("disjunctive integrity does not exist".to_owned())
            }
            Node::AnyOf(operand) => {
                let mut alternatives = Vec::new();
                for alternative in terms(operand)? {
                    alternatives.extend(self.alternative(alternative)?);
                }
                let alternatives = distinct(alternatives);
                if alternatives.is_empty() {
                    return Err("any() yielded no alternative for this row; fail closed".to_owned());
                }
                Ok(vec![value!({ "anyOf": alternatives })])
            }
            Node::When { condition, then } => {
                if self.holds(match_of(condition)?)? {
                    self.node(then, position)
                } else {
                    Ok(Vec::new())
                }
            }
            Node::Principal(operand) => self.principal(operand),
            Node::DbOwner => {
                let owner = self
                    .context
                    .db_owner
                    .clone()
                    .ok_or("dbOwner() has no owner in the evaluation context")?;
                Ok(vec![owner])
            }
            Node::Constant(atom) => Ok(vec![atom.clone()]),
            Node::AuthoredBy(operand) => self.claim("claimed-authored-by", operand),
            Node::EndorsedBy(operand) => self.claim("claimed-endorsed-by", operand),
        }
    }

    fn alternative(&self, value: &Value) -> Result<Vec<Value>, String> {
        match Node::read(value, Position::Confidentiality)? {
            Node::AllOf(_) | Node::AnyOf(_) => Err(
                "an any() alternative must not be all()/any() (directly or under a when() gate) — a conjunction cannot be \
                 an OR-clause alternative (CFC spec §3.1.8)"
                    .to_owned(),
            ),
            Node::When { condition, then } => {
                if self.holds(match_of(condition)?)? { self.alternative(then) } else { Ok(Vec::new()) }
            }
            _ => self.node(value, Position::Confidentiality),
        }
    }

    fn claim(&self, kind: &str, operand: &Value) -> Result<Vec<Value>, String> {
        let principal = operand
            .member("principal")
            .ok_or("a provenance claim needs a principal")?;
        let mut subjects = self.principal(principal)?;
        match subjects.len() {
            0 => Ok(Vec::new()),
            1 => Ok(vec![value!({ "kind": kind, "subject": (subjects.remove(0)) })]),
            n => Err(format!(
                "{n} matches in an integrity-bearing position — a provenance subject must be unique (display-name bait); \
                 fail closed"
            )),
        }
    }

    fn principal(&self, operand: &Value) -> Result<Vec<Value>, String> {
        let protocol = operand
            .member("protocol")
            .and_then(Value::as_str)
            .ok_or("a principal needs a protocol")?;
        let pattern = Pattern::read(match_of(operand.member("of").ok_or("a principal needs an of")?)?)?;
        let field = pattern.field;
        let text = self.text(field)?.unwrap_or_default();
        let found = if text.is_empty() {
            Vec::new()
        } else {
            pattern.matches(text, &self.context.programs)?
        };
        if found.is_empty() && !text.is_empty() {
            return Err(format!(
                "field \"{field}\" is non-empty but matched nothing — refusing to under-label (strict-if-present)"
            ));
        }
        if found.len() < pattern.min {
            let (count, min) = (found.len(), pattern.min);
            return Err(format!(
                "field \"{field}\" yielded {count} match(es); rule requires at least {min}"
            ));
        }
        let subject = |found: String| match protocol {
            "mailto" | "web" => found.trim().to_lowercase(),
            _ => found,
        };
        Ok(found
            .into_iter()
            .map(|found| Value::from(format!("did:{protocol}:{}", subject(found))))
            .collect())
    }

    /// A gate: the field matches.
    fn holds(&self, operand: &Value) -> Result<bool, String> {
        let pattern = Pattern::read(operand)?;
        match self.text(pattern.field)? {
            Some(text) => Ok(!pattern.matches(text, &self.context.programs)?.is_empty()),
            None => Ok(false),
        }
    }

    /// A field's text; `None` for NULL.
    fn text(&self, field: &str) -> Result<Option<&str>, String> {
        let kind = match self.row.get(field) {
            None => return Err(format!("rule input field \"{field}\" is absent from the row")),
            Some(Value::Null | Value::Undefined) => return Ok(None),
            Some(Value::String(text)) => {
                return text
                    .as_str()
                    .map(Some)
                    .ok_or_else(|| format!("field \"{field}\" is not valid text"));
            }
            Some(Value::Number(_)) => "number",
            Some(Value::Bool(_)) => "boolean",
            Some(Value::BigInt(_)) => "bigint",
            Some(Value::Symbol(_)) => "symbol",
            Some(Value::Array(_) | Value::Object(_) | Value::Bytes(_) | Value::Special(_)) => "object",
        };
        Err(format!("field \"{field}\" is {kind}, not a string — regex input"))
    }
}

/// The principals that may read every row whatever it holds: those that every clause offers without looking at the row.
pub fn common(spec: &Value, context: &RowContext) -> Vec<Value> {
    let Some(node) = spec
        .member("confidentiality")
        .filter(|_| check_version(spec).is_ok())
    else {
        return Vec::new();
    };
    let clauses = match Node::read(node, Position::Confidentiality) {
        Ok(Node::AllOf(operand)) => terms(operand).unwrap_or_default(),
        Ok(_) => vec![node],
        Err(_) => return Vec::new(),
    };
    let offered = clauses.into_iter().map(|clause| {
        let alternatives = match Node::read(clause, Position::Confidentiality) {
            Ok(Node::AnyOf(operand)) => terms(operand).unwrap_or_default(),
            Ok(_) => vec![clause],
            Err(_) => Vec::new(),
        };
        let fixed = alternatives.into_iter().filter_map(|alternative| {
            match Node::read(alternative, Position::Confidentiality) {
                Ok(Node::DbOwner) => context.db_owner.clone(),
                Ok(Node::Constant(atom)) => Some(atom.clone()),
                Ok(_) | Err(_) => None,
            }
        });
        fixed.collect::<Vec<_>>()
    });
    offered
        .reduce(|all, next| {
            all.into_iter()
                .filter(|atom| next.iter().any(|other| value_equal(atom, other)))
                .collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of a hundred thousand principals once, in their order, without comparing each with all.
    #[test]
    fn eng_1421_a_text_of_many_principals_is_labelled() {
        let pattern = value!({ "field": "who", "source": "[^ ]+", "flags": "g" });
        let principal = value!({ "principal": { "protocol": "web", "of": { "match": pattern } } });
        let constant = value!({ "constant": { "a": 1 } });
        let terms = vec![principal.clone(), constant.clone(), principal, constant];
        let all = value!({ "allOf": terms });
        let rule = value!({ "version": 1, "confidentiality": all });
        let words: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
        let row: Object = [("who", Value::from(words.join(" ")))].into_iter().collect();
        let label = evaluate(&rule, &row, &RowContext::default()).unwrap();
        assert_eq!(label.confidentiality.len(), 100_001);
        assert_eq!(label.confidentiality[99_999].as_str(), Some("did:web:99999"));
        assert!(label.confidentiality[100_000].as_object().is_some());
    }
}
