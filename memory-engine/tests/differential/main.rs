//! ENG-1300: the engine against a naive re-implementation of admission, on random schedules of pipelined sessions and a
//! serving loop. Every verdict has to be the same, every state at every seq has to be the fold of the accepted revisions,
//! every accepted read has to be coherent (INV-1), and neither grouping, nor the snapshot policy, nor reopening may make
//! a difference (INV-9). What the engine finds by scanning is what the history says (`scans`).
//!
//! Runs the seeds `LONG_FROM .. LONG_FROM + LONG_COUNT`, after those of `corpus/differential.seeds`.

#[path = "../support/admission/mod.rs"]
mod admission;
mod scans;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use admission::model::{Instance, Model, Owner, Submission, Verdict};
use admission::schedule::{self, Action, Schedule};
use admission::tree::Tree;
use admission::{apply, coherence, key, open};
use memory_engine::{Engine, ReadInstance, Reader, SnapshotPolicy, StoreLocation};
use memory_wire::ids::Seq;
use memory_wire::scope_key::InstanceId;

/// Things that happen in one schedule.
const ACTIONS: usize = 160;
/// Seeds of an ordinary run.
const SMOKE: u64 = 12;

/// The engine's and the model's state of every instance, on every branch, at every seq where one may differ from the next;
/// and of what is answered from memory alone.
fn compare(engine: &Engine, model: &Model, what: &str) {
    let whole = |reader: &Reader| compare_states(reader, model, what);
    engine.reader().snapshot(whole).unwrap();
    for branch in &model.branches {
        for instance in schedule::instances() {
            let (id, owner) = &instance;
            let hot = engine.reader().hot_state(
                &InstanceId::new(id.as_str(), key(owner)),
                &branch.name.as_str().into(),
            );
            if let Some(hot) = hot {
                let want = model.state(&branch.name, &instance, u64::MAX);
                let got = Some(hot.document.as_ref().map(Tree::of));
                assert_eq!(got, want, "{what}: {instance:?} on {:?} from memory", branch.name);
            }
        }
    }
}

fn compare_states(engine: &Reader, model: &Model, what: &str) {
    scans::compare(engine, model, what);
    assert_eq!(engine.server_seq().unwrap().0, model.server_seq(), "{what}");
    for branch in &model.branches {
        let name = branch.name.as_str().into();
        assert_eq!(
            engine.branch(&name).unwrap().head_seq.0,
            branch.head,
            "{what}: head of {:?}",
            branch.name
        );
        let floor = branch.parent.as_ref().map_or(0, |(_, fork)| *fork);
        for instance in schedule::instances() {
            let (id, owner) = &instance;
            let scope_key = key(owner);
            let mut seqs = BTreeSet::from([floor, branch.head]);
            seqs.extend(
                model
                    .written_at(&instance)
                    .into_iter()
                    .flat_map(|seq| [seq.saturating_sub(1), seq]),
            );
            let seqs = seqs.into_iter().filter(|seq| (floor..=branch.head).contains(seq));
            for at in seqs.map(Some).chain([None]) {
                let want = model.state(&branch.name, &instance, at.unwrap_or(u64::MAX));
                let named = ReadInstance::Named(&scope_key);
                let got = engine
                    .read_state(&id.as_str().into(), named, &name, at.map(Seq))
                    .unwrap();
                let got = got.map(|state| state.document.as_ref().map(Tree::of));
                assert_eq!(got, want, "{what}: {instance:?} on {:?} at {at:?}", branch.name);
            }
        }
    }
    let live = |instance: &Instance| {
        let (_, owner) = instance;
        *owner == Owner::Everybody
            && model.on("", instance).next().is_some()
            && model.state("", instance, u64::MAX).flatten().is_some()
    };
    let want: Vec<String> = schedule::instances()
        .into_iter()
        .filter(live)
        .map(|(id, _)| id)
        .collect();
    let got: Vec<String> = engine
        .list_entity_ids()
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(got, want, "{what}: live entities");
}

/// Runs gathered commits in one transaction and compares the verdicts.
fn flush(engine: &mut Engine, group: &mut Vec<(Submission, Verdict)>) {
    let members = std::mem::take(group);
    let run = |engine: &mut Engine| {
        members
            .iter()
            .map(|(commit, _)| apply(engine, commit))
            .collect::<Vec<_>>()
    };
    let verdicts = engine.group(run).unwrap();
    for ((submission, want), got) in members.iter().zip(verdicts) {
        assert_eq!(&got, want, "in a group: {submission:?}");
    }
}

/// What happened, by kind.
#[derive(Default)]
struct Tally(BTreeMap<String, u64>);

impl Tally {
    fn count(&mut self, verdict: &Verdict) {
        let word = match verdict {
            Verdict::Accepted { replayed: false, .. } => "accepted".to_owned(),
            Verdict::Accepted { replayed: true, .. } => "replayed".to_owned(),
            Verdict::Refused(reason) => format!("refused: {reason}"),
            other => {
                let text = format!("{other:?}");
                let end = text.find([' ', '(']).unwrap_or(text.len());
                format!("refused: {}", &text[..end])
            }
        };
        *self.0.entry(word).or_default() += 1;
    }
}

fn run(seed: u64, tally: &mut Tally) {
    let mut schedule = Schedule::of(seed);
    let mut model = Model::new();
    // One schedule in a few is on a file, which is closed and opened again half way.
    let dir = seed.is_multiple_of(8).then(|| tempfile::tempdir().unwrap());
    let location = dir.as_ref().map_or(StoreLocation::Memory, |dir| {
        StoreLocation::File(dir.path().join("store.sqlite"))
    });
    let often = SnapshotPolicy {
        interval: NonZeroU32::new(2),
        retention: NonZeroU32::new(1),
    };
    // What is remembered hides what snapshots say; a store that was opened again remembers nothing.
    let policy = if seed.is_multiple_of(16) {
        often
    } else {
        SnapshotPolicy::default()
    };
    let mut plain = open(location.clone(), policy);
    let mut grouped = open(StoreLocation::Memory, often);
    // Every other schedule runs in groups as well.
    let in_groups = seed.is_multiple_of(2);
    let mut group = Vec::new();
    for step in 0..ACTIONS {
        match schedule.action(&mut model) {
            Action::Commit(submission) => {
                let want = model.submit(&submission);
                let got = apply(&mut plain, &submission);
                assert_eq!(got, want, "step {step}: {submission:?}");
                if let Verdict::Accepted {
                    seq, replayed: false, ..
                } = want
                {
                    coherence::check(&model, &submission, seq);
                }
                tally.count(&want);
                schedule.learn(&submission, &want, &model);
                if in_groups {
                    group.push((*submission, want));
                }
                if schedule.entropy().one_in(3) {
                    flush(&mut grouped, &mut group);
                }
            }
            Action::Fork { name, parent, at } => {
                flush(&mut grouped, &mut group);
                for engine in [&mut plain, &mut grouped] {
                    engine
                        .create_branch(&name.into(), &parent.into(), Some(Seq(at)))
                        .unwrap();
                }
                model.fork(name, parent, at);
            }
            Action::Close { name } => {
                flush(&mut grouped, &mut group);
                for engine in [&mut plain, &mut grouped] {
                    // Deleting a branch that never was is an error, and changes nothing.
                    let _ = engine.delete_branch(&name.into());
                }
                model.close(name);
            }
        }
        if dir.is_some() && step == ACTIONS / 2 {
            drop(plain);
            plain = open(location.clone(), policy);
        }
    }
    flush(&mut grouped, &mut group);
    compare(&plain, &model, "one by one");
    if in_groups {
        compare(&grouped, &model, "grouped, with other snapshots");
    }
    if dir.is_some() {
        drop(plain);
        compare(&open(location, policy), &model, "reopened");
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text}"))
    })
}

#[test]
fn admission_agrees_with_the_naive_model() {
    let from = setting("LONG_FROM", 0);
    let corpus = include_str!("../corpus/differential.seeds");
    let known = corpus
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| line.parse().expect("a seed a line"));
    let mut tally = Tally::default();
    for seed in known.chain(from..from + setting("LONG_COUNT", SMOKE)) {
        let run = std::panic::AssertUnwindSafe(|| run(seed, &mut tally));
        if std::panic::catch_unwind(run).is_err() {
            panic!("seed {seed}");
        }
    }
    for (word, count) in &tally.0 {
        println!("{count:>10} {word}");
    }
    assert!(tally.0["accepted"] > 0 && tally.0["replayed"] > 0);
}
