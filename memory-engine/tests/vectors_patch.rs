//! Patches (`engine-patch.jsonl`, whole): what they do to a document and which reads they conflict with, as the engine
//! uses them.

mod support;

use memory_engine::{ApplyCommit, Engine, EngineOptions, ReadInstance};
use memory_wire::message::ClientCommit;
use memory_wire::patch::{PatchOp, apply_patches, parse_patches, patches_conflict_with_read};
use memory_wire::pointer::DocPath;
use memory_wire::value::{Object, Value};
use serde_json::{Value as Json, json};
use support::{NOW_MS, json as plain, normal, value, vector_lines};

#[test]
fn patches_do_and_conflict_as_the_vectors_say() {
    let mut failures = Vec::new();
    let mut count = (0, 0);
    for (index, line) in vector_lines("engine-patch.jsonl").iter().enumerate() {
        match line["kind"].as_str().unwrap() {
            "patch" => {
                count.0 += 1;
                let base = if line["base"].is_null() {
                    Value::Object(Object::new())
                } else {
                    value(&line["base"])
                };
                let got = match parse_patches(&value(&line["ops"])).and_then(|ops| apply_patches(&base, &ops))
                {
                    Ok(result) => json!({ "ok": plain(&result) }),
                    Err(error) => {
                        json!({ "error": { "name": error.class_name(), "message": error.to_string() } })
                    }
                };
                if normal(&got) != normal(&line["expect"]) {
                    failures.push(format!(
                        "line {index} {}\n  want {}\n  got  {got}",
                        line["ops"], line["expect"]
                    ));
                }
                if let Some(failure) = through_the_store(line) {
                    failures.push(format!(
                        "line {index} {} · through the store: {failure}",
                        line["ops"]
                    ));
                }
            }
            "overlap" => {
                count.1 += 1;
                let op = PatchOp::from_value(&value(&line["op"])).unwrap();
                let touched: Json = op
                    .touched_paths()
                    .map(|path| path.iter().map(|s| s.as_str()).collect::<Vec<_>>())
                    .collect();
                let mut got = json!({ "touched": touched, "changesParentKeySet": op.changes_parent_key_set(), "reads": [] });
                for read in line["reads"].as_array().unwrap() {
                    let path: DocPath = read["path"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|s| s.as_str().unwrap().into())
                        .collect();
                    got["reads"].as_array_mut().unwrap().push(json!({
                        "path": read["path"],
                        "recursive": patches_conflict_with_read(std::slice::from_ref(&op), &path, false),
                        "nonRecursive": patches_conflict_with_read(std::slice::from_ref(&op), &path, true),
                    }));
                }
                for part in ["touched", "changesParentKeySet", "reads"] {
                    if got[part] != line[part] {
                        failures.push(format!(
                            "line {index} {part}\n  want {}\n  got  {}",
                            line[part], got[part]
                        ));
                    }
                }
            }
            other => panic!("unknown kind {other}"),
        }
    }
    println!(
        "patch: {} patch, {} overlap, {} failures",
        count.0,
        count.1,
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(count, (64, 14));
}

/// The same patch as a commit: stored and read back, or refused with nothing stored (ENG-381).
fn through_the_store(line: &Json) -> Option<String> {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let mut apply = |local_seq: u64, operation: Json| {
        let commit = json!({ "localSeq": local_seq, "operations": [operation], "reads": { "confirmed": [], "pending": [] } });
        let commit = ClientCommit::from_value(&value(&commit)).map_err(|error| error.message)?;
        engine
            .apply_commit(ApplyCommit::authored(&"s".into(), None, &commit, NOW_MS))
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let mut seq = 0;
    if !line["base"].is_null()
        && apply(1, json!({ "op": "set", "id": "of:d", "value": line["base"] })).is_ok()
    {
        seq += 1;
    }
    let patched = apply(2, json!({ "op": "patch", "id": "of:d", "patches": line["ops"] }));
    let stored = engine.server_seq().unwrap().0;
    match (&patched, line["expect"].get("ok")) {
        (Ok(()), Some(want)) => {
            let got = engine
                .read(&"of:d".into(), ReadInstance::Space, &"".into(), None)
                .unwrap();
            let got = got.map_or(Json::Null, |document| plain(&document));
            (normal(&got) != normal(want)).then(|| format!("read {got}"))
        }
        (Err(_), None) => (stored != seq).then(|| "a refused commit left a row".to_owned()),
        (verdict, _) => Some(format!("{verdict:?}")),
    }
}
