//! INV-8: a commit is whole or it is not there.

use std::num::NonZeroU32;

use memory_engine::basis::{ActionInstance, BasisInstance, BasisRead};
use memory_engine::outbox::{OutboxAppend, PlainJson};
use memory_engine::{
    Engine, EngineError, EngineOptions, LeaseHolder, SnapshotPolicy, StoreLocation, WaveCommit,
};
use memory_wire::commit_meta::WriteAnnotation;
use memory_wire::ids::Seq;
use memory_wire::scope_key::{ScopeIdentity, ScopeKey};
use serde_json::json;

use crate::support::{NOW_MS, dump};
use crate::{SPACE, by, commit, leased, number, patch, set};

/// A wave that writes into every table: scoped and space documents, a stream whose watermark moves, a snapshot, basis
/// rows and outbox rows.
fn full_wave(lease: &LeaseHolder, local_seq: u64, sidecar: &str, basis: Seq) -> WaveCommit {
    let parts = json!({ "operations": [
        { "op": "patch", "id": "of:counter", "patches": [{ "op": "increment", "path": "/value", "by": 1 }] },
        { "op": "set", "id": "of:mine", "scope": "user", "value": { "value": 1 } },
        { "op": "delete", "id": "of:gone" },
        { "op": "patch", "id": sidecar, "patches": [
            { "op": "add", "path": "/value/entries/0/consequenced", "value": true }
        ] },
    ] });
    let mut wave = WaveCommit::new(lease, commit(local_seq, parts), basis);
    let user = ScopeIdentity {
        principal: Some("did:key:zA".into()),
        session_id: None,
    };
    wave.annotations = vec![WriteAnnotation {
        op: 1,
        scope_key: Some(ScopeKey::resolve(memory_wire::Scope::User, &user).unwrap()),
        acting_user: Some("did:key:zA".into()),
        acting_session: None,
    }];
    wave.consequence_of = vec!["e1".into()];
    wave.derived_through = Some(basis);
    wave.basis_instances = vec![BasisInstance {
        instance: ActionInstance {
            action: "act".into(),
            action_scope_key: ScopeKey::space(),
        },
        rows: vec![BasisRead {
            entity_space: SPACE.into(),
            entity: "of:counter".into(),
            entity_scope_key: ScopeKey::space(),
            seq: None,
        }],
    }];
    wave.outbox = vec![OutboxAppend {
        target_space: "did:key:zOther".into(),
        target_stream: "of:stream-events:x".into(),
        target_stream_link: None,
        event_id: "out".into(),
        payload: PlainJson::null(),
        acting_principal: None,
        acting_session: None,
        sessionless_space_scope: true,
        capability_ref: "stream-append:x".into(),
        source_event: None,
    }];
    wave
}

/// INV-8: a failure injected into any write of a commit leaves every table as it was, and the same commit then lands whole.
#[test]
fn inv_8_a_failure_at_any_step_leaves_every_table_as_it_was() {
    let faults = [
        ("commit", "INSERT ON \"commit\"", "1"),
        ("first revision", "INSERT ON revision", "NEW.op_index = 0"),
        ("second revision", "INSERT ON revision", "NEW.op_index = 1"),
        ("last revision", "INSERT ON revision", "NEW.op_index = 3"),
        ("watermark revision", "INSERT ON revision", "NEW.op_index = 4"),
        (
            "head of an old document",
            "UPDATE ON head",
            "NEW.id = 'of:counter'",
        ),
        ("head of a new document", "INSERT ON head", "NEW.id = 'of:mine'"),
        ("branch", "UPDATE ON branch", "1"),
        ("snapshot", "INSERT ON snapshot", "1"),
        ("snapshot pruning", "DELETE ON snapshot", "1"),
        ("basis", "INSERT ON scheduler_basis", "1"),
        ("outbox", "INSERT ON execution_outbox", "1"),
    ];
    for grouped in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let snapshots = SnapshotPolicy {
            interval: NonZeroU32::new(1),
            retention: NonZeroU32::new(1),
        };
        let options = EngineOptions {
            serving: true,
            snapshots,
            ..EngineOptions::default()
        };
        let mut engine = Engine::open(StoreLocation::File(path.clone()), options).unwrap();
        let sidecar = "of:stream-events:XaB0Z6BDVU1dU0Gmf4QGtLWAIHiB01lxtGScGnoHOys";
        let entry = json!({ "eventId": "e1", "stream": { "id": "of:poll", "path": ["votes"] } });
        let seeded = json!({
            "operations": [
                set("of:counter", json!(1)),
                set("of:gone", json!(1)),
                { "op": "set", "id": sidecar, "value": { "value": { "entries": [entry] } } },
            ],
            "eventAppends": [{ "id": sidecar, "eventId": "e1" }],
        });
        by(&mut engine, "s", &commit(1, seeded)).unwrap();
        let bump = json!({ "operations": [patch("of:counter", json!([{ "op": "increment", "path": "/value", "by": 1 }]))] });
        by(&mut engine, "s", &commit(2, bump)).unwrap();
        let lease = leased(&mut engine);
        let wave = full_wave(&lease, 1, sidecar, Seq(2));
        let before = dump(&path);
        let side = rusqlite::Connection::open(&path).unwrap();
        for (what, event, condition) in faults {
            side.execute_batch(&format!(
                "CREATE TRIGGER fault BEFORE {event} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'injected: {what}'); END"
            ))
            .unwrap();
            let outcome = if grouped {
                // A neighbour of the group must not be touched by the failure.
                let spared = commit(
                    50,
                    json!({ "preconditions": [{ "kind": "origin-committed", "originLocalSeq": 1 }] }),
                );
                engine
                    .group(|engine| {
                        let failed = engine.apply_wave(&wave, NOW_MS, None);
                        let missing = by(engine, "nobody", &spared);
                        assert!(matches!(missing, Err(EngineError::OriginNotCommitted { .. })));
                        failed
                    })
                    // Branch and pruning are done once for the whole group, which is then lost with them.
                    .and_then(|failed| failed)
            } else {
                engine.apply_wave(&wave, NOW_MS, None)
            };
            let error = outcome.expect_err(what).to_string();
            assert!(error.contains(&format!("injected: {what}")), "{error}");
            side.execute_batch("DROP TRIGGER fault").unwrap();
            assert_eq!(dump(&path), before, "{what}");
        }
        let applied = engine.apply_wave(&wave, NOW_MS, None).unwrap();
        assert_eq!(applied.seq, Seq(3));
        assert!(
            applied
                .revisions
                .iter()
                .all(|revision| revision.seq == Seq(3) && revision.commit_seq == Seq(3))
        );
        let indexes: Vec<usize> = applied
            .revisions
            .iter()
            .map(|revision| revision.op_index)
            .collect();
        assert_eq!(indexes, [0, 1, 2, 3, 4], "the synthetic watermark comes last");
        assert_eq!(number(&engine, "of:counter").and_then(|n| n.as_f64()), Some(3.0));
        let after = dump(&path);
        // One snapshot of the counter and one of the stream.
        for (table, rows) in [("scheduler_basis", 1), ("execution_outbox", 1), ("snapshot", 2)] {
            assert_eq!(after[table].as_array().unwrap().len(), rows, "{table}");
        }
    }
}

/// INV-8, ENG-206: a member that fails in the middle of its writes is taken out of its group without a savepoint, and those
/// before and after it land as if it had never been there, in the file and in memory.
#[test]
fn inv_8_a_member_that_fails_half_way_leaves_its_group_as_it_was() {
    let faults = [
        ("commit", "INSERT ON \"commit\"", "NEW.session_id LIKE '%bad%'"),
        ("first revision", "INSERT ON revision", "NEW.id = 'of:gone'"),
        ("second revision", "INSERT ON revision", "NEW.id = 'of:new'"),
        ("third revision", "INSERT ON revision", "NEW.op_index = 2"),
        ("last revision", "INSERT ON revision", "NEW.id = 'of:fresh'"),
        ("head of an old document", "UPDATE ON head", "NEW.id = 'of:gone'"),
        ("head of a new document", "INSERT ON head", "NEW.id = 'of:fresh'"),
        ("snapshot", "INSERT ON snapshot", "NEW.id = 'of:fresh'"),
    ];
    let bump = |id: &str| patch(id, json!([{ "op": "increment", "path": "/value", "by": 1 }]));
    let count = |local_seq| commit(local_seq, json!({ "operations": [bump("of:counter")] }));
    let seeded = |path: &std::path::Path| {
        let options = EngineOptions {
            snapshots: SnapshotPolicy {
                interval: NonZeroU32::new(1),
                retention: NonZeroU32::new(2),
            },
            ..EngineOptions::default()
        };
        let mut engine = Engine::open(StoreLocation::File(path.to_owned()), options).unwrap();
        let seed = json!({ "operations": [set("of:counter", json!(1)), set("of:gone", json!(1))] });
        by(&mut engine, "seed", &commit(1, seed)).unwrap();
        engine
    };
    let bad = json!({ "operations": [
        { "op": "delete", "id": "of:gone" }, set("of:new", json!(1)), bump("of:counter"), bump("of:fresh")
    ] });
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control.sqlite");
    let mut engine = seeded(&control);
    for local_seq in 1..=2 {
        by(&mut engine, "good", &count(local_seq)).unwrap();
    }
    let without_it = dump(&control);
    for (n, (what, event, condition)) in faults.into_iter().enumerate() {
        let path = dir.path().join(format!("{n}.sqlite"));
        let mut engine = seeded(&path);
        let side = rusqlite::Connection::open(&path).unwrap();
        side.execute_batch(&format!(
            "CREATE TRIGGER fault BEFORE {event} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'injected'); END"
        ))
        .unwrap();
        let seqs = engine.group(|engine| {
            let before = by(engine, "good", &count(1)).unwrap().seq;
            let failed = by(engine, "bad", &commit(1, bad.clone())).expect_err(what);
            assert!(failed.to_string().contains("injected"), "{what}: {failed}");
            let after = by(engine, "good", &count(2)).unwrap().seq;
            (before, after)
        });
        assert_eq!(seqs.unwrap(), (Seq(2), Seq(3)), "{what}");
        side.execute_batch("DROP TRIGGER fault").unwrap();
        assert_eq!(dump(&path), without_it, "{what}");
        // What is remembered is what is stored, and the same commit lands when nothing fails it.
        let states = |engine: &Engine| {
            ["of:counter", "of:gone", "of:new", "of:fresh"]
                .map(|id| number(engine, id).and_then(|n| n.as_f64()))
        };
        assert_eq!(states(&engine), [Some(3.0), Some(1.0), None, None], "{what}");
        assert_eq!(
            by(&mut engine, "bad", &commit(1, bad.clone())).unwrap().seq,
            Seq(4),
            "{what}"
        );
        let remembered = states(&engine);
        assert_eq!(remembered, [Some(4.0), None, Some(1.0), Some(1.0)], "{what}");
        drop(engine);
        let reopened = Engine::open(StoreLocation::File(path), EngineOptions::default()).unwrap();
        assert_eq!(states(&reopened), remembered, "{what}");
    }
}

/// INV-8 and ENG-361: elided no-ops are the only operation indexes a commit leaves out.
#[test]
fn inv_8_only_elided_operations_leave_gaps() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let cid = |n: i64| json!({ "op": "set", "id": "cid:fid1:blob", "value": { "value": { "n": n } } });
    by(&mut engine, "s", &commit(1, json!({ "operations": [cid(1)] }))).unwrap();
    let applied = by(
        &mut engine,
        "s",
        &commit(
            2,
            json!({ "operations": [cid(1), set("of:a", json!(1)), cid(1)] }),
        ),
    )
    .unwrap();
    assert_eq!(applied.elided_op_indexes, Some(vec![0, 2]));
    assert_eq!(
        applied.revisions.iter().map(|r| r.op_index).collect::<Vec<_>>(),
        [1]
    );
}
