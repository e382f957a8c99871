//! ENG-1601: retiring a session.

use std::num::NonZeroU32;
use std::path::Path;

use memory_engine::{Engine, EngineError, EngineOptions, ReadInstance, SnapshotPolicy, StoreLocation};
use memory_wire::scope_key::{ScopeIdentity, ScopeKey};
use serde_json::json;

use crate::support::dump;
use crate::{by, commit};

/// ENG-1601: retiring a session goes in bounded batches, leaves no head without its revision at any stop, and touches
/// nothing of anyone else.
#[test]
fn eng_1601_retiring_a_session_is_bounded_and_touches_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.sqlite");
    let snapshots = SnapshotPolicy {
        interval: NonZeroU32::new(2),
        retention: None,
    };
    let mut engine = Engine::open(
        StoreLocation::File(path.clone()),
        EngineOptions {
            snapshots,
            ..EngineOptions::default()
        },
    )
    .unwrap();
    for local_seq in 1..=6 {
        let bump = json!([{ "op": "increment", "path": "/value", "by": 1 }]);
        let operations: Vec<_> = ["of:a", "of:b"]
            .iter()
            .flat_map(|id| {
                ["space", "user", "session"]
                    .map(|scope| json!({ "op": "patch", "id": id, "scope": scope, "patches": bump }))
            })
            .collect();
        for session in ["dead", "live"] {
            by(
                &mut engine,
                session,
                &commit(local_seq, json!({ "operations": operations })),
            )
            .unwrap();
        }
    }
    let identity = |session: &str| ScopeIdentity::session("did:key:zA", session);
    let key = |session: &str| ScopeKey::resolve(memory_wire::Scope::Session, &identity(session)).unwrap();
    let dead = key("dead");
    let side = rusqlite::Connection::open(&path).unwrap();
    side.execute_batch(&format!(
        "INSERT INTO scheduler_basis VALUES ('', 'act', '{dead}', 'did:key:zS', 'of:a', 'space', 1),
         ('', 'act', 'space', 'did:key:zS', 'of:a', '{dead}', 1), ('', 'act', '{}', 'did:key:zS', 'of:a', 'space', 1)",
        key("live")
    ))
    .unwrap();
    let others = |path: &Path| {
        let mut rows = dump(path);
        for table in ["head", "revision", "snapshot", "scheduler_basis"] {
            let list = rows[table].as_array_mut().unwrap();
            list.retain(|row| {
                ["scope_key", "action_scope_key", "entity_scope_key"]
                    .iter()
                    .all(|key| row[key] != dead.as_str())
            });
        }
        rows
    };
    let untouched = others(&path);
    let foreseen = engine.retire_session(&dead, 1, true).unwrap();
    assert_eq!(
        (foreseen.heads, foreseen.revisions, foreseen.basis_rows),
        (2, 12, 2)
    );
    assert!(foreseen.snapshots > 0);
    let mut removed = (0, 0, 0, 0);
    let mut calls = 0;
    loop {
        let batch = engine.retire_session(&dead, 3, false).unwrap();
        assert!(batch.heads + batch.revisions + batch.snapshots + batch.basis_rows <= 3);
        removed.0 += batch.heads;
        removed.1 += batch.revisions;
        removed.2 += batch.snapshots;
        removed.3 += batch.basis_rows;
        calls += 1;
        let orphans: i64 = side
            .query_row(
                "SELECT COUNT(*) FROM head h WHERE NOT EXISTS (SELECT 1 FROM revision r WHERE r.branch = h.branch AND \
                 r.id = h.id AND r.scope_key = h.scope_key AND r.seq = h.seq AND r.op_index = h.op_index)",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(orphans, 0, "after call {calls}");
        assert_eq!(others(&path), untouched, "after call {calls}");
        if batch.done {
            break;
        }
    }
    assert_eq!(
        removed,
        (
            foreseen.heads,
            foreseen.revisions,
            foreseen.snapshots,
            foreseen.basis_rows
        )
    );
    let read = |session: &str| {
        let (id, key) = ("of:a".into(), key(session));
        engine
            .read(&id, ReadInstance::Named(&key), &"".into(), None)
            .unwrap()
    };
    assert!(read("dead").is_none());
    assert!(read("live").is_some());
    // A replay answers with what remains.
    let replayed = {
        let bump = json!([{ "op": "increment", "path": "/value", "by": 1 }]);
        let operations: Vec<_> = ["of:a", "of:b"]
            .iter()
            .flat_map(|id| {
                ["space", "user", "session"]
                    .map(|scope| json!({ "op": "patch", "id": id, "scope": scope, "patches": bump }))
            })
            .collect();
        by(
            &mut engine,
            "dead",
            &commit(1, json!({ "operations": operations })),
        )
        .unwrap()
    };
    assert!(replayed.replayed && replayed.revisions.len() == 4);
    let user = ScopeKey::resolve(memory_wire::Scope::User, &identity("dead")).unwrap();
    assert!(matches!(
        engine.retire_session(&user, 1, false),
        Err(EngineError::NotASessionKey(_))
    ));
}

/// ENG-202, 1601: what a transaction wrote and then retired is not remembered as written.
#[test]
fn eng_1601_what_is_written_and_retired_in_one_group_is_gone() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let identity = ScopeIdentity::session("did:key:zA", "dead");
    let key = ScopeKey::resolve(memory_wire::Scope::Session, &identity).unwrap();
    let draft = |local_seq, n: u64| {
        let set = json!({ "op": "set", "id": "of:draft", "scope": "session", "value": { "value": n } });
        commit(local_seq, json!({ "operations": [set] }))
    };
    let state = |engine: &Engine| {
        let read = engine.read(&"of:draft".into(), ReadInstance::Named(&key), &"".into(), None);
        read.unwrap()
            .map(|document| memory_wire::codec::encode(&document).unwrap())
    };
    engine
        .group(|engine| {
            by(engine, "dead", &draft(1, 1)).unwrap();
            assert!(engine.retire_session(&key, 100, false).unwrap().done);
            assert_eq!(state(engine), None);
        })
        .unwrap();
    assert_eq!(state(&engine), None);
    let instance = memory_wire::scope_key::InstanceId {
        id: "of:draft".into(),
        scope_key: key.clone(),
    };
    assert!(engine.hot_state(&instance, &"".into()).is_none());
    // What comes after the retirement, in the same group, is there.
    engine
        .group(|engine| {
            by(engine, "dead", &draft(2, 2)).unwrap();
            assert!(engine.retire_session(&key, 100, false).unwrap().done);
            by(engine, "dead", &draft(3, 3)).unwrap();
        })
        .unwrap();
    assert_eq!(state(&engine).as_deref(), Some(r#"fvj1:{"value":3}"#));
}
