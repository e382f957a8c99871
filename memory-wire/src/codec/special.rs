//! The state behind a tagged form: what a rare kind looks like as a plain value (WIRE-305, WIRE-306). Shared by the
//! encoder, which writes the state, and by the hash, which digests it.

use std::sync::Arc;

use crate::js_string::JsString;
use crate::value::{ErrorValue, Key, Object, Special, Value, key_order};

/// The state of a kind that holds other values.
pub(crate) enum State<'a> {
    /// Any value.
    Value(&'a Value),
    /// A plain object held by the kind.
    Object(&'a Object),
    /// An object put together from the kind's slots, in canonical key order.
    Fields(Vec<(Key, Field<'a>)>),
}

/// One slot of [`State::Fields`].
#[derive(Clone, Copy)]
pub(crate) enum Field<'a> {
    /// Any value.
    Value(&'a Value),
    /// A string.
    Text(&'a JsString),
}

/// The tag and state of the kinds that hold other values; `None` for those with a flat state of their own.
pub(crate) fn nested_state(special: &Special) -> Option<(&str, State<'_>)> {
    match special {
        Special::Error(error) => Some(("Error@1", State::Fields(error_fields(error)))),
        Special::Link(payload) => Some(("Link@1", State::Object(payload))),
        Special::Unknown { tag, state } => Some((tag, State::Value(state))),
        Special::Problematic { tag, state, error } => {
            let fields = vec![
                (Key::from("error"), Field::Text(error)),
                (Key::from("state"), Field::Value(state)),
                (Key::from("tag"), Field::Text(tag)),
            ];
            Some(("Problematic@1", State::Fields(fields)))
        }
        Special::EpochNsec(_)
        | Special::EpochDay(_)
        | Special::Hash { .. }
        | Special::RegExp { .. }
        | Special::KeyPair { .. } => None,
    }
}

/// The slot names that an error's extras never hold.
pub(super) const ERROR_SLOTS: [&str; 5] = ["cause", "message", "name", "stack", "type"];

/// A name equal to the type is written as null; an undefined stack or cause is left out (WIRE-306).
fn error_fields(error: &ErrorValue) -> Vec<(Key, Field<'_>)> {
    let name = if is_same(&error.name, &error.kind) {
        &Value::Null
    } else {
        &error.name
    };
    let slots = [
        ("cause", &error.cause),
        ("message", &error.message),
        ("name", name),
        ("stack", &error.stack),
        ("type", &error.kind),
    ];
    let optional = |slot: &str| slot == "cause" || slot == "stack";
    let mut fields: Vec<(Key, Field<'_>)> = slots
        .into_iter()
        .filter(|(slot, value)| !(optional(slot) && value.is_undefined()))
        .map(|(slot, value)| (Key::from(slot), Field::Value(value)))
        .collect();
    let extras = error
        .extras
        .iter()
        .filter(|(key, _)| !ERROR_SLOTS.iter().any(|slot| *key == slot));
    fields.extend(extras.map(|(key, value)| (key.clone(), Field::Value(value))));
    fields.sort_by(|a, b| key_order(&a.0, &b.0));
    fields
}

/// Sameness as the reference sees it when it compares a name with a type: flat values by value, containers only when
/// they are one object. Containers here are an oddity of untyped slots; comparing their content would let nested
/// errors cost exponential time.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) | (Value::Symbol(a), Value::Symbol(b)) => a == b,
        (Value::Undefined, Value::Undefined) | (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Number(a), Value::Number(b)) => a == b,
        (Value::BigInt(a), Value::BigInt(b)) => a == b,
        (Value::Bytes(a), Value::Bytes(b)) => Arc::ptr_eq(a, b),
        (Value::Array(a), Value::Array(b)) => a.ptr_eq(b),
        (Value::Object(a), Value::Object(b)) => a.ptr_eq(b),
        (Value::Special(a), Value::Special(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}
