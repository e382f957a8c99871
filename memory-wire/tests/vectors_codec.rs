//! `wire-codec.jsonl`, whole (WIRE-302…312), and the two approved refusals that go beyond it.

mod typed_value;

use memory_wire::codec::{DecodeReason, EncodeError, decode, encode};
use memory_wire::value::Value;
use serde_json::Value as Json;
use typed_value::{from_typed, js_string, run_file, same, to_typed};

#[test]
fn wire_codec_file() {
    run_file("wire-codec.jsonl", |line| match line["kind"].as_str() {
        Some("encode") => check_encode(line),
        Some("encode-refused") => check_refused(line),
        Some("decode") => check_decode(line),
        other => Err(format!("unknown kind {other:?}")),
    });
}

fn check_encode(line: &Json) -> Result<(), String> {
    let value = from_typed(&line["value"]);
    let text = encode(&value).map_err(|error| error.to_string())?;
    same("text", text.as_str(), line["text"].as_str().unwrap())?;
    let decoded = decode(&text).map_err(|error| error.to_string())?;
    let expected = if line["roundtrip"] == true {
        to_typed(&value)
    } else {
        to_typed(&from_typed(&line["roundtrip"]))
    };
    same("decoded again", to_typed(&decoded), expected)
}

/// Most refused inputs are things the value model cannot even express; the unsafe keys it can.
fn check_refused(line: &Json) -> Result<(), String> {
    let name = line["name"].as_str().unwrap();
    let object = |key: &str, value: Value| Value::Object([(key, value)].into_iter().collect());
    let (value, key) = match name {
        "unsafe key __proto__" => (object("__proto__", 1.into()), "__proto__"),
        "unsafe key constructor" => (object("constructor", 1.into()), "constructor"),
        "unsafe in slash" => {
            let object = [("/a", Value::from(1)), ("constructor", Value::from(1))]
                .into_iter()
                .collect();
            (Value::Object(object), "constructor")
        }
        "unsafe nested in slash" => (object("/a", object("__proto__", 1.into())), "__proto__"),
        "map" | "set" | "unique symbol" | "function" | "date" | "cycle" | "u8" => {
            return same("error", line["error"].as_bool(), Some(true));
        }
        // The reference drops a property beside an array's elements; an array of the model has none to drop.
        "array extra prop" => {
            let text = encode(&Value::from(vec![1.into()])).map_err(|error| error.to_string())?;
            return same("text", text.as_str(), line["text"].as_str().unwrap());
        }
        _ => return Err("a refused input this test does not know".to_owned()),
    };
    same("refusal", encode(&value), Err(EncodeError::UnsafeKey(key)))
}

fn check_decode(line: &Json) -> Result<(), String> {
    let text = js_string(&line["text"]);
    let text = text.as_str().expect("a frame is well-formed text");
    let decoded = decode(text);
    if line["error"] == true {
        return match decoded {
            Ok(value) => Err(format!("accepted as {}", to_typed(&value))),
            Err(error) => same("position is inside the text", error.at <= text.len(), true),
        };
    }
    if line["reencodeError"] == true {
        // Deviation D3: what could never be written again is not read either.
        let reason = decoded
            .map(|value| to_typed(&value))
            .map_err(|error| error.reason);
        return match reason {
            Err(DecodeReason::UnsafeKey(_)) => Ok(()),
            other => Err(format!("expected a refusal of the unsafe key, got {other:?}")),
        };
    }
    if line["arrayLength"]
        .as_u64()
        .is_some_and(|length| length > 1_000_000)
    {
        // Deviation D2: the hole budget (WIRE-314).
        return match decoded
            .map(|value| to_typed(&value))
            .map_err(|error| error.reason)
        {
            Err(DecodeReason::TooManyHoles) => Ok(()),
            other => Err(format!("expected a refusal by the hole budget, got {other:?}")),
        };
    }
    let value = decoded.map_err(|error| error.to_string())?;
    same("value", to_typed(&value), to_typed(&from_typed(&line["value"])))?;
    let again = encode(&value).map_err(|error| error.to_string())?;
    same("reencoded", again.as_str(), line["reencoded"].as_str().unwrap())
}
