//! INV-7 and INV-9, and what a state is made of: folds of revisions (ENG-380), never of rolled back ones (ENG-202), judged
//! as a whole (ENG-381).

use std::num::NonZeroU32;

use memory_engine::{Engine, EngineOptions, ReadInstance, SnapshotPolicy, StoreLocation};
use memory_wire::ids::Seq;
use memory_wire::patch::{apply_patches, parse_patches};
use memory_wire::scope_key::InstanceId;
use memory_wire::value::Value;
use memory_wire::{codec, value};
use serde_json::json;

use crate::{by, commit, number, patch, run, schedule, set, support};

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
