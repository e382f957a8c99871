//! Values (F31, F33).

use std::sync::Arc;

use memory_wire::{Value, codec};
use serde_json::json;

use crate::support::SPACE;
use crate::support::peer::{Peer, Wire, watching};
use crate::{effects_since, opened, started_on};

/// Values that other systems lose or alter on their way, as text of the codec.
fn values() -> Vec<Value> {
    let number = |n: f64| Value::from(n);
    let big = |text: &str| Value::BigInt(Arc::new(text.parse().expect("a number")));
    let mut values = vec![
        number(f64::NAN),
        number(f64::INFINITY),
        number(f64::NEG_INFINITY),
        number(-0.0),
        number(0.0),
        number(5e-324),
        number(9_007_199_254_740_993.0),
        number(1e308),
        big("9007199254740993"),
        big("9223372036854775808"),
        big("-9223372036854775808"),
        big("18446744073709551616"),
        Value::Undefined,
        Value::Null,
        Value::from("\u{0}x\u{0}"),
        Value::from("\u{feff}\u{2028}\u{10ffff}"),
    ];
    values.push(object([("present", Value::Undefined), ("gone", Value::Null)]));
    values
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Object(fields.into_iter().collect())
}

fn set(session: &str, local_seq: u64, id: &str, value: &Value) -> String {
    let document = object([("value", value.clone())]);
    let operation = object([
        ("op", Value::from("set")),
        ("id", Value::from(id)),
        ("value", document),
    ]);
    let shell = json!({
        "type": "transact", "requestId": format!("t{local_seq}"), "space": SPACE, "sessionId": session,
        "commit": { "localSeq": local_seq, "reads": { "confirmed": [], "pending": [] }, "operations": ["here"] },
    });
    let operation = codec::encode(&operation).expect("encodes");
    format!("fvj1:{shell}").replace("\"here\"", operation.strip_prefix("fvj1:").expect("a prefix"))
}

/// The text of a document's value within a frame.
fn told(peer: &Peer, id: &str) -> Option<Value> {
    peer.texts.iter().rev().find_map(|text| {
        let frame = codec::decode(text).ok()?;
        let sync = frame
            .at_path(&["effect"])
            .or_else(|| frame.at_path(&["ok", "sync"]))?;
        let upserts = sync.member("upserts")?.as_array()?;
        let entry = upserts
            .elements()
            .map(|(_, entry)| entry)
            .find(|entry| entry.member("id").and_then(Value::as_str) == Some(id))?;
        entry.member("doc")?.as_object()?.get("value").cloned()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_f33_what_json_and_sqlite_lose_comes_back_bit_by_bit_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let ids: Vec<String> = (0..values().len()).map(|n| format!("of:\u{1}{n}/%#")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    {
        let server = started_on(directory.path());
        let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
        let mut reader = opened(&server, Wire::AsSocket, "r", "did:key:r").await;
        reader
            .request(watching("session.watch.set", "r", "w", &ids))
            .await;
        for (n, value) in values().iter().enumerate() {
            let local = n as u64 + 1;
            writer
                .sender()
                .send(set("w", local, ids[n], value))
                .await
                .expect("open");
            let verdict = writer.hear().await.expect("a verdict");
            assert_eq!(verdict["ok"]["seq"], local, "{verdict}");
            let from = reader.heard.len();
            assert_eq!(
                effects_since(&server, &mut reader, "r", from).await.len(),
                1,
                "{value:?} is told"
            );
            writer.hear().await;
        }
        same(&reader, &ids);
        // What has its content for a name is not written again, NaN included: or else it would be for ever.
        for (n, elided) in [(1_001, false), (1_002, true)] {
            writer
                .sender()
                .send(set("w", n, "cid:not-a-number", &Value::from(f64::NAN)))
                .await
                .expect("open");
            let verdict = writer.hear().await.expect("a verdict");
            assert_eq!(
                verdict["ok"]["elidedOpIndexes"] == json!([0]),
                elided,
                "{verdict}"
            );
        }
        server.shut_down().await;
    }
    let server = started_on(directory.path());
    let mut reader = opened(&server, Wire::AsSocket, "r2", "did:key:r").await;
    reader
        .request(watching("session.watch.set", "r2", "w", &ids))
        .await;
    same(&reader, &ids);
}

fn same(reader: &Peer, ids: &[&str]) {
    for (id, value) in ids.iter().zip(values()) {
        let told = told(reader, id).unwrap_or_else(|| panic!("{value:?} was not told"));
        let text = |value: &Value| codec::encode(value).expect("encodes");
        assert_eq!(text(&told), text(&value), "{id}");
        if let (Value::Number(told), Value::Number(sent)) = (&told, &value) {
            assert_eq!(told.to_bits(), sent.to_bits(), "{id}");
        }
    }
}
