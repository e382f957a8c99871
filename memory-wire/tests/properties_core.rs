//! Properties of scope keys, codec, hash and equality over generated input, among them a second, naive
//! implementation of the escaping procedure (WIRE-309, WIRE-1003).

mod long;
#[path = "codec/naive.rs"]
mod naive;
mod typed_value;

use std::sync::Arc;

use long::{for_each_seed, same_cases};
use memory_wire::codec::{PREFIX, decode, encode};
use memory_wire::equality::value_equal;
use memory_wire::hash::{hash_preimage, hash_value};
use memory_wire::js_string::JsString;
use memory_wire::scope_key::{
    Scope, ScopeIdentity, ScopeKey, decode_component, encode_component, identity_of, is_scope_key, scope_of,
};
use memory_wire::value::{Array, ErrorValue, Object, Slot, Special, Value};
use num_bigint::BigInt;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use typed_value::to_typed;

/// Strings of everything the codec treats specially: escapes, multi-byte characters, surrogates alone and in pairs.
fn js_string() -> impl Strategy<Value = JsString> {
    let unit = prop_oneof![
        8 => (0x20u16..0x7F).boxed(),
        1 => (0u16..0x20).boxed(),
        1 => prop_oneof![Just(b'"' as u16), Just(b'\\' as u16), Just(b'/' as u16), Just(0x7F), Just(0xE9), Just(0x2028)].boxed(),
        1 => (0xD7F0u16..0xE010).boxed(),
    ];
    let paired = vec(unit, 0..90).prop_map(|units| JsString::from_utf16(&units));
    prop_oneof![3 => paired, 1 => any::<String>().prop_map(JsString::from)]
}

/// Keys that collide with tags, index keys, and others; never the unsafe ones.
fn key() -> impl Strategy<Value = JsString> {
    let chosen = prop::sample::select(vec![
        "",
        "a",
        "b",
        "value",
        "/",
        "/a",
        "/quote",
        "/object",
        "/hole",
        "/Bytes@1",
        "0",
        "7",
        "10",
        "01",
        "4294967294",
        "4294967295",
        "prototype",
        "id",
    ]);
    let safe = js_string().prop_filter("unsafe key", |key| *key != "__proto__" && *key != "constructor");
    prop_oneof![4 => chosen.prop_map(JsString::from), 1 => safe]
}

fn big_int() -> impl Strategy<Value = BigInt> {
    vec(any::<u8>(), 1..12).prop_map(|bytes| BigInt::from_signed_bytes_be(&bytes))
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<i32>().prop_map(f64::from),
        any::<u64>()
            .prop_map(f64::from_bits)
            .prop_map(|n| if n.is_nan() { f64::NAN } else { n }),
        (any::<i64>(), -30i32..30).prop_map(|(n, e)| n as f64 * 10f64.powi(e)),
        prop::sample::select(vec![
            0.0,
            -0.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e21,
            1e-7,
            9007199254740993.0
        ]),
    ]
}

fn special(value: Special) -> Value {
    Value::Special(Arc::new(value))
}

fn leaf() -> impl Strategy<Value = Value> {
    let bytes = || vec(any::<u8>(), 0..40);
    prop_oneof![
        4 => prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::Bool), number().prop_map(Value::Number)],
        4 => js_string().prop_map(Value::String),
        1 => Just(Value::Undefined),
        1 => prop_oneof![
            big_int().prop_map(|n| Value::BigInt(Arc::new(n))),
            js_string().prop_map(Value::Symbol),
            bytes().prop_map(|bytes| Value::Bytes(bytes.into())),
            big_int().prop_map(|n| special(Special::EpochNsec(n))),
            big_int().prop_map(|n| special(Special::EpochDay(n))),
            (js_string(), bytes()).prop_map(|(tag, bytes)| special(Special::Hash { tag, bytes })),
            (js_string(), js_string()).prop_map(|(source, flags)| {
                special(Special::RegExp { source, flags, flavor: "other".into() })
            }),
            (bytes(), bytes()).prop_map(|(public, private)| {
                special(Special::KeyPair { algorithm: "Ed25519".into(), public, private: private.into() })
            }),
        ],
    ]
}

fn object(member: impl Strategy<Value = Value>) -> impl Strategy<Value = Object> {
    vec((key(), member), 0..6).prop_map(Object::from_entries)
}

fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(5, 60, 6, |inner| {
        let slot =
            prop_oneof![5 => inner.clone().prop_map(Slot::Value), 1 => (1u32..4).prop_map(Slot::Holes)];
        let text = || js_string().prop_map(Value::String);
        let error = (text(), text(), text(), inner.clone(), object(inner.clone())).prop_map(
            |(kind, name, message, cause, mut extras)| {
                for slot in ["type", "name", "message", "stack", "cause"] {
                    extras.remove(slot);
                }
                special(Special::Error(ErrorValue {
                    kind,
                    name,
                    message,
                    stack: Value::Undefined,
                    cause,
                    extras,
                }))
            },
        );
        prop_oneof![
            3 => vec(slot, 0..6).prop_map(|slots| Value::Array(Array::from_slots(slots).unwrap())),
            6 => object(inner.clone()).prop_map(Value::Object),
            1 => error,
            1 => object(inner.clone()).prop_map(|payload| special(Special::Link(payload))),
            1 => inner.clone().prop_map(|state| special(Special::Unknown { tag: "Zork@12".into(), state })),
            1 => (js_string(), inner, js_string())
                .prop_map(|(tag, state, error)| special(Special::Problematic { tag, state, error })),
        ]
    })
}

/// A typed value as comparing sees it (WIRE-313, 402): unpaired surrogates are U+FFFD, there is one NaN, and keys stand in
/// their own order. Written without a hash, so that a hash that confuses two values shows.
fn as_compared(typed: Json) -> Json {
    match typed {
        Json::Object(utf16) => {
            let units = utf16["utf16"].as_array().unwrap().iter();
            let units: Vec<u16> = units.map(|unit| unit.as_u64().unwrap() as u16).collect();
            String::from_utf16_lossy(&units).into()
        }
        Json::Array(parts) => {
            let mut parts: Vec<Json> = parts.into_iter().map(as_compared).collect();
            match parts[..] {
                [ref kind, ref bits] if kind == "num" => {
                    let number = f64::from_bits(u64::from_str_radix(bits.as_str().unwrap(), 16).unwrap());
                    if number.is_nan() {
                        parts[1] = "NaN".into();
                    }
                }
                [ref kind, Json::Array(ref mut entries)] if kind == "obj" => {
                    entries.sort_by_key(|entry| entry[0].as_str().map(str::to_owned));
                }
                _ => {}
            }
            parts.into()
        }
        leaf => leaf,
    }
}

/// A change of one leaf or key somewhere, or none at all.
fn nudge(value: &Value, at: usize) -> Value {
    match value {
        Value::Object(object) if !object.is_empty() => {
            let mut object = object.clone();
            let (key, member) = &object.entries()[at % object.len()];
            let (key, renamed, member) = (key.clone(), format!("{key}."), nudge(member, at / 3));
            if at.is_multiple_of(5) && key.is_well_formed() {
                object = object
                    .iter()
                    .filter(|(other, _)| **other != key)
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                object.insert(renamed, member);
            } else {
                object.insert(key, member);
            }
            Value::Object(object)
        }
        Value::Array(array) if !array.is_empty() => {
            let mut slots = array.to_slots();
            let at_slot = at % slots.len();
            slots[at_slot] = match &slots[at_slot] {
                Slot::Value(value) => Slot::Value(nudge(value, at / 3)),
                Slot::Holes(n) => Slot::Holes(n + (at % 2) as u32),
            };
            Value::Array(Array::from_slots(slots).unwrap())
        }
        // Of a NaN, this changes bits that nobody may see.
        Value::Number(n) if at.is_multiple_of(2) => Value::Number(-n),
        Value::Null if at.is_multiple_of(2) => Value::Undefined,
        Value::Symbol(text) if at.is_multiple_of(2) => Value::String(text.clone()),
        Value::Special(special) if at.is_multiple_of(2) => match special.as_ref() {
            Special::Unknown { tag, state } => self::special(Special::Unknown {
                tag: tag.clone(),
                state: nudge(state, at / 3),
            }),
            Special::EpochNsec(n) => self::special(Special::EpochDay(n.clone())),
            Special::Problematic { tag, state, error } => {
                let state = nudge(state, at / 3);
                self::special(Special::Problematic {
                    tag: tag.clone(),
                    state,
                    error: error.clone(),
                })
            }
            _ => value.clone(),
        },
        Value::String(text) if at.is_multiple_of(2) => Value::String(text.to_string_lossy().as_ref().into()),
        other => other.clone(),
    }
}

/// Texts near scope keys: right prefixes, escapes of all sorts, separators.
fn near_scope_key() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "space",
        "user:",
        "session:",
        ":",
        "%",
        "%3A",
        "%3a",
        "%2F",
        "%41",
        "%C3%A9",
        "%C3",
        "%ED%A0%80",
        "a",
        "b1",
        "-_.!~*'()",
        "é",
        " ",
        "/",
        "+",
        "@",
        "",
    ]);
    vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn component() -> impl Strategy<Value = String> {
    let few = prop::sample::select(vec!["a", "a:", ":", "%", "%25"]).prop_map(str::to_owned);
    let any = prop_oneof![2 => few, 1 => any::<String>(), 1 => near_scope_key()];
    any.prop_filter("an empty component counts as missing", |text| !text.is_empty())
}

#[test]
fn wire_1003_values_survive_their_text() {
    for_each_seed("codec-round-trip", 400, &value(), |value| {
        let text = encode(&value).unwrap();
        let decoded = decode(&text).unwrap();
        prop_assert_eq!(to_typed(&decoded), to_typed(&value), "{}", text);
        prop_assert_eq!(encode(&decoded).unwrap(), text);
        prop_assert!(value_equal(&decoded, &value));
        Ok(())
    });
}

#[test]
fn wire_313_equality_is_equal_hash_and_kind() {
    let input = (value(), value(), any::<usize>());
    for_each_seed("equality-and-hash", 400, &input, |(a, other, at)| {
        for b in [
            a.clone(),
            nudge(&a, at),
            decode(&encode(&a).unwrap()).unwrap(),
            other,
        ] {
            let one_kind = to_typed(&a)[0] == to_typed(&b)[0];
            let equal = value_equal(&a, &b);
            prop_assert_eq!(equal, value_equal(&b, &a));
            match (&a, &b) {
                // The documented exception: strings and symbols at the top compare by code unit.
                (Value::String(x), Value::String(y)) | (Value::Symbol(x), Value::Symbol(y)) => {
                    prop_assert_eq!(equal, x == y);
                }
                _ => {
                    prop_assert_eq!(equal, one_kind && hash_value(&a) == hash_value(&b));
                    prop_assert_eq!(equal, as_compared(to_typed(&a)) == as_compared(to_typed(&b)));
                }
            }
        }
        Ok(())
    });
}

proptest! {
    #![proptest_config(same_cases(400))]

    #[test]
    fn wire_309_the_plan_writes_what_the_procedure_writes(value in value()) {
        prop_assert_eq!(&encode(&value).unwrap()[PREFIX.len()..], naive::write(&naive::encode(&value)));
    }

    #[test]
    fn wire_304_damaged_text_is_refused_or_read_never_worse(
        value in value(),
        at in any::<prop::sample::Index>(),
        with in prop::sample::select(vec!["", "\"", "\\", "{", "}", "[", "]", ",", ":", "/", "0", "-", "e", "\\ud800", "é", "\u{0}"]),
        cut in 0usize..4,
    ) {
        let mut text: Vec<char> = encode(&value).unwrap().chars().collect();
        let at = at.index(text.len());
        let end = (at + cut).min(text.len());
        text.splice(at..end, with.chars());
        let text: String = text.into_iter().collect();
        match decode(&text) {
            Ok(value) => {
                let canonical = encode(&value).unwrap();
                prop_assert_eq!(to_typed(&decode(&canonical).unwrap()), to_typed(&value));
            }
            Err(error) => prop_assert!(error.at <= text.len()),
        }
    }

    #[test]
    fn wire_304_plain_json_is_read_as_serde_json_reads_it(numbers in vec(number(), 0..8), texts in vec(any::<String>(), 0..4)) {
        let finite: Vec<f64> = numbers.into_iter().filter(|n| n.is_finite()).collect();
        let json = serde_json::json!({ "n": finite, "s": texts });
        let decoded = decode(&format!("{PREFIX}{}", serde_json::to_string_pretty(&json).unwrap())).unwrap();
        let read: Vec<u64> =
            decoded.at_path(&["n"]).unwrap().as_array().unwrap().elements().map(|(_, n)| n.as_f64().unwrap().to_bits()).collect();
        prop_assert_eq!(read, finite.iter().map(|n| n.to_bits()).collect::<Vec<_>>());
        for (index, text) in texts.iter().enumerate() {
            let index = index.to_string();
            prop_assert_eq!(decoded.at_path(&["s", index.as_str()]).and_then(Value::as_str), Some(text.as_str()));
        }
    }

    #[test]
    fn wire_303_numbers_print_as_ecmascript_prints_them(n in number().prop_filter("has plain text", |n| n.is_finite())) {
        prop_assume!(n.to_bits() != (-0.0f64).to_bits());
        let text = encode(&Value::Number(n)).unwrap();
        let mut buffer = ryu_js::Buffer::new();
        prop_assert_eq!(&text[PREFIX.len()..], buffer.format_finite(n));
    }

    #[test]
    fn wire_303_strings_are_escaped_as_serde_json_escapes_them(text in any::<String>(), control in 0u8..0x20) {
        let text = format!("{text}{}{text}", char::from(control));
        prop_assert_eq!(&encode(&Value::from(text.as_str())).unwrap()[PREFIX.len()..], serde_json::to_string(&text).unwrap());
    }

    #[test]
    fn wire_401_the_hash_is_sha_256_of_the_stream(value in value()) {
        let digest: [u8; 32] = Sha256::digest(hash_preimage(&value)).into();
        prop_assert_eq!(hash_value(&value), digest);
    }

    #[test]
    fn wire_101_components_decode_to_what_they_encode(text in any::<String>()) {
        let encoded = encode_component(&text);
        prop_assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.!~*'()%".contains(&b)));
        prop_assert_eq!(decode_component(&encoded), Some(text));
    }

    #[test]
    fn wire_104_construction_is_injective(p1 in component(), s1 in component(), p2 in component(), s2 in component()) {
        let identities = [ScopeIdentity::session(p1, s1), ScopeIdentity::session(p2, s2)];
        for (scope_a, scope_b) in [(Scope::User, Scope::User), (Scope::Session, Scope::Session), (Scope::User, Scope::Session)] {
            let a = ScopeKey::resolve(scope_a, &identities[0]).unwrap();
            let b = ScopeKey::resolve(scope_b, &identities[1]).unwrap();
            let same_source = scope_a == scope_b
                && identities[0].principal == identities[1].principal
                && (scope_a == Scope::User || identities[0].session_id == identities[1].session_id);
            prop_assert_eq!(a == b, same_source);
            prop_assert_eq!(a.applicable_to(&identities[0]), true);
            let own = ScopeKey::resolve(scope_b, &identities[0]).unwrap();
            prop_assert_eq!(b.applicable_to(&identities[0]), own == b);
            prop_assert_eq!(ScopeKey::parse(a.as_str()), Ok(a.clone()));
            prop_assert_eq!(ScopeKey::resolve(scope_a, &a.identity()), Ok(a));
        }
    }

    #[test]
    fn wire_105_exactly_the_image_is_accepted(text in prop_oneof![near_scope_key(), any::<String>()]) {
        let from_parts = match scope_of(&text) {
            Scope::Space => Some(ScopeKey::space()),
            scope => identity_of(&text).and_then(|identity| ScopeKey::resolve(scope, &identity).ok()),
        };
        let in_image = from_parts.is_some_and(|key| key.as_str() == text);
        prop_assert_eq!(is_scope_key(&text), in_image, "{:?}", text);
        prop_assert_eq!(ScopeKey::parse(&text).is_ok(), in_image);
    }
}

/// Values that one could take for one another; those of one line are equal, and no others are.
fn confusable() -> Vec<Vec<Value>> {
    let text = |text: &str| vec![decode(&format!("{PREFIX}{text}")).unwrap()];
    let long = "x".repeat(65);
    let holes = |runs: &[u32]| {
        Value::Array(Array::from_slots(runs.iter().map(|n| Slot::Holes(*n)).collect()).unwrap())
    };
    vec![
        vec![
            f64::NAN.into(),
            (-f64::NAN).into(),
            f64::from_bits(0x7FF8_0000_0000_0001).into(),
        ],
        vec![0.0.into()],
        vec![(-0.0).into()],
        vec![1.into()],
        text("{\"/BigInt@1\":\"AQ\"}"),
        text("{\"/EpochNsec@1\":\"AQ\"}"),
        text("{\"/EpochDay@1\":\"AQ\"}"),
        text("{\"/Bytes@1\":\"AQ\"}"),
        text("{\"/Hash@1\":{\"hash\":\"AQ\",\"tag\":\"\"}}"),
        vec!["1".into()],
        vec![Value::Symbol("1".into())],
        vec![long.as_str().into()],
        vec![Value::Symbol(long.as_str().into())],
        vec![Value::Bool(true)],
        vec![Value::Bool(false)],
        vec![Value::Null],
        vec![Value::Undefined],
        vec!["".into()],
        text("[]"),
        vec![holes(&[1])],
        vec![holes(&[2]), holes(&[1, 1])],
        text("[null]"),
        text("[{\"/Undefined@1\":null}]"),
        text("[[]]"),
        text("{}"),
        text("{\"a\":null}"),
        text("{\"a\":{\"/Undefined@1\":null}}"),
        text("{\"b\":{\"/Undefined@1\":null}}"),
        text("{\"a\":1,\"b\":2}"),
        text("{\"a\":2,\"b\":1}"),
        text("{\"0\":1,\"a\":2}"),
        text("{\"/Zork@1\":1}"),
        text("{\"/Zork@2\":1}"),
        text("{\"/Zork@1\":2}"),
        text("{\"/Link@1\":{}}"),
        text("{\"/Error@1\":{\"message\":\"m\"}}"),
        text("{\"/Error@1\":{\"message\":\"n\"}}"),
        text("{\"/Error@1\":{\"message\":\"m\",\"stack\":\"\"}}"),
        text("{\"/RegExp@1\":{\"source\":\"ab\"}}"),
        text("{\"/RegExp@1\":{\"source\":\"a\",\"flags\":\"g\"}}"),
        text("{\"/KeyPair@1\":{\"algorithm\":\"a\",\"privateKey\":\"AQ\",\"publicKey\":\"\"}}"),
        text("{\"/KeyPair@1\":{\"algorithm\":\"a\",\"privateKey\":\"\",\"publicKey\":\"AQ\"}}"),
        text("{\"/Problematic@1\":{\"error\":\"\",\"state\":1,\"tag\":\"A@1\"}}"),
        text("{\"/Problematic@1\":{\"error\":\"\",\"state\":1,\"tag\":\"B@1\"}}"),
    ]
}

#[test]
fn wire_313_what_could_be_confused_is_told_apart_by_equality_and_by_hash_alike() {
    let values: Vec<(usize, Value)> = confusable()
        .into_iter()
        .enumerate()
        .flat_map(|(line, alike)| alike.into_iter().map(move |value| (line, value)))
        .collect();
    let contexts: [fn(Value) -> Value; 4] = [
        |value| value,
        |value| Value::from(vec![1.into(), value]),
        |value| Value::Object([("k", value)].into_iter().collect()),
        |value| {
            special(Special::Unknown {
                tag: "Zork@3".into(),
                state: value,
            })
        },
    ];
    for within in contexts {
        for (line_a, a) in &values {
            for (line_b, b) in &values {
                let (a, b) = (within(a.clone()), within(b.clone()));
                let told = format!("{} and {}", to_typed(&a), to_typed(&b));
                assert_eq!(value_equal(&a, &b), line_a == line_b, "{told}");
                assert_eq!(hash_value(&a) == hash_value(&b), line_a == line_b, "{told}");
            }
        }
    }
}
