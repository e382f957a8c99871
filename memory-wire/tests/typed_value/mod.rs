//! Reads the golden vectors: lines of a file, strings with unpaired surrogates, and typed values in both
//! directions. Used by the vector tests of this crate.
#![allow(
    dead_code,
    reason = "every vector test compiles its own copy and uses a part of it"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use memory_wire::js_string::JsString;
use memory_wire::value::{Array, ErrorValue, Object, Slot, SlotRef, Special, Value};
use num_bigint::BigInt;
use serde_json::{Value as Json, json};

/// Runs `check` on every line of a vector file. Panics at the end with the number, kind and reason of each line that
/// failed, and prints how many of each kind passed.
pub(crate) fn run_file(file: &str, mut check: impl FnMut(&Json) -> Result<(), String>) {
    let path = format!("{}/../tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut passed: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut lines = 0;
    for (index, line) in text.lines().enumerate() {
        lines += 1;
        let vector: Json =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{file}:{}: {error}", index + 1));
        let kind = vector["kind"].as_str().unwrap_or("(no kind)").to_owned();
        match check(&vector) {
            Ok(()) => *passed.entry(kind).or_default() += 1,
            Err(reason) => failures.push(format!(
                "{file}:{} {kind} {}: {reason}",
                index + 1,
                vector["name"]
            )),
        }
    }
    println!(
        "{file}: {} of {lines} lines pass {passed:?}",
        lines - failures.len()
    );
    assert!(lines > 0, "{file} is empty");
    assert!(
        failures.is_empty(),
        "{} lines fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// `Ok` when both are equal, else both.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, actual: T, expected: T) -> Result<(), String> {
    if actual == expected {
        Ok(())
    } else {
        Err(format!("{what}: got {actual:?}, expected {expected:?}"))
    }
}

/// A string of a vector: plain, or `{"utf16": [code units]}`.
pub(crate) fn js_string(json: &Json) -> JsString {
    match json {
        Json::String(text) => JsString::from(text.as_str()),
        _ => {
            let units = json["utf16"]
                .as_array()
                .unwrap_or_else(|| panic!("not a string of a vector: {json}"));
            let units: Vec<u16> = units.iter().map(|unit| unit.as_u64().unwrap() as u16).collect();
            JsString::from_utf16(&units)
        }
    }
}

/// A typed value (wire.md §11) as the value it names.
pub(crate) fn from_typed(json: &Json) -> Value {
    let part = |index: usize| &json[index];
    match json[0]
        .as_str()
        .unwrap_or_else(|| panic!("not a typed value: {json}"))
    {
        "null" => Value::Null,
        "undef" => Value::Undefined,
        "bool" => Value::Bool(part(1).as_bool().unwrap()),
        "num" => Value::Number(f64::from_bits(
            u64::from_str_radix(part(1).as_str().unwrap(), 16).unwrap(),
        )),
        "str" => Value::String(js_string(part(1))),
        "big" => Value::BigInt(Arc::new(integer(part(1)))),
        "sym" => Value::Symbol(js_string(part(1))),
        "bytes" => Value::Bytes(hex(part(1)).into()),
        "arr" => {
            let slots = part(1)
                .as_array()
                .unwrap()
                .iter()
                .map(|slot| match slot[0].as_str() {
                    Some("hole") => Slot::Holes(u32::try_from(slot[1].as_u64().unwrap()).unwrap()),
                    _ => Slot::Value(from_typed(slot)),
                });
            Value::Array(Array::from_slots(slots.collect()).unwrap())
        }
        "obj" => Value::Object(object(part(1))),
        other => Value::Special(Arc::new(match other {
            "nsec" => Special::EpochNsec(integer(part(1))),
            "day" => Special::EpochDay(integer(part(1))),
            "hash" => Special::Hash {
                tag: js_string(part(1)),
                bytes: hex(part(2)),
            },
            "regexp" => Special::RegExp {
                source: js_string(part(1)),
                flags: js_string(part(2)),
                flavor: js_string(part(3)),
            },
            "keypair" => Special::KeyPair {
                algorithm: js_string(part(1)),
                public: hex(part(2)),
                private: hex(part(3)).into(),
            },
            "error" => {
                let slot = |name: &str| {
                    let found = part(1).as_array().unwrap().iter().find(|slot| slot[0] == name);
                    found.map(|slot| &slot[1])
                };
                let value = |name: &str| slot(name).map_or(Value::Undefined, from_typed);
                Special::Error(ErrorValue {
                    kind: value("type"),
                    name: value("name"),
                    message: value("message"),
                    stack: value("stack"),
                    cause: value("cause"),
                    extras: slot("extras").map(object).unwrap_or_default(),
                })
            }
            "link" => match from_typed(part(1)) {
                Value::Object(payload) => Special::Link(payload),
                other => panic!("link payload {other:?}"),
            },
            "unknown" => Special::Unknown {
                tag: part(1).as_str().unwrap().into(),
                state: from_typed(part(2)),
            },
            "problematic" => Special::Problematic {
                tag: js_string(part(1)),
                state: from_typed(part(2)),
                error: js_string(part(3)),
            },
            _ => panic!("unknown typed value {json}"),
        })),
    }
}

/// A value as a typed value. Equal outputs mean identical values: kinds, holes and number bits included.
pub(crate) fn to_typed(value: &Value) -> Json {
    match value {
        Value::Null => json!(["null"]),
        Value::Undefined => json!(["undef"]),
        Value::Bool(b) => json!(["bool", b]),
        Value::Number(n) => json!(["num", format!("{:016x}", n.to_bits())]),
        Value::String(text) => json!(["str", typed_string(text)]),
        Value::BigInt(n) => json!(["big", n.to_string()]),
        Value::Symbol(key) => json!(["sym", typed_string(key)]),
        Value::Bytes(bytes) => json!(["bytes", to_hex(bytes)]),
        Value::Array(array) => {
            let slots = array.slots().map(|slot| match slot {
                SlotRef::Value(value) => to_typed(value),
                SlotRef::Holes(n) => json!(["hole", n]),
            });
            json!(["arr", slots.collect::<Vec<_>>()])
        }
        Value::Object(object) => json!(["obj", typed_entries(object)]),
        Value::Special(special) => match special.as_ref() {
            Special::EpochNsec(n) => json!(["nsec", n.to_string()]),
            Special::EpochDay(n) => json!(["day", n.to_string()]),
            Special::Hash { tag, bytes } => json!(["hash", typed_string(tag), to_hex(bytes)]),
            Special::RegExp {
                source,
                flags,
                flavor,
            } => {
                json!([
                    "regexp",
                    typed_string(source),
                    typed_string(flags),
                    typed_string(flavor)
                ])
            }
            Special::KeyPair {
                algorithm,
                public,
                private,
            } => {
                json!([
                    "keypair",
                    typed_string(algorithm),
                    to_hex(public),
                    to_hex(private)
                ])
            }
            Special::Error(error) => json!([
                "error",
                [
                    ["type", to_typed(&error.kind)],
                    ["name", to_typed(&error.name)],
                    ["message", to_typed(&error.message)],
                    ["stack", to_typed(&error.stack)],
                    ["cause", to_typed(&error.cause)],
                    ["extras", typed_entries(&error.extras)],
                ]
            ]),
            Special::Link(payload) => json!(["link", to_typed(&Value::Object(payload.clone()))]),
            Special::Unknown { tag, state } => json!(["unknown", tag.as_str(), to_typed(state)]),
            Special::Problematic { tag, state, error } => {
                json!([
                    "problematic",
                    typed_string(tag),
                    to_typed(state),
                    typed_string(error)
                ])
            }
        },
    }
}

/// Bytes of a hex string of a vector.
pub(crate) fn hex(json: &Json) -> Vec<u8> {
    let text = json.as_str().unwrap_or_else(|| panic!("not hex: {json}"));
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Bytes as the vectors write them.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn integer(json: &Json) -> BigInt {
    json.as_str().unwrap().parse().unwrap()
}

fn object(entries: &Json) -> Object {
    let entries = entries.as_array().unwrap().iter();
    Object::from_entries(
        entries
            .map(|entry| (js_string(&entry[0]), from_typed(&entry[1])))
            .collect(),
    )
}

fn typed_entries(object: &Object) -> Json {
    object
        .iter()
        .map(|(key, value)| json!([typed_string(key), to_typed(value)]))
        .collect()
}

fn typed_string(text: &JsString) -> Json {
    match text.as_str() {
        Some(text) => json!(text),
        None => json!({ "utf16": text.encode_utf16() }),
    }
}
