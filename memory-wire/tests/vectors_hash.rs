//! `wire-hash.jsonl`, whole (WIRE-206, WIRE-313, WIRE-401…405).

mod typed_value;

use memory_wire::codec::encode;
use memory_wire::equality::value_equal;
use memory_wire::hash::{hash_preimage, hash_string, hash_value, precondition_value_hash, tagged_hash};
use memory_wire::scope_key::Scope;
use memory_wire::well_known::{effect_nonce, stream_sidecar_id};
use serde_json::Value as Json;
use typed_value::{from_typed, run_file, same, to_hex};

#[test]
fn wire_hash_file() {
    run_file("wire-hash.jsonl", |line| match line["kind"].as_str() {
        Some("hash") => check_hash(line),
        Some("equal") => check_equal(line),
        Some("preconditionValueHash") => check_precondition(line),
        Some("streamEntriesDocId") => check_sidecar(line),
        Some("effectIntentNonce") => check_nonce(line),
        other => Err(format!("unknown kind {other:?}")),
    });
}

fn check_hash(line: &Json) -> Result<(), String> {
    let value = from_typed(&line["value"]);
    let preimage = hash_preimage(&value);
    same(
        "preimage length",
        preimage.len() as u64,
        line["preimageLength"].as_u64().unwrap(),
    )?;
    if let Some(hex) = line["preimageHex"].as_str() {
        same("preimage", to_hex(&preimage).as_str(), hex)?;
    }
    same(
        "digest",
        to_hex(&hash_value(&value)).as_str(),
        line["digestHex"].as_str().unwrap(),
    )?;
    let tagged = tagged_hash(&value);
    same(
        "untagged",
        format!("fid1:{}", hash_string(&value)),
        tagged.clone(),
    )?;
    same("hash", tagged.as_str(), line["hash"].as_str().unwrap())
}

fn check_equal(line: &Json) -> Result<(), String> {
    let (a, b) = (from_typed(&line["a"]), from_typed(&line["b"]));
    let expected = line["equal"].as_bool().unwrap();
    same("equal", value_equal(&a, &b), expected)?;
    same("equal, turned round", value_equal(&b, &a), expected)
}

fn check_precondition(line: &Json) -> Result<(), String> {
    let value = from_typed(&line["value"]);
    same(
        "encoded",
        encode(&value).unwrap().as_str(),
        line["encoded"].as_str().unwrap(),
    )?;
    same(
        "hash",
        precondition_value_hash(&value).unwrap().as_str(),
        line["hash"].as_str().unwrap(),
    )
}

fn check_sidecar(line: &Json) -> Result<(), String> {
    let stream = &line["stream"];
    let path: Vec<String> = stream["path"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s.as_str().unwrap().to_owned())
        .collect();
    let scope = stream["scope"]
        .as_str()
        .map_or(Scope::default(), |name| Scope::from_name(name).unwrap());
    let id = stream_sidecar_id(&stream["id"].as_str().unwrap().into(), &path, scope);
    same("docId", id.as_str(), line["docId"].as_str().unwrap())
}

fn check_nonce(line: &Json) -> Result<(), String> {
    let nonce = effect_nonce(
        &line["eventId"].as_str().unwrap().into(),
        line["instance"].as_str().unwrap(),
    );
    same("nonce", nonce.as_str(), line["nonce"].as_str().unwrap())
}
