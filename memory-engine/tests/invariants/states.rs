//! INV-7 and INV-9, and what a state is made of: folds of revisions (ENG-380), never of rolled back ones (ENG-202), judged
//! as a whole (ENG-381).

use std::num::NonZeroU32;
use std::sync::Arc;

use memory_engine::{Engine, EngineOptions, ReadInstance, SnapshotPolicy, StoreLocation};
use memory_wire::Scope;
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::patch::{apply_patches, parse_patches};
use memory_wire::scope_key::InstanceId;
use memory_wire::value::Value;
use memory_wire::{codec, value};
use serde_json::json;

use crate::admission::tree::Tree;
use crate::admission::{self, schedule};
use crate::{by, commit, number, patch, run, set, support};

/// INV-7 and INV-9: every admitted write is readable after a reopen, and the state at any seq is the fold of the revisions
/// up to it, whatever the snapshot policy; the fold is a naive one.
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
        let mut engine = admission::open(location.clone(), snapshots);
        let (model, _) = run(&mut engine, seed, 160, |_, _, _| {});
        drop(engine);
        let engine = Engine::open(location, EngineOptions::default()).unwrap();
        for branch in &model.branches {
            let floor = branch.parent.as_ref().map_or(0, |(_, fork)| *fork);
            for instance in schedule::instances() {
                let (id, scope_key) = (instance.0.as_str().into(), admission::key(&instance.1));
                for at in floor..=branch.head {
                    let key = ReadInstance::Named(&scope_key);
                    let got = engine
                        .read(&id, key, &branch.name.as_str().into(), Some(Seq(at)))
                        .unwrap();
                    let want = model.state(&branch.name, &instance, at).flatten();
                    let got = got.as_ref().map(Tree::of);
                    assert_eq!(got, want, "{instance:?} on {:?} at {at}", branch.name);
                }
            }
        }
    }
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

/// Field fault F33: what a database or a double would bend comes back byte for byte, as value, as key and as id, from the
/// cache and after a restart.
#[test]
fn f33_numbers_and_strings_at_the_edges_come_back_unchanged() {
    let big = |text: &str| Value::BigInt(Arc::new(text.parse().unwrap()));
    let values = [
        Value::Number(9_007_199_254_740_993_f64),
        Value::Number(2_f64.powi(63)),
        Value::Number(-(2_f64.powi(63))),
        Value::Number(5e-324),
        Value::Number(f64::MAX),
        Value::Number(f64::INFINITY),
        Value::Number(f64::NEG_INFINITY),
        Value::Number(f64::NAN),
        Value::Number(-0.0),
        big("9007199254740993"),
        big("9223372036854775808"),
        big("-9223372036854775808"),
        big("18446744073709551616"),
        value!("\u{0}x"),
        value!("x\u{0}"),
        value!("fvj1:"),
        value!(""),
        Value::Undefined,
        Value::Bytes(Arc::from([0_u8, 255, 0].as_slice())),
    ];
    let ids = [
        "of:plain",
        "of:\u{0}x",
        "of:x\u{0}",
        "of:x\u{0}y",
        "of:9007199254740993",
        "of:1e400",
    ];
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::File(dir.path().join("store.sqlite"));
    let open = || Engine::open(location.clone(), EngineOptions::default()).unwrap();
    let mut engine = open();
    let document = value!({ "value": {
        "all": (Value::from(values.to_vec())), "\u{0}k": 1, "9007199254740993": 2, "4294967294": 3, "": 4
    } });
    let text = codec::encode(&document).unwrap();
    for (id, local_seq) in ids.iter().zip(1..) {
        let operation = Operation::Set {
            id: (*id).into(),
            scope: Scope::Space,
            value: document.clone(),
        };
        let parts = CommitParts {
            operations: vec![operation],
            ..CommitParts::default()
        };
        by(&mut engine, "s", &ClientCommit::build(LocalSeq(local_seq), parts)).unwrap();
    }
    let check = |engine: &Engine| {
        for (id, seq) in ids.iter().zip(1..) {
            let state = engine
                .read_state(&(*id).into(), ReadInstance::Space, &"".into(), None)
                .unwrap()
                .unwrap_or_else(|| panic!("{id:?} is not there"));
            assert_eq!(state.seq, Seq(seq), "{id:?} is not another id");
            assert_eq!(codec::encode(&state.document.unwrap()).unwrap(), text, "{id:?}");
        }
    };
    check(&engine);
    drop(engine);
    check(&open());
    // Seqs are whole numbers throughout: past the last that a double can count by one, they still go by one.
    let side = rusqlite::Connection::open(dir.path().join("store.sqlite")).unwrap();
    side.execute_batch(
        "UPDATE branch SET head_seq = 9007199254740993 WHERE name = '';
         INSERT INTO \"commit\" (seq, session_id, local_seq, original, resolution)
         VALUES (9007199254740993, 't', 1, 'fvj1:{}', 'fvj1:{}');",
    )
    .unwrap();
    let mut engine = open();
    let next = commit(50, json!({ "operations": [set("of:next", json!(1))] }));
    let applied = by(&mut engine, "s", &next).unwrap();
    assert_eq!(applied.seq, Seq(9_007_199_254_740_994));
    drop(engine);
    let engine = open();
    let head = engine
        .doc_head(&InstanceId::space("of:next"), &"".into())
        .unwrap();
    assert_eq!((head, engine.server_seq().unwrap()), (applied.seq, applied.seq));
}
