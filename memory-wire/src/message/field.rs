//! Field access for message parsing. Absent and present-undefined read alike (WIRE-003). Two tones: requests and
//! server messages are unparseable as a whole, commit and query contents are refused by name.

use smol_str::SmolStr;

use super::Unparseable;
use crate::error::WireError;
use crate::ids::{BranchName, EntityId};
use crate::pointer::{DocPath, path_from_value};
use crate::scope_key::Scope;
use crate::value::{Array, Object, SlotRef, Value};

/// Largest integer a double counts exactly.
const MAX_SAFE_INTEGER: u64 = 9_007_199_254_740_991;

pub(super) type Parsed<T> = Result<T, Unparseable>;

pub(super) fn unparseable<T>(field: &'static str, expected: &'static str) -> Parsed<T> {
    Err(Unparseable { field, expected })
}

/// A required string without unpaired surrogates.
pub(super) fn text(of: &Value, key: &'static str) -> Parsed<SmolStr> {
    match of.member(key).and_then(Value::as_str) {
        Some(text) => Ok(SmolStr::new(text)),
        None => unparseable(key, "a string"),
    }
}

/// An optional string without unpaired surrogates.
pub(super) fn optional_text(of: &Value, key: &'static str) -> Parsed<Option<SmolStr>> {
    of.member(key).map(|_| text(of, key)).transpose()
}

/// A string if there is one, absent for any other type; only an unpaired surrogate fails.
pub(super) fn lenient_text(of: &Value, key: &'static str) -> Parsed<Option<SmolStr>> {
    match of.member(key) {
        Some(Value::String(_)) => text(of, key).map(Some),
        Some(_) | None => Ok(None),
    }
}

pub(super) fn number(of: &Value, key: &'static str) -> Parsed<f64> {
    match of.member(key).and_then(Value::as_f64) {
        Some(n) => Ok(n),
        None => unparseable(key, "a number"),
    }
}

pub(super) fn integer(of: &Value, key: &'static str) -> Parsed<u64> {
    match of.member(key).and_then(Value::as_u64) {
        Some(n) => Ok(n),
        None => unparseable(key, "a non-negative safe integer"),
    }
}

pub(super) fn optional_integer(of: &Value, key: &'static str) -> Parsed<Option<u64>> {
    of.member(key).map(|_| integer(of, key)).transpose()
}

pub(super) fn object<'a>(of: &'a Value, key: &'static str) -> Parsed<&'a Object> {
    match of.member(key) {
        Some(Value::Object(object)) => Ok(object),
        Some(_) | None => unparseable(key, "an object"),
    }
}

pub(super) fn array<'a>(of: &'a Value, key: &'static str) -> Parsed<&'a Array> {
    match of.member(key) {
        Some(Value::Array(array)) => Ok(array),
        Some(_) | None => unparseable(key, "an array"),
    }
}

/// Reads every element of a required array.
pub(super) fn each<T>(of: &Value, key: &'static str, read: impl Fn(&Value) -> Parsed<T>) -> Parsed<Vec<T>> {
    elements(array(of, key)?).iter().map(read).collect()
}

/// Reads every element of an array that may be absent.
pub(super) fn optional_each<T>(
    of: &Value,
    key: &'static str,
    read: impl Fn(&Value) -> Parsed<T>,
) -> Parsed<Option<Vec<T>>> {
    of.member(key).map(|_| each(of, key, read)).transpose()
}

/// The scope of something that always states it.
pub(super) fn scope(of: &Value) -> Parsed<Scope> {
    optional_scope(of)?.map_or_else(|| unparseable("scope", "a scope name"), Ok)
}

/// The scope of something that may leave it out.
pub(super) fn optional_scope(of: &Value) -> Parsed<Option<Scope>> {
    match of.member("scope") {
        None => Ok(None),
        Some(name) => match name.as_str().and_then(Scope::from_name) {
            Some(scope) => Ok(Some(scope)),
            None => unparseable("scope", "a scope name"),
        },
    }
}

/// The elements of an array; a hole reads as undefined.
pub(super) fn elements(array: &Array) -> Vec<Value> {
    let mut items = Vec::new();
    for slot in array.slots() {
        match slot {
            SlotRef::Value(item) => items.push(item.clone()),
            // Bounded by the hole budget of decoding (WIRE-314).
            SlotRef::Holes(n) => items.extend(std::iter::repeat_n(Value::Undefined, n as usize)),
        }
    }
    items
}

/// A short description of what came, for error texts: the kind of the value, and strings and numbers themselves.
pub(super) fn describe(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Undefined) => "undefined".to_owned(),
        Some(Value::Null) => "null".to_owned(),
        Some(Value::Bool(b)) => b.to_string(),
        Some(Value::Number(n)) => n.to_string(),
        Some(Value::String(text)) => {
            let text = text.to_string_lossy();
            match text.char_indices().nth(80) {
                Some((cut, _)) => format!("{:?}…", &text[..cut]),
                None => format!("{text:?}"),
            }
        }
        Some(Value::Array(_)) => "an array".to_owned(),
        Some(Value::Object(_)) => "an object".to_owned(),
        Some(_) => "a tagged value".to_owned(),
    }
}

/// `<where>: expected <what>, got <came>`: the message of our own refusals.
pub(super) fn expected(place: &str, what: &str, came: Option<&Value>) -> String {
    format!("{place}: expected {what}, got {}", describe(came))
}

/// A positive safe integer, refused as `ProtocolError` otherwise.
pub(super) fn positive(place: &str, value: Option<&Value>) -> Result<u64, WireError> {
    match value.and_then(Value::as_u64) {
        Some(n) if n > 0 && n <= MAX_SAFE_INTEGER => Ok(n),
        Some(_) | None => Err(WireError::protocol(expected(
            place,
            "a positive safe integer",
            value,
        ))),
    }
}

/// The id of what a commit reads, writes or names.
pub(super) fn entity_id(place: &str, value: &Value) -> Result<EntityId, WireError> {
    let id = value.member("id");
    match id {
        Some(Value::String(text)) => match text.as_str() {
            Some(text) => Ok(EntityId::from(text)),
            None => Err(WireError::protocol(format!(
                "{place}: holds an unpaired surrogate"
            ))),
        },
        // The reference's answer, kept by name (SRV-116).
        Some(_) | None => Err(WireError::transaction(expected(place, "a string", id))),
    }
}

/// A scope that may be left out; an unknown one keeps the reference's answer by name (SRV-116).
pub(super) fn scope_named(place: &str, value: &Value) -> Result<Scope, WireError> {
    match value.member("scope") {
        None => Ok(Scope::Space),
        Some(name) => name.as_str().and_then(Scope::from_name).ok_or_else(|| {
            WireError::transaction(expected(place, "\"space\", \"user\" or \"session\"", Some(name)))
        }),
    }
}

/// Space is what an absent scope means, so it is not written.
pub(super) fn insert_scope(object: &mut Object, scope: Scope) {
    if scope != Scope::Space {
        object.insert("scope", scope.as_str());
    }
}

pub(super) fn path(place: &str, value: &Value) -> Result<DocPath, WireError> {
    let path = value.member("path");
    path.and_then(path_from_value)
        .ok_or_else(|| WireError::protocol(expected(place, "an array of strings", path)))
}

pub(super) fn flag(place: &str, value: Option<&Value>) -> Result<bool, WireError> {
    match value {
        None => Ok(false),
        Some(Value::Bool(b)) => Ok(*b),
        Some(_) => Err(WireError::protocol(expected(place, "a boolean", value))),
    }
}

pub(super) fn named_branch(place: &str, value: Option<&Value>) -> Result<Option<BranchName>, WireError> {
    match value {
        None => Ok(None),
        Some(name) => match name.as_str() {
            Some(name) => Ok(Some(BranchName::from(name))),
            None => Err(WireError::protocol(expected(place, "a string", value))),
        },
    }
}

/// The elements of an array that may be absent where `optional` says so.
pub(super) fn list(place: &str, value: Option<&Value>, optional: bool) -> Result<Vec<Value>, WireError> {
    match value {
        Some(Value::Array(array)) => Ok(elements(array)),
        None if optional => Ok(Vec::new()),
        _ => Err(WireError::protocol(expected(place, "an array", value))),
    }
}
