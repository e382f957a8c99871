//! ENG-1039: depth has an end, and everything within it is ordinary.

use memory_engine::{Engine, EngineError, EngineOptions, ReadInstance};
use memory_wire::ids::Seq;
use memory_wire::message::ClientCommit;
use memory_wire::patch::PatchError;
use memory_wire::value::Value;
use memory_wire::{codec, value};
use serde_json::json;

use crate::{by, commit, number, patch, set};

/// ENG-1039: a document as deep as the codec lets in is stored, patched, scanned and read on an ordinary thread's stack.
#[test]
fn eng_1039_the_deepest_document_is_ordinary() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let mut document = value!({ "schema": "schema-ref@2:x" });
    for _ in 0..2_000 {
        document = value!({ "n": document });
    }
    let operations = value!([
        { "op": "set", "id": "of:deep", "value": { "value": document } },
        { "op": "patch", "id": "of:deep", "patches": [{ "op": "move", "from": "/value/n", "path": "/value/m" }] }
    ]);
    let reads = value!({ "confirmed": [], "pending": [] });
    let commit =
        ClientCommit::from_value(&value!({ "localSeq": 1, "operations": operations, "reads": reads }))
            .unwrap();
    let applied = by(&mut engine, "s", &commit).unwrap();
    assert_eq!(applied.revisions.len(), 2);
    let path: Vec<&str> = std::iter::once("m")
        .chain(std::iter::repeat_n("n", 1_999))
        .chain(["schema"])
        .collect();
    let value = number(&engine, "of:deep").unwrap();
    assert_eq!(
        value.at_path(&path).and_then(Value::as_str),
        Some("schema-ref@2:x")
    );
}

/// ENG-1039: patches cannot nest a document beyond what has a text, whatever they are made of.
#[test]
fn eng_1039_patches_cannot_nest_a_document_out_of_reach() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    by(
        &mut engine,
        "s",
        &commit(1, json!({ "operations": [set("of:d", json!({ "a": 1 }))] })),
    )
    .unwrap();
    let long = "/value".to_owned() + &"/n".repeat(900);
    let mut refused = None;
    for local_seq in 2..40 {
        let deepen = json!([
            { "op": "add", "path": format!("{long}/x"), "value": 1 },
            { "op": "move", "from": "/value/n", "path": format!("/value/m{local_seq}") },
            { "op": "move", "from": format!("/value/m{local_seq}"), "path": format!("{long}/x") },
        ]);
        let deepen = if local_seq == 2 {
            deepen
        } else {
            json!([
                { "op": "move", "from": "/value/n", "path": "/value/k" },
                { "op": "add", "path": format!("{long}/x"), "value": 1 },
                { "op": "move", "from": "/value/k", "path": format!("{long}/x") },
            ])
        };
        if let Err(error) = by(
            &mut engine,
            "s",
            &commit(local_seq, json!({ "operations": [patch("of:d", deepen)] })),
        ) {
            refused = Some((local_seq, error));
            break;
        }
    }
    let (local_seq, error) = refused.expect("the depth has an end");
    assert!(
        matches!(
            error,
            EngineError::Encode(_) | EngineError::Patch(PatchError::TooDeep { .. })
        ),
        "{error}"
    );
    // What was accepted can be read and told; what was refused left nothing.
    assert_eq!(engine.server_seq().unwrap(), Seq(local_seq - 1));
    codec::encode(
        &engine
            .read(&"of:d".into(), ReadInstance::Space, &"".into(), None)
            .unwrap()
            .unwrap(),
    )
    .unwrap();
}
