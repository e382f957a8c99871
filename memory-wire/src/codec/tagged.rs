//! Reading tagged forms (WIRE-305, WIRE-306): from a tag and its decoded state to the value it stands for.

use std::sync::Arc;

use num_bigint::BigInt;

use super::base64;
use super::decode::DecodeReason;
use super::regexp::Judge;
use super::special::ERROR_SLOTS;
use crate::js_string::JsString;
use crate::value::{ErrorValue, Object, Special, Value};

/// True for tag text such as `Foo@1`.
pub(super) fn is_tag(tag: &str) -> bool {
    let Some((name, version)) = tag.split_once('@') else {
        return false;
    };
    let digits = version.as_bytes();
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_alphanumeric())
        && digits.first().is_some_and(|b| (b'1'..=b'9').contains(b))
        && digits.iter().all(u8::is_ascii_digit)
}

/// The tags that stand for kinds of their own, or for none (`Map`, `Set`).
const KNOWN_TAGS: [&str; 15] = [
    "BigInt@1",
    "Bytes@1",
    "EpochDay@1",
    "EpochNsec@1",
    "Error@1",
    "Hash@1",
    "KeyPair@1",
    "Link@1",
    "Map@1",
    "Problematic@1",
    "RegExp@1",
    "Set@1",
    "SpecialNumber@1",
    "Symbol@1",
    "Undefined@1",
];

/// True for a tag that reads back as [`Special::Unknown`]: well-formed, and none of the known ones.
pub(super) fn is_unknown_tag(tag: &str) -> bool {
    is_tag(tag) && !KNOWN_TAGS.contains(&tag)
}

/// The value of `{"/tag": state}` for a well-formed tag.
pub(super) fn from_state(tag: &str, state: Value, judge: &mut Judge) -> Result<Value, DecodeReason> {
    let value = match tag {
        "BigInt@1" => Value::BigInt(Arc::new(integer(tag, &state)?)),
        "SpecialNumber@1" => Value::Number(special_number(&state)?),
        "Symbol@1" => match state {
            Value::String(key) => Value::Symbol(key),
            _ => return Err(bad_state(tag, "a string")),
        },
        "Undefined@1" => match state {
            Value::Null => Value::Undefined,
            _ => return Err(bad_state(tag, "null")),
        },
        "Bytes@1" => Value::Bytes(bytes(tag, Some(&state))?.into()),
        "Map@1" | "Set@1" => return Err(DecodeReason::ReservedTag(tag.into())),
        _ => Value::Special(Arc::new(special(tag, state, judge)?)),
    };
    Ok(value)
}

fn special(tag: &str, state: Value, judge: &mut Judge) -> Result<Special, DecodeReason> {
    Ok(match tag {
        "EpochNsec@1" => Special::EpochNsec(integer(tag, &state)?),
        "EpochDay@1" => Special::EpochDay(integer(tag, &state)?),
        "Hash@1" => {
            let fields = object(tag, state)?;
            Special::Hash {
                tag: text(tag, fields.get("tag"))?,
                bytes: bytes(tag, fields.get("hash"))?,
            }
        }
        "KeyPair@1" => {
            let fields = object(tag, state)?;
            let algorithm = text(tag, fields.get("algorithm"))?;
            if algorithm.is_empty() {
                return Err(bad_state(tag, "a non-empty algorithm"));
            }
            Special::KeyPair {
                algorithm,
                public: bytes(tag, fields.get("publicKey"))?,
                private: bytes(tag, fields.get("privateKey"))?.into(),
            }
        }
        "RegExp@1" => reg_exp(tag, object(tag, state)?, judge)?,
        "Error@1" => Special::Error(error(object(tag, state)?)),
        "Link@1" => Special::Link(object(tag, state)?),
        "Problematic@1" => {
            let fields = object(tag, state)?;
            let state = fields
                .get("state")
                .cloned()
                .ok_or_else(|| bad_state(tag, "a member `state`"))?;
            Special::Problematic {
                tag: text(tag, fields.get("tag"))?,
                state,
                error: text(tag, fields.get("error"))?,
            }
        }
        _ => Special::Unknown {
            tag: tag.into(),
            state,
        },
    })
}

fn bad_state(tag: &str, expected: &'static str) -> DecodeReason {
    DecodeReason::BadState {
        tag: tag.into(),
        expected,
    }
}

fn object(tag: &str, state: Value) -> Result<Object, DecodeReason> {
    match state {
        Value::Object(object) => Ok(object),
        _ => Err(bad_state(tag, "a plain object")),
    }
}

fn text(tag: &str, value: Option<&Value>) -> Result<JsString, DecodeReason> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        _ => Err(bad_state(tag, "strings")),
    }
}

fn bytes(tag: &str, value: Option<&Value>) -> Result<Vec<u8>, DecodeReason> {
    match value {
        Some(Value::String(text)) => {
            base64::decode(text.as_bytes()).ok_or_else(|| bad_state(tag, "base64url text"))
        }
        _ => Err(bad_state(tag, "base64url text")),
    }
}

fn integer(tag: &str, state: &Value) -> Result<BigInt, DecodeReason> {
    let bytes = bytes(tag, Some(state))?;
    if bytes.is_empty() {
        return Err(bad_state(tag, "at least one byte"));
    }
    Ok(BigInt::from_signed_bytes_be(&bytes))
}

fn special_number(state: &Value) -> Result<f64, DecodeReason> {
    match state.as_str() {
        Some("-0") => Ok(-0.0),
        Some("NaN") => Ok(f64::NAN),
        Some("+Infinity") => Ok(f64::INFINITY),
        Some("-Infinity") => Ok(f64::NEG_INFINITY),
        _ => Err(bad_state(
            "SpecialNumber@1",
            "\"-0\", \"NaN\", \"+Infinity\" or \"-Infinity\"",
        )),
    }
}

/// The flavor whose syntax is checked, and the one meant when none is named.
const CHECKED_FLAVOR: &str = "es2025";

fn reg_exp(tag: &str, fields: Object, judge: &mut Judge) -> Result<Special, DecodeReason> {
    let part = |name: &str, absent: &str| match fields.get(name) {
        None => Ok(JsString::from(absent)),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(bad_state(tag, "strings")),
    };
    let (source, flags, flavor) = (
        part("source", "")?,
        part("flags", "")?,
        part("flavor", CHECKED_FLAVOR)?,
    );
    if flavor == CHECKED_FLAVOR {
        judge.check(&source, &flags).map_err(DecodeReason::BadRegExp)?;
    }
    Ok(Special::RegExp {
        source,
        flags,
        flavor,
    })
}

/// The slots are not type-checked, because the reference does not (WIRE-306).
fn error(fields: Object) -> ErrorValue {
    let slot = |name: &str| {
        fields
            .get(name)
            .filter(|value| !matches!(value, Value::Null | Value::Undefined))
            .cloned()
    };
    let kind = slot("type")
        .or_else(|| slot("name"))
        .unwrap_or_else(|| Value::from("Error"));
    ErrorValue {
        name: slot("name").unwrap_or_else(|| kind.clone()),
        kind,
        message: slot("message").unwrap_or_else(|| Value::from("")),
        stack: fields.get("stack").cloned().unwrap_or(Value::Undefined),
        cause: fields.get("cause").cloned().unwrap_or(Value::Undefined),
        extras: Object::from_entries(
            fields
                .entries()
                .iter()
                .filter(|(key, _)| !ERROR_SLOTS.iter().any(|slot| *key == *slot))
                .cloned()
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::decode;

    #[test]
    fn wire_305_known_tags_are_those_that_read_as_something_else() {
        let unknown = |tag: &str| match decode(&format!("fvj1:{{\"/{tag}\":null}}")) {
            Ok(Value::Special(special)) => matches!(special.as_ref(), Special::Unknown { .. }),
            Ok(_) | Err(_) => false,
        };
        for tag in KNOWN_TAGS {
            assert!(!unknown(tag), "{tag}");
            let next = tag.replace("@1", "@2");
            assert!(unknown(&next) && is_unknown_tag(&next), "{next}");
        }
        for malformed in [
            "hole", "quote", "object", "Foo", "foo@1", "Foo@0", "Foo@01", "@1", "",
        ] {
            assert!(!is_unknown_tag(malformed), "{malformed}");
        }
    }
}
