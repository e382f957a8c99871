//! INV-1 to INV-5: what an accepted read saw is what is there, and what that takes: the matcher, the named layers, the
//! cascade, the order.

use std::collections::BTreeMap;

use memory_engine::{Engine, EngineError, EngineOptions, SnapshotPolicy, StoreLocation};
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::patch::{PatchOp, apply_patches, patches_conflict_with_read};
use memory_wire::pointer::DocPath;
use memory_wire::value::Value;
use memory_wire::{codec, value};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::json;

use crate::admission::content::Entropy;
use crate::admission::model::{Submission, Verdict};
use crate::admission::{coherence, open};
use crate::{by, commit, patch, run, set};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, rng_seed: RngSeed::Fixed(2), ..ProptestConfig::default() })]

    /// INV-2: whatever a patch changes at a path, the matcher reports. Writers are truthful, as clients are: `createsKey`
    /// says whether the base had the key, `replace` meets what exists, a new key goes into a container that exists
    /// (only one parent is injected, ENG-344), and nothing inserts into the middle of an array (ENG-345).
    #[test]
    fn inv_2_the_matcher_never_misses_an_overlap(seed in any::<u64>()) {
        let mut entropy = Entropy::of(seed);
        let base = value!({ "value": {
            "a": { "a": 1, "b": { "c": 2 } }, "b": [1, { "a": 0 }], "c": 3
        } });
        let paths: [&[&str]; 12] = [
            &["value"], &["value", "a"], &["value", "a", "a"], &["value", "a", "b"], &["value", "a", "b", "c"],
            &["value", "a", "x"], &["value", "b"], &["value", "b", "0"], &["value", "b", "1", "a"], &["value", "c"],
            &["value", "x"], &["value", "x", "y"],
        ];
        let pick = |entropy: &mut Entropy| -> DocPath {
            paths[entropy.below(paths.len() as u64) as usize].iter().map(|segment| (*segment).into()).collect()
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
        if observe(&base, &read, shape) != observe(&after, &read, shape) {
            prop_assert!(
                patches_conflict_with_read(std::slice::from_ref(&op), &read, shape),
                "{:?} changes what a read of {:?} (shape: {}) sees", codec::encode(op.source()), read, shape
            );
        }
    }
}

/// INV-1: what an accepted commit read is what was there when it landed: the named layers over the confirmed basis look,
/// at the path that was read, like everything accepted before the commit. Looked at by value, without the matcher.
/// Exempt are pending reads without a basis (ENG-336).
#[test]
fn inv_1_every_accepted_read_is_coherent() {
    let (mut confirmed, mut pending) = (0, 0);
    for seed in 1..80 {
        let mut engine = open(StoreLocation::Memory, SnapshotPolicy::default());
        run(&mut engine, seed, 100, |model, submission, seq| {
            let judged = coherence::check(model, submission, seq);
            confirmed += judged.confirmed;
            pending += judged.pending;
        });
    }
    println!("{confirmed} confirmed and {pending} pending reads");
    assert!(confirmed > 1_000 && pending > 100);
}

/// What a read of `path` sees; a shape read sees members and not what is in them.
fn observe(document: &Value, path: &DocPath, shape: bool) -> Option<String> {
    document.at_path(path).map(|found| match (shape, found) {
        (true, Value::Object(object)) => {
            let keys: Vec<String> = object.iter().map(|(key, _)| key.to_string()).collect();
            format!("{{{}}}", keys.join(","))
        }
        (true, Value::Array(array)) => format!("[{}]", array.len()),
        (_, found) => codec::encode(found).unwrap(),
    })
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

/// INV-5: given in-order submission a session's commits are resolved in that order; the engine refuses, it never holds
/// anything back.
#[test]
fn inv_5_resolutions_of_a_session_ascend_with_its_local_seqs() {
    for seed in 1..12 {
        let mut engine = open(StoreLocation::Memory, SnapshotPolicy::default());
        let (_, submitted) = run(&mut engine, seed, 100, |_, _, _| {});
        let mut last: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut newest: BTreeMap<String, u64> = BTreeMap::new();
        for (Submission { who, commit, .. }, verdict) in &submitted {
            let who = format!("{who:?}");
            // Resubmissions, and numbers that were passed over, are out of order; the rest is in order.
            let newest = newest.entry(who.clone()).or_default();
            let in_order = commit.local_seq.0 > *newest;
            *newest = (*newest).max(commit.local_seq.0);
            if let (
                Verdict::Accepted {
                    seq, replayed: false, ..
                },
                true,
            ) = (verdict, in_order)
                && let Some((local_seq, earlier)) = last.insert(who, (commit.local_seq.0, *seq))
            {
                assert!(local_seq < commit.local_seq.0 && earlier < *seq);
            }
        }
    }
}
