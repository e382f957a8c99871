//! `wire-schema-table.jsonl`, whole (WIRE-770, WIRE-771).

mod typed_value;

use memory_wire::codec::{decode, encode};
use memory_wire::link::Regime;
use memory_wire::message::SessionSync;
use memory_wire::schema_table::{compress, expand, find_reserved_reference};
use serde_json::{Value as Json, json};
use typed_value::{run_file, same};

#[test]
fn wire_schema_table_file() {
    run_file("wire-schema-table.jsonl", |line| match line["kind"].as_str() {
        Some("compress") => {
            let original = sync(line, "sync");
            let compressed = compress(&original, Regime::Legacy);
            same(
                "compressed",
                spelled(&compressed).as_str(),
                text(line, "compressed"),
            )?;
            let changed = compressed.schema_table.is_some();
            same("changed", Json::from(changed), line["changed"].clone())?;
            let again = expand(compressed, Regime::Legacy).map_err(|e| e.to_string())?;
            let roundtrip = spelled(&again) == text(line, "sync");
            same("roundtrip", Json::from(roundtrip), line["roundtrip"].clone())
        }
        Some("expand") => match expand(sync(line, "sync"), Regime::Legacy) {
            Ok(expanded) => same(
                "expanded",
                Some(spelled(&expanded).as_str()),
                line["expanded"].as_str(),
            ),
            Err(_) => same("error", json!(true), line["error"].clone()),
        },
        Some("reservedRef") => {
            let document = decode(text(line, "doc")).unwrap();
            let found = find_reserved_reference(&document, Regime::Legacy);
            same("found", found.as_deref(), line["found"].as_str())
        }
        other => Err(format!("unknown kind {other:?}")),
    });
}

fn text<'a>(line: &'a Json, key: &str) -> &'a str {
    line[key].as_str().unwrap()
}

fn sync(line: &Json, key: &str) -> SessionSync {
    SessionSync::from_value(&decode(text(line, key)).unwrap()).unwrap()
}

fn spelled(sync: &SessionSync) -> String {
    encode(&sync.to_value()).unwrap()
}
