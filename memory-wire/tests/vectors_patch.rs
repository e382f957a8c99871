//! `wire-patch.jsonl` and `engine-patch.jsonl`, whole (WIRE-601…608, ENG-342…346, ENG-355).

mod typed_value;

use memory_wire::codec::{decode, encode};
use memory_wire::patch::{PatchError, PatchOp, apply_patches, parse_patches};
use memory_wire::pointer::{encode_pointer, is_path_prefix, parent_path, parse_pointer, paths_overlap};
use memory_wire::value::{Object, Value};
use serde_json::Value as Json;
use typed_value::{run_file, same};

#[test]
fn wire_patch_file() {
    run_file("wire-patch.jsonl", |line| match line["kind"].as_str() {
        Some("apply") => {
            let base = line["base"].as_str().map(|text| decode(text).unwrap());
            let patches = decode(line["patches"].as_str().unwrap()).unwrap();
            let outcome = apply(base.as_ref(), &patches).map(|value| encode(&value).unwrap());
            match line["result"].as_str() {
                Some(expected) => same(
                    "result",
                    outcome.map_err(|e| e.to_string()),
                    Ok(expected.to_owned()),
                ),
                None => check_error(outcome, &line["error"]),
            }
        }
        Some("pointer") => match parse_pointer(line["pointer"].as_str().unwrap()) {
            Ok(path) => {
                same(
                    "segments",
                    Json::from_iter(path.iter().map(|s| s.as_str())),
                    line["segments"].clone(),
                )?;
                same(
                    "reencoded",
                    encode_pointer(&path).as_str(),
                    line["reencoded"].as_str().unwrap_or("(error)"),
                )
            }
            Err(error) => check_error(Err::<(), _>(error.into()), &line["error"]),
        },
        Some("overlap") => {
            let (left, right) = (strings(&line["left"]), strings(&line["right"]));
            same(
                "prefix",
                Json::from(is_path_prefix(&left, &right)),
                line["leftIsPrefixOfRight"].clone(),
            )?;
            same(
                "overlap",
                Json::from(paths_overlap(&left, &right)),
                line["overlap"].clone(),
            )?;
            same(
                "parent",
                Json::from(parent_path(&left)),
                line["parentOfLeft"].clone(),
            )
        }
        Some("touched") => {
            let op = PatchOp::from_value(&plain(&line["patch"])).map_err(|e| e.to_string())?;
            same("paths", touched(&op), line["paths"].clone())?;
            same(
                "structural",
                Json::from(op.is_structural()),
                line["structural"].clone(),
            )?;
            same(
                "key set",
                Json::from(op.changes_parent_key_set()),
                line["changesParentKeySet"].clone(),
            )
        }
        other => Err(format!("unknown kind {other:?}")),
    });
}

#[test]
fn engine_patch_file() {
    run_file("engine-patch.jsonl", |line| match line["kind"].as_str() {
        Some("patch") => {
            let base = (!line["base"].is_null()).then(|| plain(&line["base"]));
            let outcome = apply(base.as_ref(), &plain(&line["ops"])).map(|value| encode(&value).unwrap());
            match line["expect"].get("ok") {
                Some(expected) => {
                    let expected = encode(&plain(expected)).unwrap();
                    same("result", outcome.map_err(|e| e.to_string()), Ok(expected))
                }
                None => check_error(outcome, &line["expect"]["error"]),
            }
        }
        Some("overlap") => {
            let op = PatchOp::from_value(&plain(&line["op"])).map_err(|e| e.to_string())?;
            same("touched", touched(&op), line["touched"].clone())?;
            same(
                "key set",
                Json::from(op.changes_parent_key_set()),
                line["changesParentKeySet"].clone(),
            )?;
            for read in line["reads"].as_array().unwrap() {
                let path: Vec<_> = strings(&read["path"]).into_iter().map(Into::into).collect();
                let what = format!("read {path:?}");
                same(
                    &what,
                    Json::from(op.conflicts_with_read(&path, false)),
                    read["recursive"].clone(),
                )?;
                same(
                    &what,
                    Json::from(op.conflicts_with_read(&path, true)),
                    read["nonRecursive"].clone(),
                )?;
            }
            Ok(())
        }
        other => Err(format!("unknown kind {other:?}")),
    });
}

fn apply(base: Option<&Value>, patches: &Value) -> Result<Value, PatchError> {
    let empty = Value::Object(Object::new());
    apply_patches(base.unwrap_or(&empty), &parse_patches(patches)?)
}

fn check_error<T: std::fmt::Debug>(outcome: Result<T, PatchError>, expected: &Json) -> Result<(), String> {
    match outcome {
        Ok(value) => Err(format!("applied to {value:?}, expected {expected}")),
        Err(error) => {
            same("name", error.class_name(), expected["name"].as_str().unwrap())?;
            same(
                "message",
                error.to_string().as_str(),
                expected["message"].as_str().unwrap(),
            )
        }
    }
}

fn strings(json: &Json) -> Vec<String> {
    json.as_array()
        .unwrap()
        .iter()
        .map(|s| s.as_str().unwrap().to_owned())
        .collect()
}

fn touched(op: &PatchOp) -> Json {
    op.touched_paths()
        .map(|path| Json::from_iter(path.iter().map(|s| s.as_str())))
        .collect()
}

/// A value spelled in a vector as plain JSON, which holds no keys that the codec escapes.
fn plain(json: &Json) -> Value {
    decode(&format!("fvj1:{json}")).unwrap()
}
