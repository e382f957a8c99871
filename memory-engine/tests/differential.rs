//! ENG-1300: the engine against a naive re-implementation of admission, on random schedules. Every verdict has to be
//! the same, every state at every seq has to be the fold of the accepted revisions, and neither grouping, nor the
//! snapshot policy, nor reopening may make a difference (INV-9).
//!
//! `ENGINE_DIFFERENTIAL_CASES` sets the number of schedules; the default keeps a run short.

#[path = "support/model.rs"]
mod model;
#[path = "support/schedule.rs"]
mod schedule;
mod support;

use memory_engine::{ApplyCommit, Engine, EngineOptions, ReadInstance, SnapshotPolicy, StoreLocation};
use memory_wire::codec;
use memory_wire::ids::{BranchName, Seq};
use memory_wire::message::ClientCommit;
use memory_wire::scope_key::InstanceId;
use memory_wire::value::Value;
use model::{Model, Submitter, Verdict};
use proptest::prelude::*;
use schedule::{Action, Entropy, Memory};
use support::NOW_MS;

fn cases() -> u32 {
    std::env::var("ENGINE_DIFFERENTIAL_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(64)
}

fn apply(engine: &mut Engine, who: &Submitter, commit: &ClientCommit) -> Verdict {
    Verdict::of(&engine.apply_commit(ApplyCommit::authored(
        &who.session,
        who.principal.as_ref(),
        commit,
        NOW_MS,
    )))
}

fn text(document: Option<&Value>) -> Option<String> {
    document.map(|document| codec::encode(document).unwrap())
}

/// The engine's and the model's state of every instance, on every branch, at every seq.
fn compare(engine: &Engine, model: &Model, what: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(engine.server_seq().unwrap().0, model.server_seq(), "{}", what);
    for branch in &model.branches {
        let name = BranchName::from(branch.name.as_str());
        let state = engine.branch(&name).unwrap();
        prop_assert_eq!(
            state.head_seq.0,
            branch.head,
            "{}: head of {:?}",
            what,
            branch.name
        );
        let floor = branch.parent.as_ref().map_or(0, |(_, fork)| *fork);
        for instance in schedule::instances() {
            for at in (floor..=branch.head).map(Some).chain([None]) {
                let want = model.state(&branch.name, &instance, at.unwrap_or(u64::MAX));
                let got = engine
                    .read_state(
                        &instance.id,
                        ReadInstance::Named(&instance.scope_key),
                        &name,
                        at.map(Seq),
                    )
                    .unwrap()
                    .map(|state| state.document);
                let (want, got) = (want.map(|d| text(d.as_ref())), got.map(|d| text(d.as_ref())));
                prop_assert_eq!(
                    got,
                    want,
                    "{}: {} on {:?} at {:?}",
                    what,
                    &instance,
                    &branch.name,
                    at
                );
            }
        }
    }
    Ok(())
}

/// INV-1, read coherence, of every accepted read: what a confirmed read observed at its seq is what was there when the commit
/// landed. A read ahead of the log claims nothing.
fn coherent(model: &Model, commit: &ClientCommit, who: &Submitter, landed: u64) -> Result<(), TestCaseError> {
    for read in &commit.reads.confirmed {
        let branch = read.branch.as_ref().unwrap_or(&commit.branch).as_str();
        let Ok(scope_key) = memory_wire::ScopeKey::resolve(read.scope, &who.identity()) else {
            continue;
        };
        let instance = InstanceId {
            id: read.id.clone(),
            scope_key,
        };
        let written_here = |seq: u64| {
            model
                .revisions
                .iter()
                .any(|r| r.branch == branch && r.instance == instance && r.seq <= seq)
        };
        // Inherited documents are not protected (ENG-331), and one that only came to be here was not read here.
        if read.seq.0 >= landed || !written_here(read.seq.0) {
            continue;
        }
        let observe = |at: u64| {
            let document = model.state(branch, &instance, at).flatten();
            let found = document
                .as_ref()
                .and_then(|document| document.at_path(&read.path))
                .cloned();
            if read.non_recursive {
                found.as_ref().map(shape)
            } else {
                found.map(|v| codec::encode(&v).unwrap())
            }
        };
        // Not every creation of a key announces itself to shape reads: an untruthful `createsKey`, a `replace` of what was
        // not there, the outer of two levels made at once (ENG-344). `inv_2` covers the truthful ones.
        if read.non_recursive && may_create_keys(model, branch, &instance, read.seq.0, landed) {
            continue;
        }
        prop_assert_eq!(
            observe(read.seq.0),
            observe(landed - 1),
            "read {:?} of commit {}",
            read,
            landed
        );
    }
    for read in commit.reads.pending.iter().filter(|read| !read.non_recursive) {
        // Without `basisSeq` a pending read claims less (ENG-336), and a child branch inherits unprotected documents.
        let (Some(basis), true) = (read.basis_seq, commit.branch.is_empty()) else {
            continue;
        };
        let Ok(scope_key) = memory_wire::ScopeKey::resolve(read.scope, &who.identity()) else {
            continue;
        };
        let instance = InstanceId {
            id: read.id.clone(),
            scope_key,
        };
        let layer = |seq: u64| {
            model.commits.iter().any(|commit| {
                commit.seq == seq
                    && commit.session == who.key()
                    && read.local_seqs.iter().any(|l| l.0 == commit.local_seq)
            })
        };
        let on_instance = || {
            model
                .revisions
                .iter()
                .filter(|r| r.branch.is_empty() && r.instance == instance)
        };
        let view: Vec<_> = on_instance()
            .filter(|r| r.seq < landed && (r.seq <= basis.0 || layer(r.seq)))
            .cloned()
            .collect();
        // A `move` carries what was at its source, which the read does not name.
        if view.iter().any(|r| r.seq > basis.0 && moves(&r.change)) {
            continue;
        }
        let Ok(seen) = model::fold(view.iter()) else {
            continue;
        };
        let at = |document: Option<Value>| {
            document
                .as_ref()
                .and_then(|document| document.at_path(&read.path))
                .map(|v| codec::encode(v).unwrap())
        };
        let landed_on = model.state("", &instance, landed - 1).flatten();
        prop_assert_eq!(at(seen), at(landed_on), "read {:?} of commit {}", read, landed);
    }
    Ok(())
}

fn moves(change: &model::Change) -> bool {
    let model::Change::Patch(patches) = change else {
        return false;
    };
    patches
        .iter()
        .any(|patch| matches!(patch.action(), memory_wire::patch::PatchAction::Move { .. }))
}

fn may_create_keys(model: &Model, branch: &str, instance: &InstanceId, since: u64, until: u64) -> bool {
    use memory_wire::patch::PatchAction;
    let creates = |patch: &memory_wire::patch::PatchOp| match patch.action() {
        PatchAction::Add { .. }
        | PatchAction::Replace { .. }
        | PatchAction::Move { .. }
        | PatchAction::Append { .. }
        | PatchAction::AddUnique { .. }
        | PatchAction::Increment { .. } => true,
        PatchAction::Remove { .. } | PatchAction::Splice { .. } | PatchAction::RemoveByValue { .. } => false,
    };
    let between = |r: &&model::Revision| {
        r.branch == branch && r.instance == *instance && r.seq > since && r.seq < until
    };
    model
        .revisions
        .iter()
        .filter(between)
        .any(|revision| match &revision.change {
            model::Change::Patch(patches) => patches.iter().any(creates),
            model::Change::Set(_) | model::Change::Delete => false,
        })
}

/// What a shape read sees: the kind of thing, and a container's keys or length.
fn shape(value: &Value) -> String {
    match value {
        Value::Object(object) => object
            .iter()
            .map(|(key, _)| key.to_string())
            .collect::<Vec<_>>()
            .join(","),
        Value::Array(array) => format!("[{}]", array.len()),
        other => codec::encode(other).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn the_engine_agrees_with_the_naive_model(
        bytes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 48), 1..70),
        group_size in 1usize..5,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let options = EngineOptions { durability: memory_engine::Durability::Normal, ..EngineOptions::default() };
        let path = dir.path().join("plain.sqlite");
        let mut plain = Engine::open(StoreLocation::File(path.clone()), options).unwrap();
        let often = SnapshotPolicy { interval: std::num::NonZeroU32::new(2), retention: std::num::NonZeroU32::new(1) };
        let mut grouped = Engine::in_memory(EngineOptions { snapshots: often, ..options }).unwrap();
        let mut model = Model::new();
        let mut memory = Memory::default();
        let mut group: Vec<(Submitter, ClientCommit, Verdict)> = Vec::new();
        for entropy in &bytes {
            match memory.action(&mut Entropy::new(entropy), &model) {
                Action::Commit { who, commit } => {
                    let want = model.submit(&who, &commit);
                    let got = apply(&mut plain, &who, &commit);
                    prop_assert_eq!(&got, &want, "{:?}", codec::encode(&commit.value));
                    if let Verdict::Accepted { seq, replayed: false } = want {
                        coherent(&model, &commit, &who, seq)?;
                    }
                    group.push((who, commit, want));
                    if group.len() >= group_size {
                        flush(&mut grouped, &mut group)?;
                    }
                }
                Action::Fork { name, at } => {
                    flush(&mut grouped, &mut group)?;
                    for engine in [&mut plain, &mut grouped] {
                        engine.create_branch(&name, &"".into(), Some(at)).unwrap();
                    }
                    model.fork(name.as_str(), at.0);
                }
                Action::Close { name } => {
                    flush(&mut grouped, &mut group)?;
                    for engine in [&mut plain, &mut grouped] {
                        // Deleting a branch that never was is an error, and changes nothing.
                        let _ = engine.delete_branch(&name);
                    }
                    model.close(name.as_str());
                }
            }
        }
        flush(&mut grouped, &mut group)?;
        compare(&plain, &model, "plain")?;
        compare(&grouped, &model, "grouped, with other snapshots")?;
        drop(plain);
        let reopened = Engine::open(StoreLocation::File(path), options).unwrap();
        compare(&reopened, &model, "reopened")?;
    }
}

/// Runs gathered commits in one transaction and compares the verdicts.
fn flush(
    engine: &mut Engine,
    group: &mut Vec<(Submitter, ClientCommit, Verdict)>,
) -> Result<(), TestCaseError> {
    let members = std::mem::take(group);
    let verdicts = engine
        .group(|engine| {
            let member = |(who, commit, _): &(Submitter, ClientCommit, Verdict)| apply(engine, who, commit);
            members.iter().map(member).collect::<Vec<_>>()
        })
        .unwrap();
    for ((_, commit, want), got) in members.iter().zip(verdicts) {
        prop_assert_eq!(&got, want, "in a group: {:?}", codec::encode(&commit.value));
    }
    Ok(())
}
