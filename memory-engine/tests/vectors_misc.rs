//! Small functions (`engine-misc.jsonl`): store paths, derived ids, hashes and scope keys. The kinds of the SQLite
//! builtin are run where it lives.

mod support;

use std::collections::BTreeMap;

use memory_engine::EngineError;
use memory_engine::store_path::{StoreRoot, encoded_space_id};
use memory_wire::ids::{EntityId, EventId, SpaceId};
use memory_wire::scope_key::{Scope, ScopeIdentity, ScopeKey, is_scope_key, scope_of};
use memory_wire::{codec, hash, well_known};
use serde_json::{Value as Json, json};
use support::{value, vector_lines};

/// Kinds of this file that belong to the SQLite builtin's own vector test.
const SQLITE_BUILTIN: [&str; 6] = [
    "cell-db-token",
    "cell-db-file",
    "guard",
    "write-target",
    "row-label",
    "create-table",
];

#[test]
fn small_functions_answer_as_the_vectors_say() {
    let mut failures = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (index, line) in vector_lines("engine-misc.jsonl").iter().enumerate() {
        let kind = line["kind"].as_str().unwrap();
        if SQLITE_BUILTIN.contains(&kind) {
            continue;
        }
        *counts.entry(kind.to_owned()).or_default() += 1;
        let text = |key: &str| line[key].as_str().unwrap();
        let mut check = |what: &str, got: Json, want: &Json| {
            if got != *want {
                failures.push(format!("line {index} {kind} {what}\n  want {want}\n  got  {got}"));
            }
        };
        match kind {
            "store-path" => {
                let space = SpaceId::from(text("subject"));
                let stated = |result: Result<String, EngineError>| match result {
                    Ok(path) => json!({ "ok": path }),
                    Err(error) => json!({ "error": { "name": error.name(), "message": error.to_string() } }),
                };
                let path = |root: StoreRoot| {
                    root.store_path(&space)
                        .map(|path| path.to_str().unwrap().to_owned())
                };
                check("encoded", stated(encoded_space_id(&space)), &line["encoded"]);
                for (what, root) in [
                    ("directory", StoreRoot::direct(text("directoryStore"))),
                    ("serverDirectory", StoreRoot::configured(text("directoryStore"))),
                    ("singleFile", StoreRoot::direct(text("singleFileStore"))),
                    ("serverSingleFile", StoreRoot::configured(text("singleFileStore"))),
                ] {
                    check(what, stated(path(root.unwrap())), &line[what]);
                }
            }
            "store-root" => {
                let directory = |root: StoreRoot| Json::from(root.directory().to_str().unwrap());
                check(
                    "dir",
                    directory(StoreRoot::direct(text("from")).unwrap()),
                    &line["dir"],
                );
                check(
                    "root",
                    directory(StoreRoot::direct(text("from")).unwrap()),
                    &line["root"],
                );
                if let Some(server) = line.get("serverDir") {
                    check(
                        "serverDir",
                        directory(StoreRoot::configured(text("from")).unwrap()),
                        server,
                    );
                }
            }
            "store-filename" => {
                let root = if text("mode") == "single" {
                    "/data/space.sqlite"
                } else {
                    "/data/mem"
                };
                let space = StoreRoot::direct(root).unwrap().space_of_stem(text("stem"));
                check(
                    "space",
                    space.map_or(Json::Null, |space| space.as_str().into()),
                    &line["space"],
                );
            }
            "stream-doc-id" => {
                let stream = &line["stream"];
                let path: Vec<&str> = stream["path"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|s| s.as_str().unwrap())
                    .collect();
                let scope = stream
                    .get("scope")
                    .and_then(Json::as_str)
                    .and_then(Scope::from_name)
                    .unwrap_or_default();
                let id = well_known::stream_sidecar_id(
                    &EntityId::from(stream["id"].as_str().unwrap()),
                    &path,
                    scope,
                );
                check("id", id.as_str().into(), &line["id"]);
            }
            "effect-nonce" => {
                let nonce = well_known::effect_nonce(&EventId::from(text("eventId")), text("instanceId"));
                check("nonce", nonce.into(), &line["nonce"]);
            }
            "precondition-hash" => {
                let value = value(&line["value"]);
                check("encoded", codec::encode(&value).unwrap().into(), &line["encoded"]);
                check(
                    "hash",
                    hash::precondition_value_hash(&value).unwrap().into(),
                    &line["hash"],
                );
            }
            "scope-key" => {
                check("canonical", is_scope_key(text("key")).into(), &line["canonical"]);
                check(
                    "parse",
                    ScopeKey::parse(text("key")).is_ok().into(),
                    &line["canonical"],
                );
                check("scope", scope_of(text("key")).as_str().into(), &line["scope"]);
            }
            "scope-key-build" => {
                let identity = ScopeIdentity::session(text("principal"), text("sessionId"));
                for scope in [Scope::User, Scope::Session] {
                    let key = ScopeKey::resolve(scope, &identity).unwrap();
                    check(scope.as_str(), key.as_str().into(), &line[scope.as_str()]);
                }
            }
            other => panic!("unknown kind {other}"),
        }
    }
    println!("misc: {counts:?}, {} failures", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(counts.values().sum::<usize>(), 11 + 2 + 3 + 3 + 1 + 5 + 16 + 7);
}
