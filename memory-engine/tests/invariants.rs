//! The invariants of ENG §13, one named test each, and the rules beside them that no vector covers. INV-1 is asserted
//! on every schedule of `differential.rs`, INV-10 under concurrency in `actor.rs`.

#[path = "support/model.rs"]
mod model;
#[path = "support/schedule.rs"]
mod schedule;
mod support;

use std::num::NonZeroU32;
use std::path::Path;

use memory_engine::basis::{ActionInstance, BasisInstance, BasisRead};
use memory_engine::lease::{Clocks, LEASE_TTL_MS};
use memory_engine::outbox::{OutboxAppend, PlainJson};
use memory_engine::{
    Applied, ApplyCommit, Engine, EngineError, EngineOptions, Holder, LeaseHolder, ReadInstance, Refusal,
    SnapshotPolicy, StoreLocation, WaveCommit,
};
use memory_wire::commit_meta::{CommitClass, WriteAnnotation};
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::message::ClientCommit;
use memory_wire::patch::{PatchError, PatchOp, apply_patches, parse_patches, patches_conflict_with_read};
use memory_wire::pointer::DocPath;
use memory_wire::scope_key::{InstanceId, ScopeIdentity, ScopeKey};
use memory_wire::value::Value;
use memory_wire::{codec, value};
use model::{Model, Verdict};
use proptest::prelude::*;
use schedule::{Action, Entropy, Memory};
use serde_json::json;
use support::{NOW_MS, dump};

const SPACE: &str = "did:key:zSpace";

fn serving() -> EngineOptions {
    EngineOptions {
        serving: true,
        ..EngineOptions::default()
    }
}

fn commit(local_seq: u64, mut parts: serde_json::Value) -> ClientCommit {
    parts["localSeq"] = local_seq.into();
    for (key, default) in [("operations", json!([])), ("reads", json!({}))] {
        if parts.get(key).is_none() {
            parts[key] = default;
        }
    }
    for key in ["confirmed", "pending"] {
        if parts["reads"].get(key).is_none() {
            parts["reads"][key] = json!([]);
        }
    }
    ClientCommit::from_value(&support::value(&parts)).unwrap()
}

fn set(id: &str, value: serde_json::Value) -> serde_json::Value {
    json!({ "op": "set", "id": id, "value": { "value": value } })
}

fn patch(id: &str, patches: serde_json::Value) -> serde_json::Value {
    json!({ "op": "patch", "id": id, "patches": patches })
}

fn by(engine: &mut Engine, session: &str, commit: &ClientCommit) -> Result<Applied, EngineError> {
    engine.apply_commit(ApplyCommit::authored(
        &session.into(),
        Some(&"did:key:zA".into()),
        commit,
        NOW_MS,
    ))
}

fn number(engine: &Engine, id: &str) -> Option<Value> {
    engine.read_space_value(&id.into()).unwrap()
}

fn leased(engine: &mut Engine) -> LeaseHolder {
    let mut lease = LeaseHolder::new(SPACE.into(), Holder::from("did:key:zSvc#p1"), LEASE_TTL_MS);
    assert!(
        lease
            .acquire(
                engine,
                Clocks {
                    wall_ms: NOW_MS,
                    monotonic_ms: 0
                }
            )
            .unwrap()
    );
    lease
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// INV-2: whatever a patch changes at a path, the matcher reports. Writers are truthful, as clients are: `createsKey`
    /// says whether the base had the key, `replace` meets what exists, a new key goes into a container that exists
    /// (only one parent is injected, ENG-344), and nothing inserts into the middle of an array (ENG-345).
    #[test]
    fn inv_2_the_matcher_never_misses_an_overlap(bytes in proptest::collection::vec(any::<u8>(), 24)) {
        let mut entropy = Entropy::new(&bytes);
        let base = value!({ "value": {
            "a": { "a": 1, "b": { "c": 2 } }, "b": [1, { "a": 0 }], "c": 3
        } });
        let paths: [&[&str]; 12] = [
            &["value"], &["value", "a"], &["value", "a", "a"], &["value", "a", "b"], &["value", "a", "b", "c"],
            &["value", "a", "x"], &["value", "b"], &["value", "b", "0"], &["value", "b", "1", "a"], &["value", "c"],
            &["value", "x"], &["value", "x", "y"],
        ];
        let pick = |entropy: &mut Entropy<'_>| -> DocPath {
            paths[entropy.below(paths.len())].iter().map(|segment| (*segment).into()).collect()
        };
        let (target, read) = (pick(&mut entropy), pick(&mut entropy));
        let shape = entropy.below(2) == 1;
        let exists = base.at_path(&target).is_some();
        if base.at_path(&target[..target.len() - 1]).is_none() {
            return Ok(());
        }
        let in_array = target.len() == 3 && target[1] == "b";
        let op = match entropy.below(7) {
            0 if !in_array => PatchOp::add(target, value!({ "n": 1 })),
            1 if exists => PatchOp::replace(target, value!({ "n": 1 })),
            2 if !in_array => PatchOp::remove(target),
            3 if !in_array => {
                let from = pick(&mut entropy);
                if from.get(1).is_some_and(|segment| segment == "b") && from.len() > 2 {
                    return Ok(());
                }
                let pointer = |path: &DocPath| memory_wire::pointer::encode_pointer(path);
                PatchOp::from_value(&value!({ "op": "move", "from": (pointer(&from)), "path": (pointer(&target)) })).unwrap()
            }
            4 => PatchOp::append(target, vec![9.into()], !exists),
            5 => PatchOp::add_unique(target, vec![9.into()], !exists),
            6 => PatchOp::increment(target, 5.0, !exists),
            _ => return Ok(()),
        };
        let Ok(after) = apply_patches(&base, std::slice::from_ref(&op)) else { return Ok(()) };
        let observe = |document: &Value| document.at_path(&read).map(|found| match (shape, found) {
            (true, Value::Object(object)) => object.iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>().join(","),
            (true, Value::Array(array)) => array.len().to_string(),
            (_, found) => codec::encode(found).unwrap(),
        });
        if observe(&base) != observe(&after) {
            prop_assert!(
                patches_conflict_with_read(std::slice::from_ref(&op), &read, shape),
                "{:?} changes what a read of {:?} (shape: {}) sees", codec::encode(op.source()), read, shape
            );
        }
    }
}

/// INV-3: the named layers and `basisSeq` account for every durable own write at the path.
#[test]
fn inv_3_a_dropped_layer_is_missed_exactly_when_it_overlaps() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    by(
        &mut engine,
        "other",
        &commit(
            1,
            json!({ "operations": [set("of:d", json!({ "x": 0, "y": 0 }))] }),
        ),
    )
    .unwrap();
    let replace = |path: &str| patch("of:d", json!([{ "op": "replace", "path": path, "value": 1 }]));
    by(
        &mut engine,
        "s",
        &commit(1, json!({ "operations": [replace("/value/x")] })),
    )
    .unwrap();
    by(
        &mut engine,
        "s",
        &commit(2, json!({ "operations": [replace("/value/y")] })),
    )
    .unwrap();
    by(
        &mut engine,
        "s",
        &commit(3, json!({ "operations": [replace("/value/x")] })),
    )
    .unwrap();
    let mut attempt = |local_seq: u64, layers: serde_json::Value| {
        let read = json!({ "id": "of:d", "path": ["value", "x"], "localSeq": layers, "basisSeq": 1 });
        let parts = json!({ "reads": { "pending": [read] }, "operations": [set("of:e", json!(local_seq))] });
        by(&mut engine, "s", &commit(local_seq, parts))
    };
    assert!(matches!(
        attempt(4, json!([1])),
        Err(EngineError::StalePendingRead {
            conflict_seq: Seq(4),
            ..
        })
    ));
    assert!(matches!(
        attempt(4, json!([3])),
        Err(EngineError::StalePendingRead {
            conflict_seq: Seq(2),
            ..
        })
    ));
    attempt(4, json!([1, 3])).expect("layer 2 wrote elsewhere");
    attempt(5, json!([1, 2, 3])).expect("naming more than needed is no harm");
    assert!(matches!(
        attempt(6, json!([1, 3, 99])),
        Err(EngineError::PendingDependency {
            local_seq: LocalSeq(99)
        })
    ));
}

/// INV-4: refusal cascades.
#[test]
fn inv_4_a_commit_that_names_a_refused_layer_is_refused() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    by(
        &mut engine,
        "other",
        &commit(1, json!({ "operations": [set("of:d", json!(0))] })),
    )
    .unwrap();
    let stale = json!({ "confirmed": [{ "id": "of:d", "path": ["value"], "seq": 0 }] });
    let refused = by(
        &mut engine,
        "s",
        &commit(
            1,
            json!({ "reads": stale, "operations": [set("of:d", json!(1))] }),
        ),
    );
    assert!(matches!(refused, Err(EngineError::StaleConfirmedRead { .. })));
    for local_seq in 2..5 {
        let layer = json!({ "pending": [{ "id": "of:d", "path": ["value"], "localSeq": local_seq - 1, "basisSeq": 1 }] });
        let refused = by(
            &mut engine,
            "s",
            &commit(
                local_seq,
                json!({ "reads": layer, "operations": [set("of:d", json!(2))] }),
            ),
        );
        assert!(
            matches!(refused, Err(EngineError::PendingDependency { local_seq: layer }) if layer.0 == local_seq - 1)
        );
    }
}

/// A random schedule applied to an engine and the model; returns what was submitted with its verdict.
fn run(
    engine: &mut Engine,
    seed: u64,
    length: usize,
) -> (Model, Vec<(model::Submitter, ClientCommit, Verdict)>) {
    let mut model = Model::new();
    let mut memory = Memory::default();
    let mut submitted = Vec::new();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for _ in 0..length {
        let bytes: Vec<u8> = (0..48)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            })
            .collect();
        match memory.action(&mut Entropy::new(&bytes), &model) {
            Action::Commit { who, commit } => {
                let want = model.submit(&who, &commit);
                let apply = ApplyCommit::authored(&who.session, who.principal.as_ref(), &commit, NOW_MS);
                assert_eq!(Verdict::of(&engine.apply_commit(apply)), want);
                submitted.push((who, commit, want));
            }
            Action::Fork { name, at } => {
                engine.create_branch(&name, &"".into(), Some(at)).unwrap();
                model.fork(name.as_str(), at.0);
            }
            Action::Close { name } => {
                let _ = engine.delete_branch(&name);
                model.close(name.as_str());
            }
        }
    }
    (model, submitted)
}

/// INV-5: given in-order submission a session's commits are resolved in that order; the engine refuses, it never holds
/// anything back.
#[test]
fn inv_5_resolutions_of_a_session_ascend_with_its_local_seqs() {
    for seed in 1..12 {
        let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
        let (_, submitted) = run(&mut engine, seed, 60);
        let mut last: std::collections::BTreeMap<String, (u64, u64)> = Default::default();
        let mut newest: std::collections::BTreeMap<String, u64> = Default::default();
        for (who, commit, verdict) in &submitted {
            // Resubmissions of what was refused are out of order; the rest is in order.
            let newest = newest.entry(who.key()).or_default();
            let in_order = commit.local_seq.0 > *newest;
            *newest = (*newest).max(commit.local_seq.0);
            if let (Verdict::Accepted { seq, replayed: false }, true) = (verdict, in_order)
                && let Some((local_seq, earlier)) = last.insert(who.key(), (commit.local_seq.0, *seq))
            {
                assert!(local_seq < commit.local_seq.0 && earlier < *seq);
            }
        }
    }
}

/// INV-6 and INV-11: an accepted commit replayed is answered accepted with its seq and adds no row; a changed payload,
/// class or holder is refused; a refused commit left no row.
#[test]
fn inv_6_and_11_replays_agree_and_add_nothing() {
    for seed in 1..6 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let mut engine = Engine::open(StoreLocation::File(path.clone()), EngineOptions::default()).unwrap();
        let (model, submitted) = run(&mut engine, seed, 50);
        let before = dump(&path);
        let rows = before["commit"].as_array().unwrap();
        assert_eq!(rows.len(), model.commits.len());
        for (who, commit, verdict) in &submitted {
            let apply = || ApplyCommit::authored(&who.session, who.principal.as_ref(), commit, NOW_MS);
            match verdict {
                Verdict::Accepted { seq, .. } => {
                    let again = engine.apply_commit(apply()).unwrap();
                    assert_eq!((again.seq.0, again.replayed), (*seq, true));
                    let other = ApplyCommit {
                        class: CommitClass::System,
                        ..apply()
                    };
                    let mismatch = engine.apply_commit(other).unwrap_err();
                    assert!(matches!(
                        mismatch,
                        EngineError::Refused(Refusal::ReplayClassMismatch { .. })
                    ));
                }
                _ => {
                    let key = (who.key(), commit.local_seq.0);
                    let stored = model
                        .commits
                        .iter()
                        .find(|c| (c.session.clone(), c.local_seq) == key);
                    let original = codec::encode(&commit.value).unwrap();
                    assert!(
                        stored.is_none_or(|stored| stored.original != original),
                        "a refused commit left a row"
                    );
                }
            }
        }
        assert_eq!(dump(&path), before, "seed {seed}");
    }
}

/// INV-7 and INV-9: every admitted write is readable after a reopen, and the state at any seq is the fold of the revisions
/// up to it, whatever the snapshot policy; the fold is the client's own (`memory_wire::patch`).
#[test]
fn inv_7_and_9_states_are_folds_under_any_snapshot_policy_and_after_reopening() {
    let policies = [(0, 0), (1, 0), (1, 1), (2, 1), (3, 2), (10, 2)];
    for (seed, (interval, retention)) in (20..).zip(policies) {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::File(dir.path().join("store.sqlite"));
        let snapshots = SnapshotPolicy {
            interval: NonZeroU32::new(interval),
            retention: NonZeroU32::new(retention),
        };
        let options = EngineOptions {
            snapshots,
            ..EngineOptions::default()
        };
        let mut engine = Engine::open(location.clone(), options).unwrap();
        let (model, _) = run(&mut engine, seed, 80);
        drop(engine);
        let engine = Engine::open(location, EngineOptions::default()).unwrap();
        for branch in &model.branches {
            let floor = branch.parent.as_ref().map_or(0, |(_, fork)| *fork);
            for instance in schedule::instances() {
                for at in floor..=branch.head {
                    let key = ReadInstance::Named(&instance.scope_key);
                    let got = engine
                        .read(&instance.id, key, &branch.name.as_str().into(), Some(Seq(at)))
                        .unwrap();
                    let want = model.state(&branch.name, &instance, at).flatten();
                    let text =
                        |document: &Option<Value>| document.as_ref().map(|d| codec::encode(d).unwrap());
                    assert_eq!(text(&got), text(&want), "{instance} on {:?} at {at}", branch.name);
                }
            }
        }
    }
}

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
                    .unwrap()
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

/// INV-12: no derived commit touches the access list, in any shape, scope or branch, and it learns so before any conflict.
#[test]
fn inv_12_no_derived_commit_writes_the_access_list() {
    let mut engine = Engine::in_memory(serving()).unwrap();
    let list = format!("of:{SPACE}");
    by(
        &mut engine,
        "s",
        &commit(
            1,
            json!({ "operations": [set(&list, json!({ "did:key:zA": "OWNER" }))] }),
        ),
    )
    .unwrap();
    engine.create_branch(&"f".into(), &"".into(), None).unwrap();
    let lease = leased(&mut engine);
    let shapes = [
        set(&list, json!({})),
        patch(&list, json!([])),
        json!({ "op": "delete", "id": list }),
        json!({ "op": "set", "id": list, "scope": "user", "value": { "value": 1 } }),
    ];
    for (shape, branch) in shapes.iter().flat_map(|shape| [(shape, ""), (shape, "f")]) {
        let parts = json!({ "branch": branch, "operations": [set("of:x", json!(1)), shape] });
        // Basis 0 would conflict on the list, were it looked at.
        let mut wave = WaveCommit::new(&lease, commit(1, parts.clone()), Seq(0));
        wave.annotations = vec![WriteAnnotation {
            op: 1,
            scope_key: None,
            acting_user: None,
            acting_session: None,
        }];
        let refused = engine.apply_wave(&wave, NOW_MS, None).unwrap_err();
        assert!(
            matches!(refused, EngineError::Refused(Refusal::DerivedAclWrite)),
            "{shape} {refused}"
        );
        let session = lease.holder().session_id();
        let commit = commit(1, parts);
        let direct = ApplyCommit {
            space: Some(lease.space()),
            class: CommitClass::Derived,
            holder: Some(lease.holder()),
            ..ApplyCommit::authored(&session, None, &commit, NOW_MS)
        };
        let refused = engine.apply_commit(direct).unwrap_err();
        assert!(
            matches!(refused, EngineError::Refused(Refusal::DerivedAclWrite)),
            "{shape} {refused}"
        );
    }
    // Without the lease the producer learns that first.
    let stranger = LeaseHolder::new(SPACE.into(), Holder::from("did:key:zOther#1"), LEASE_TTL_MS);
    let wave = WaveCommit::new(&stranger, commit(1, json!({ "operations": [shapes[0]] })), Seq(0));
    assert!(matches!(
        engine.apply_wave(&wave, NOW_MS, None),
        Err(EngineError::Refused(Refusal::NoLiveLease))
    ));
    assert_eq!(engine.server_seq().unwrap(), Seq(1));
}

/// INV-13 is the server's; what it needs of the engine is that "never written" and "deleted" are told apart.
#[test]
fn inv_13_a_missing_access_list_and_a_deleted_one_are_different_answers() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let list = memory_wire::well_known::acl_document_id(&SPACE.into());
    let state = |engine: &Engine| {
        engine
            .read_state(&list, ReadInstance::Space, &"".into(), None)
            .unwrap()
    };
    assert!(state(&engine).is_none() && engine.server_seq().unwrap() == Seq(0));
    by(
        &mut engine,
        "s",
        &commit(
            1,
            json!({ "operations": [{ "op": "delete", "id": list.as_str() }] }),
        ),
    )
    .unwrap();
    let tombstone = state(&engine).unwrap();
    assert!(tombstone.document.is_none() && tombstone.seq == Seq(1));
}

/// ENG-202: a rolled back revision and the retry that reuses its address never answer for each other.
#[test]
fn eng_202_a_retry_never_meets_what_was_rolled_back() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    by(
        &mut engine,
        "s",
        &commit(1, json!({ "operations": [set("of:a", json!(0))] })),
    )
    .unwrap();
    engine
        .group(|engine| {
            // Reads its own write, then fails on the second operation.
            let operations = json!([
                set("of:a", json!("lost")),
                patch("of:b", json!([{ "op": "remove", "path": "/value" }]))
            ]);
            assert!(by(engine, "s", &commit(2, json!({ "operations": operations }))).is_err());
            by(
                engine,
                "s",
                &commit(3, json!({ "operations": [set("of:a", json!("kept"))] })),
            )
            .unwrap();
            assert_eq!(number(engine, "of:a").unwrap().as_str(), Some("kept"));
        })
        .unwrap();
    assert_eq!(number(&engine, "of:a").unwrap().as_str(), Some("kept"));
    assert_eq!(engine.server_seq().unwrap(), Seq(2));
}

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

/// ENG-208 on the engine itself: what another connection committed is reported once, over all branches.
#[test]
fn eng_208_foreign_commits_are_reported_once_over_all_branches() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::File(dir.path().join("store.sqlite"));
    let mut ours = Engine::open(location.clone(), EngineOptions::default()).unwrap();
    let mut theirs = Engine::open(location, EngineOptions::default()).unwrap();
    by(
        &mut ours,
        "s",
        &commit(1, json!({ "operations": [set("of:a", json!(1))] })),
    )
    .unwrap();
    assert!(ours.foreign_commits().unwrap().is_empty());
    assert_eq!(
        theirs
            .foreign_commits()
            .unwrap()
            .iter()
            .map(|r| r.seq.0)
            .collect::<Vec<_>>(),
        [1]
    );
    theirs.create_branch(&"f".into(), &"".into(), None).unwrap();
    by(
        &mut theirs,
        "t",
        &commit(1, json!({ "branch": "f", "operations": [set("of:b", json!(1))] })),
    )
    .unwrap();
    by(
        &mut theirs,
        "t",
        &commit(2, json!({ "operations": [set("of:a", json!(2))] })),
    )
    .unwrap();
    // An own write that follows them notices them by itself.
    by(
        &mut ours,
        "s",
        &commit(2, json!({ "operations": [set("of:c", json!(1))] })),
    )
    .unwrap();
    let noticed = ours.take_noticed_foreign();
    assert_eq!(
        noticed
            .iter()
            .map(|r| (r.seq.0, r.branch.to_string()))
            .collect::<Vec<_>>(),
        [(2, "f".into()), (3, "".into())]
    );
    assert!(ours.foreign_commits().unwrap().is_empty());
    assert_eq!(number(&ours, "of:a").and_then(|n| n.as_f64()), Some(2.0));
}

/// ENG-381: patches are judged by the final state only, also under a policy that takes no snapshots.
#[test]
fn eng_381_a_patch_is_judged_by_the_final_state() {
    let snapshots = SnapshotPolicy {
        interval: None,
        retention: None,
    };
    let mut engine = Engine::in_memory(EngineOptions {
        snapshots,
        ..EngineOptions::default()
    })
    .unwrap();
    let bad = json!([{ "op": "remove", "path": "/value/none" }]);
    assert!(
        by(
            &mut engine,
            "s",
            &commit(1, json!({ "operations": [patch("of:a", bad.clone())] }))
        )
        .is_err()
    );
    let shadowed = json!({ "operations": [patch("of:a", bad), set("of:a", json!(1))] });
    by(&mut engine, "s", &commit(1, shadowed)).unwrap();
    let patches = parse_patches(&support::value(
        &json!([{ "op": "remove", "path": "/value/none" }]),
    ))
    .unwrap();
    assert!(apply_patches(&value!({ "value": 1 }), &patches).is_err());
    assert_eq!(
        engine.doc_head(&InstanceId::space("of:a"), &"".into()).unwrap(),
        Seq(1)
    );
}

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
