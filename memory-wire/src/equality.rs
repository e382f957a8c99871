//! Equality of the value model (WIRE-313): primitives by same-value, everything else by equal canonical hash and
//! same kind. Looks at structure first and hashes only where structure cannot decide. Does not recurse.
//!
//! So key order does not count; a hole, `undefined`, `null` and an absent key are four things; 0 and −0 are two; all NaN
//! are one. The one exception to "equal exactly when equal hash": strings and symbols at the top compare by code unit,
//! while inside containers unpaired surrogates count as U+FFFD, as the hash has it.

use std::sync::Arc;

use crate::hash::hash_value;
use crate::js_string::JsString;
use crate::value::{Object, SlotRef, Value};

/// True when the two values are the same value. NaN equals itself, −0 differs from +0, a hole differs from
/// `undefined`, and strings inside containers compare with their unpaired surrogates replaced by U+FFFD.
pub fn value_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        // At the top, strings compare by code unit and kinds must agree; only below does the hash rule hold.
        (Value::String(a), Value::String(b)) | (Value::Symbol(a), Value::Symbol(b)) => a == b,
        (Value::Special(x), Value::Special(y)) => {
            std::mem::discriminant(x.as_ref()) == std::mem::discriminant(y.as_ref())
                && hash_value(a) == hash_value(b)
        }
        _ => structurally_equal(a, b).unwrap_or_else(|| hash_value(a) == hash_value(b)),
    }
}

/// Compares by structure; `None` where only the hash can tell.
fn structurally_equal(a: &Value, b: &Value) -> Option<bool> {
    let mut pairs: Vec<(&Value, &Value)> = vec![(a, b)];
    let mut undecided = false;
    while let Some((a, b)) = pairs.pop() {
        let same = match (a, b) {
            (Value::Undefined, Value::Undefined) | (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Number(a), Value::Number(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Value::String(a), Value::String(b)) | (Value::Symbol(a), Value::Symbol(b)) => {
                same_hashed_text(a, b)
            }
            (Value::BigInt(a), Value::BigInt(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Array(a), Value::Array(b)) => {
                if a.ptr_eq(b) {
                    continue;
                }
                if a.len() != b.len() {
                    return Some(false);
                }
                for (a, b) in a.slots().zip(b.slots()) {
                    match (a, b) {
                        (SlotRef::Value(a), SlotRef::Value(b)) => pairs.push((a, b)),
                        (SlotRef::Holes(a), SlotRef::Holes(b)) if a == b => {}
                        _ => return Some(false),
                    }
                }
                true
            }
            (Value::Object(a), Value::Object(b)) => {
                if a.ptr_eq(b) {
                    continue;
                }
                if a.len() != b.len() {
                    return Some(false);
                }
                match same_keys(a, b) {
                    Some(true) => pairs.extend(a.iter().zip(b.iter()).map(|((_, a), (_, b))| (a, b))),
                    Some(false) => return Some(false),
                    None => undecided = true,
                }
                true
            }
            (Value::Special(a), Value::Special(b)) => {
                undecided |= !Arc::ptr_eq(a, b);
                true
            }
            _ => false,
        };
        if !same {
            return Some(false);
        }
    }
    (!undecided).then_some(true)
}

fn same_hashed_text(a: &JsString, b: &JsString) -> bool {
    a == b || (!(a.is_well_formed() && b.is_well_formed()) && a.to_string_lossy() == b.to_string_lossy())
}

/// Canonical order makes equal key sets line up; ill-formed keys are left to the hash.
fn same_keys(a: &Object, b: &Object) -> Option<bool> {
    let mut equal = true;
    for ((a, _), (b, _)) in a.iter().zip(b.iter()) {
        if !(a.is_well_formed() && b.is_well_formed()) {
            return None;
        }
        equal &= a == b;
    }
    Some(equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;
    use crate::value::Special;

    #[test]
    fn wire_313_nested_kinds_compare_by_hash_and_top_kinds_do_not() {
        let payload: Object = [("id", "of:x")].into_iter().collect();
        let link = Value::Special(Arc::new(Special::Link(payload.clone())));
        let unknown = Value::Special(Arc::new(Special::Unknown {
            tag: "Link@1".into(),
            state: Value::Object(payload),
        }));
        assert!(!value_equal(&link, &unknown));
        let (a, b) = (Value::from(vec![link]), Value::from(vec![unknown]));
        assert!(value_equal(&a, &b) && hash_value(&a) == hash_value(&b));
    }

    #[test]
    fn wire_313_ill_formed_keys_are_left_to_the_hash() {
        let lone: Object = [(JsString::from_utf16(&[0xD800]), 1)].into_iter().collect();
        let replaced: Object = [("\u{FFFD}", 1)].into_iter().collect();
        assert!(value_equal(&lone.into(), &replaced.into()));
    }

    #[test]
    fn shared_containers_are_equal_without_a_look() {
        let shared = value!({ "a": [1, 2, { "b": null }] });
        assert!(value_equal(&value!([(shared.clone())]), &value!([(shared)])));
    }
}
