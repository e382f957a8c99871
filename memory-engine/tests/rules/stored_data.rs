//! ENG-383: rows that no engine wrote are named for what is wrong with them, by the read that meets them.

use memory_engine::{ApplyCommit, Engine, EngineOptions, ReadInstance, StoreLocation};
use memory_wire::ids::{BranchName, LocalSeq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::patch::PatchOp;
use memory_wire::{Scope, value};

#[test]
fn eng_383_stored_data_of_another_shape_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.sqlite");
    let location = StoreLocation::File(path.clone());
    let mut engine = Engine::open(location.clone(), EngineOptions::default()).unwrap();
    let commit = |n: u64, operation: Operation| {
        ClientCommit::build(
            LocalSeq(n),
            CommitParts {
                operations: vec![operation],
                ..CommitParts::default()
            },
        )
    };
    let set = Operation::Set {
        id: "of:x".into(),
        scope: Scope::Space,
        value: value!({ "value": 1 }),
    };
    let patches = vec![PatchOp::replace(vec!["value".into()], 2.into())];
    let patch = Operation::Patch {
        id: "of:x".into(),
        scope: Scope::Space,
        patches,
    };
    for (n, operation) in [(1, set), (2, patch)] {
        let commit = commit(n, operation);
        engine
            .apply_commit(ApplyCommit::authored(
                &"s".into(),
                None,
                &commit,
                1_800_000_000_000,
            ))
            .unwrap();
    }
    drop(engine);
    for (spoil, text) in [
        (
            "UPDATE revision SET data = 'fvj1:[1]' WHERE op = 'set'",
            "memory v2 stored documents must be plain object roots",
        ),
        (
            "UPDATE revision SET data = 'fvj1:{}' WHERE op = 'patch'",
            "memory v2 stored patches must be arrays",
        ),
        (
            "UPDATE revision SET op = 'merge' WHERE op = 'set'",
            "unexpected stored revision op: merge",
        ),
        (
            "UPDATE revision SET data = '[]' WHERE op = 'patch'",
            "Not a JSON-encoded `FabricValue` string: []",
        ),
    ] {
        let copy = dir.path().join("copy.sqlite");
        std::fs::copy(&path, &copy).unwrap();
        rusqlite::Connection::open(&copy)
            .unwrap()
            .execute_batch(spoil)
            .unwrap();
        let engine = Engine::open(StoreLocation::File(copy), EngineOptions::default()).unwrap();
        let read = engine.read(&"of:x".into(), ReadInstance::Space, &BranchName::default(), None);
        assert_eq!(read.unwrap_err().to_string(), text);
    }
}
