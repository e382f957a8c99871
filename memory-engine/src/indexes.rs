//! ENG-207: what is asked of a store is found by an index. Counted in steps of SQLite's machine, which go with the rows that
//! a statement looks at: a store a hundred times as large takes the same ones. Tests only, since the steps are counted on
//! the engine's own connection.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory_wire::Value;
use memory_wire::ids::{BranchName, LocalSeq, Seq};
use memory_wire::message::ClientCommit;
use memory_wire::scope_key::{InstanceId, ScopeKey, session_key};
use memory_wire::value;

use crate::lease::LeaseTable;
use crate::{
    ApplyCommit, Durability, Engine, EngineOptions, Holder, ReadInstance, SnapshotPolicy, StoreLocation,
};

/// Steps that may be more in the large store: a few rows' worth.
const FEW: u64 = 200;

fn open(path: &Path) -> Engine {
    let options = EngineOptions {
        durability: Durability::Normal,
        serving: true,
        snapshots: SnapshotPolicy {
            interval: NonZeroU32::new(10),
            retention: None,
        },
    };
    Engine::open(StoreLocation::File(path.to_owned()), options).unwrap()
}

fn apply(engine: &mut Engine, session: &str, local_seq: u64, rest: Value) -> Seq {
    let Value::Object(rest) = rest else {
        panic!("an object")
    };
    let mut commit = rest;
    commit.insert("localSeq", local_seq);
    let none = value!({ "confirmed": [], "pending": [] });
    if commit.get("reads").is_none() {
        commit.insert("reads", none);
    }
    let commit = ClientCommit::from_value(&commit.into()).unwrap();
    let (session, principal) = (session.into(), "did:key:zA".into());
    let commit = ApplyCommit::authored(&session, Some(&principal), &commit, 0);
    engine.apply_commit(commit).unwrap().seq
}

/// The session key of a session of the one who writes here, which is also its scope key.
fn key_of(session: &str) -> String {
    session_key(Some(&"did:key:zA".into()), &session.into())
}

/// A store where `rounds` commits each count up one document and write a new one, by turns of two sessions, at three scopes.
fn fill(path: &Path, rounds: u64) {
    let mut engine = open(path);
    engine
        .group(|engine| {
            for round in 1..=rounds {
                let session = if round.is_multiple_of(2) { "even" } else { "odd" };
                let count = value!([{ "op": "increment", "path": "/value/n", "by": 1 }]);
                let other = format!("of:other-{round:05}");
                apply(
                    engine,
                    session,
                    round,
                    value!({ "operations": [
                        { "op": "patch", "id": "of:hot", "patches": count },
                        { "op": "set", "id": (other.clone()), "value": { "value": round } },
                        { "op": "set", "id": (other), "scope": "user", "value": { "value": round } }
                    ] }),
                );
            }
            let stream = value!({ "id": "of:stream", "path": ["value"], "scope": "space" });
            let sidecar = memory_wire::well_known::stream_sidecar_id(
                &"of:stream".into(),
                &["value"],
                memory_wire::Scope::Space,
            );
            apply(
                engine,
                "odd",
                rounds + 100,
                value!({
                    "operations": [{ "op": "set", "id": (sidecar.as_str()),
                        "value": { "value": { "entries": [{ "eventId": "e1", "stream": stream }] } } }],
                    "eventAppends": [{ "id": (sidecar.as_str()), "eventId": "e1" }]
                }),
            );
        })
        .unwrap();
}

/// The steps that `work` takes on a store nobody remembers anything of.
fn steps(path: &Path, work: &dyn Fn(&mut Engine)) -> u64 {
    let mut engine = open(path);
    let counted = Arc::new(AtomicU64::new(0));
    let count = counted.clone();
    let counter = move || {
        count.fetch_add(1, Ordering::Relaxed);
        false
    };
    engine
        .connection_mut()
        .progress_handler(1, Some(counter))
        .unwrap();
    work(&mut engine);
    counted.load(Ordering::Relaxed)
}

#[test]
fn eng_207_whatever_is_asked_is_found_by_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [23, 2_303];
    let stores = sizes.map(|rounds| {
        let path = dir.path().join(format!("{rounds}.sqlite"));
        fill(&path, rounds);
        (path, rounds)
    });
    let main = BranchName::default();
    let hot = InstanceId::space("of:hot");
    type Asked<'a> = (&'static str, Box<dyn Fn(&mut Engine, u64) + 'a>);
    let asked: Vec<Asked<'_>> = vec![
        (
            "a commit that read what was written since, elsewhere in the document",
            Box::new(|engine, rounds| {
                let reads = value!({ "confirmed": [{ "id": "of:hot", "path": ["value", "other"], "seq": (rounds - 4) }],
                    "pending": [] });
                let count = value!([{ "op": "increment", "path": "/value/n", "by": 1 }]);
                let patch = value!({ "op": "patch", "id": "of:hot", "patches": count });
                apply(
                    engine,
                    "new",
                    1,
                    value!({ "reads": reads, "operations": [patch] }),
                );
            }),
        ),
        (
            "a commit that read through layers of its own",
            Box::new(|engine, rounds| {
                let session = if rounds.is_multiple_of(2) { "even" } else { "odd" };
                let reads = value!({ "confirmed": [], "pending": [{ "id": "of:hot", "path": ["value", "n"],
                    "localSeq": [rounds], "basisSeq": (rounds - 1) }] });
                let set = value!({ "op": "set", "id": "of:new", "value": { "value": 1 } });
                apply(
                    engine,
                    session,
                    rounds + 1_000,
                    value!({ "reads": reads, "operations": [set] }),
                );
            }),
        ),
        (
            "a commit on conditions",
            Box::new(|engine, _| {
                let absent = value!({ "kind": "entity-absent", "id": "of:never" });
                let set = value!({ "op": "set", "id": "of:new", "value": { "value": 1 } });
                let commit = value!({ "preconditions": [absent], "operations": [set] });
                apply(engine, "new", 1, commit);
            }),
        ),
        (
            "a replay",
            Box::new(|engine, rounds| {
                let sets =
                    value!({ "operations": [{ "op": "set", "id": "of:new", "value": { "value": 1 } }] });
                let first = apply(engine, "new", 1, sets.clone());
                assert_eq!(apply(engine, "new", 1, sets), first);
                assert_eq!(first, Seq(rounds + 2));
            }),
        ),
        (
            "a document now",
            Box::new(|engine, _| {
                assert!(engine.current(&hot, &main).unwrap().is_some());
            }),
        ),
        (
            "a document a while ago",
            Box::new(|engine, rounds| {
                let at = Some(Seq(rounds - 5));
                let read = engine.read(&"of:hot".into(), ReadInstance::Space, &main, at);
                assert!(read.unwrap().is_some());
            }),
        ),
        (
            "a document before its first snapshot",
            Box::new(|engine, _| {
                let read = engine.read(&"of:hot".into(), ReadInstance::Space, &main, Some(Seq(7)));
                let read = read.unwrap().unwrap();
                let n = read.member("value").and_then(|value| value.member("n"));
                assert_eq!(n.and_then(Value::as_u64), Some(7));
            }),
        ),
        (
            "the feed",
            Box::new(|engine, rounds| {
                let fed = engine.commits_since(Seq(rounds - 2), &main, None).unwrap();
                assert_eq!(fed.len(), 3);
                assert_eq!(
                    engine
                        .write_paths_since(&hot, &main, Seq(rounds - 2))
                        .unwrap()
                        .len(),
                    2
                );
            }),
        ),
        (
            "a commit's class and seq",
            Box::new(|engine, rounds| {
                assert!(engine.commit_class_of_seq(Seq(rounds)).unwrap().is_some());
                assert_eq!(
                    engine.committed_at(&key_of("odd"), LocalSeq(1)).unwrap(),
                    Some(Seq(1))
                );
            }),
        ),
        (
            "pending events",
            Box::new(|engine, _| {
                assert_eq!(engine.select_pending_stream_events(&main).unwrap().len(), 1);
            }),
        ),
        (
            "retirable effects",
            Box::new(|engine, _| {
                assert_eq!(engine.select_retirable_effects(&main).unwrap().len(), 0);
            }),
        ),
        (
            "the outbox",
            Box::new(|engine, _| assert_eq!(engine.pending_outbox(&main).unwrap().len(), 0)),
        ),
        (
            "ids",
            Box::new(|engine, _| {
                let page = engine
                    .entity_id_page(Some(&"of:other-00010".into()), Some(3))
                    .unwrap();
                assert_eq!(page.len(), 3);
                assert!(engine.entity_id_exists(&"of:hot".into()).unwrap());
            }),
        ),
        (
            "a branch and a lease",
            Box::new(|engine, _| {
                engine.create_branch(&"b".into(), &main, None).unwrap();
                engine.delete_branch(&"b".into()).unwrap();
                let (space, holder) = ("did:key:zS".into(), Holder::from("h#1"));
                assert!(engine.acquire(&space, &holder, 0, 10).unwrap());
                engine.release(&space, &holder).unwrap();
            }),
        ),
        (
            "what other processes did",
            Box::new(|engine, _| assert!(engine.foreign_commits().unwrap().is_empty())),
        ),
    ];
    let mut wrong = Vec::new();
    for (what, ask) in &asked {
        let [small, large] = [0, 1].map(|n| {
            let (path, rounds) = &stores[n];
            let copy = path.with_extension("copy");
            std::fs::copy(path, &copy).unwrap();
            let taken = steps(&copy, &|engine| ask(engine, *rounds));
            std::fs::remove_file(copy).unwrap();
            taken
        });
        if large > small + FEW {
            wrong.push(format!(
                "{what}: {small} steps in a small store, {large} in a large one"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// ENG-1601: no index tells where a session's rows are, so a batch looks through the store; once, however many there are.
#[test]
fn eng_1601_a_batch_looks_through_the_store_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.sqlite");
    fill(&path, 603);
    let retire = |session: &'static str, documents: usize| {
        let mut engine = open(&path);
        for n in 0..documents {
            let id = format!("of:z-draft-{n}");
            let set = value!({ "op": "set", "id": id, "scope": "session", "value": { "value": 1 } });
            apply(
                &mut engine,
                session,
                n as u64 + 1,
                value!({ "operations": [set] }),
            );
        }
        drop(engine);
        steps(&path, &|engine| {
            let key = ScopeKey::parse(&key_of(session)).unwrap();
            let retired = engine.retire_session(&key, 1_000, false).unwrap();
            assert_eq!(
                (retired.heads, retired.revisions, retired.done),
                (documents as u64, documents as u64, true)
            );
        })
    };
    let (one, many) = (retire("one", 1), retire("many", 40));
    assert!(many < 2 * one, "{one} steps for one document, {many} for forty");
}
