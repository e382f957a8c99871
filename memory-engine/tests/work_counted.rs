//! What the engine does is in proportion to what is asked of it, counted and not timed: documents in use are read without
//! SQLite (ENG-201, 208), a refresh of a large graph reads what changed (ENG-1012), a commit takes the same statements in
//! a large space, and spaces at rest hold no file (line f of what the engine has to show).

use std::time::Duration;

use memory_engine::query::TrackedGraph;
use memory_engine::{
    ActorOptions, Applied, ApplyCommit, CommitTexts, Engine, EngineError, EngineHandle, EngineOptions,
    ReadInstance, StoreLocation,
};
use memory_wire::ids::{BranchName, LocalSeq, Seq};
use memory_wire::message::{
    ClientCommit, CommitParts, ConfirmedRead, GraphQuery, Operation, Reads, Root, Selector,
};
use memory_wire::patch::PatchOp;
use memory_wire::scope_key::{InstanceId, ScopeIdentity, ScopeKey};
use memory_wire::value::Value;
use memory_wire::{Scope, value};
use rustc_hash::FxHashSet;

const NOW_MS: i64 = 1_800_000_000_000;

fn apply(
    engine: &mut Engine,
    local_seq: u64,
    operations: Vec<Operation>,
    reads: Reads,
) -> Result<Applied, EngineError> {
    let parts = CommitParts {
        operations,
        reads,
        ..CommitParts::default()
    };
    let commit = ClientCommit::build(LocalSeq(local_seq), parts);
    engine.apply_commit(ApplyCommit::authored(
        &"s".into(),
        Some(&"did:key:zA".into()),
        &commit,
        NOW_MS,
    ))
}

fn set(id: &str, value: Value) -> Operation {
    Operation::Set {
        id: id.into(),
        scope: Scope::Space,
        value: value!({ "value": value }),
    }
}

fn count(id: &str) -> Operation {
    let path = vec!["value".into(), "n".into()];
    Operation::Patch {
        id: id.into(),
        scope: Scope::Space,
        patches: vec![PatchOp::increment(path, 1.0, false)],
    }
}

fn number(state: Option<memory_engine::EntityState>) -> Option<f64> {
    state?.document?.member("value")?.member("n")?.as_f64()
}

fn reads(id: &str, seq: Seq) -> Reads {
    let path = vec!["value".into()];
    let read = ConfirmedRead {
        id: id.into(),
        scope: Scope::Space,
        branch: None,
        path,
        seq,
        non_recursive: false,
    };
    Reads {
        confirmed: vec![read],
        ..Reads::default()
    }
}

/// A document in use is read without SQLite, from any thread, and is always the one of the last commit.
#[test]
fn eng_201_a_document_in_use_is_read_without_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::File(dir.path().join("store.sqlite"));
    let options = ActorOptions {
        foreign_poll: Duration::from_secs(3_600),
        ..ActorOptions::default()
    };
    let handle = EngineHandle::new(location, EngineOptions::default(), options);
    let branch = BranchName::default();
    let hot = InstanceId::space("of:hot");
    let state = |handle: &EngineHandle| handle.state(&hot, &branch).wait().unwrap().unwrap();
    handle
        .write(|engine| {
            apply(
                engine,
                1,
                vec![set("of:hot", value!({ "n": 1 }))],
                Reads::default(),
            )
            .unwrap()
        })
        .wait()
        .unwrap();

    // Unless other processes are watched for, nothing may be answered from memory.
    let before = handle.counters();
    assert_eq!(number(state(&handle)), Some(1.0));
    assert_eq!(handle.counters().hot_reads, before.hot_reads);
    assert!(handle.counters().statements > before.statements);

    handle.watch_foreign(Some(Box::new(|_, _| {})));
    // A turn looks for them first.
    handle.turn(|_| ()).wait().unwrap();
    for n in 2..=20 {
        let written =
            handle.write(move |engine| apply(engine, n, vec![count("of:hot")], Reads::default()).unwrap());
        written.wait().unwrap();
        let before = handle.counters();
        for _ in 0..100 {
            assert_eq!(number(state(&handle)), Some(n as f64));
        }
        let after = handle.counters();
        assert_eq!(
            after.statements, before.statements,
            "a hundred reads after commit {n}"
        );
        assert_eq!(after.hot_reads, before.hot_reads + 100);
    }
    // A deleted document is as well known as one that is there; one that never was is asked for.
    let delete = Operation::Delete {
        id: "of:hot".into(),
        scope: Scope::Space,
    };
    handle
        .write(|engine| apply(engine, 21, vec![delete], Reads::default()).unwrap())
        .wait()
        .unwrap();
    let before = handle.counters().statements;
    assert_eq!(state(&handle).unwrap().document.map(|_| ()), None);
    assert_eq!(handle.counters().statements, before);
    assert!(
        handle
            .state(&InstanceId::space("of:never"), &branch)
            .wait()
            .unwrap()
            .unwrap()
            .is_none()
    );
    assert!(handle.counters().statements > before);
}

/// Another process's commit is seen as soon as it is looked for; what was remembered of before is not.
#[test]
fn eng_208_what_another_process_wrote_replaces_what_was_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::File(dir.path().join("store.sqlite"));
    let open = || Engine::open(location.clone(), EngineOptions::default()).unwrap();
    let (mut ours, mut theirs) = (open(), open());
    let (instance, branch) = (InstanceId::space("of:x"), BranchName::default());
    let hot = |engine: &Engine| number(engine.hot_state(&instance, &branch));
    apply(
        &mut ours,
        1,
        vec![set("of:x", value!({ "n": 1 }))],
        Reads::default(),
    )
    .unwrap();
    assert_eq!(hot(&ours), Some(1.0));
    theirs.foreign_commits().unwrap();
    apply(&mut theirs, 2, vec![count("of:x")], Reads::default()).unwrap();
    assert_eq!(hot(&theirs), Some(2.0));
    // A snapshot sees the file, whatever is remembered.
    let named = ScopeKey::space();
    let read = |engine: &Engine| {
        let state = engine
            .snapshot(|reader| reader.read_state(&"of:x".into(), ReadInstance::Named(&named), &branch, None));
        number(state.unwrap().unwrap())
    };
    assert_eq!(read(&ours), Some(2.0));
    assert_eq!(ours.foreign_commits().unwrap().len(), 1);
    assert_ne!(hot(&ours), Some(1.0), "remembered from before");
    assert_eq!(read(&ours), Some(2.0));
    assert_eq!(hot(&ours), Some(2.0));
    // Noticed while an own write takes the lock.
    apply(&mut theirs, 3, vec![count("of:x")], Reads::default()).unwrap();
    apply(&mut ours, 4, vec![set("of:y", value!(1))], Reads::default()).unwrap();
    assert_ne!(hot(&ours), Some(2.0), "remembered from before");
    assert_eq!(read(&ours), Some(3.0));
}

/// A refused commit and a panicking one leave nothing behind that a hot read would answer.
#[test]
fn eng_202_what_did_not_land_is_not_remembered() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let (instance, branch) = (InstanceId::space("of:x"), BranchName::default());
    apply(
        &mut engine,
        1,
        vec![set("of:x", value!({ "n": 1 }))],
        Reads::default(),
    )
    .unwrap();
    let bad = Operation::Patch {
        id: "of:y".into(),
        scope: Scope::Space,
        patches: vec![PatchOp::remove(vec!["value".into(), "gone".into()])],
    };
    apply(
        &mut engine,
        2,
        vec![set("of:x", value!({ "n": 2 })), bad],
        Reads::default(),
    )
    .unwrap_err();
    assert_eq!(number(engine.hot_state(&instance, &branch)), Some(1.0));
    engine
        .group(|engine| {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                engine.group_member(|engine| {
                    apply(engine, 3, vec![set("of:x", value!({ "n": 3 }))], Reads::default()).unwrap();
                    std::panic::resume_unwind(Box::new("on purpose"));
                })
            }));
            assert!(panicked.is_err());
            let landed = apply(engine, 4, vec![count("of:x")], Reads::default()).unwrap();
            assert_eq!(landed.seq, Seq(2));
        })
        .unwrap();
    assert_eq!(number(engine.hot_state(&instance, &branch)), Some(2.0));
    assert_eq!(engine.list_entity_ids().unwrap().len(), 1);
}

/// A graph over twenty thousand documents is kept up to date by reading the documents that changed.
#[test]
fn eng_1012_a_graph_over_twenty_thousand_documents_reads_the_ones_that_changed() {
    const MEMBERS: usize = 20_000;
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let link = |n: usize| value!({ "/": { "link@1": { "id": (format!("of:m{n}")) } } });
    let mut local_seq = 0;
    for chunk in (0..MEMBERS).collect::<Vec<_>>().chunks(500) {
        local_seq += 1;
        let members = chunk
            .iter()
            .map(|n| set(&format!("of:m{n}"), value!({ "n": (*n as f64) })))
            .collect();
        apply(&mut engine, local_seq, members, Reads::default()).unwrap();
    }
    let root = set("of:root", (0..MEMBERS).map(link).collect::<Vec<_>>().into());
    apply(&mut engine, local_seq + 1, vec![root], Reads::default()).unwrap();
    let schema = Some(value!({ "type": "array", "items": { "type": "object" } }));
    let query = GraphQuery::of(vec![Root::new(
        "of:root",
        Scope::Space,
        Selector {
            path: Vec::new(),
            schema,
        },
    )]);
    let space = "did:key:zSpace".into();
    let mut graph = TrackedGraph::track(engine.reader(), &space, &ScopeIdentity::default(), &query).unwrap();
    assert_eq!(graph.tracked_instances().count(), MEMBERS + 1);
    for touched in [1, 10, 100] {
        let changed: Vec<String> = (0..touched).map(|n| format!("of:m{}", n * 131)).collect();
        local_seq += 1;
        let operations = changed.iter().map(|id| count(id)).collect();
        apply(&mut engine, local_seq + 1, operations, Reads::default()).unwrap();
        let dirty: FxHashSet<InstanceId> = changed.iter().map(|id| InstanceId::space(id.as_str())).collect();
        let (before, statements) = (graph.work(), engine.counters().statements);
        let changes = graph.refresh(engine.reader(), &dirty).unwrap().unwrap();
        assert_eq!(changes.snapshots.len(), touched);
        assert_eq!(graph.work().documents - before.documents, touched as u64);
        assert_eq!(
            graph.work().evaluations,
            before.evaluations,
            "the whole was not walked again"
        );
        let statements = engine.counters().statements - statements;
        assert!(
            statements <= 20 + 4 * touched as u64,
            "{statements} statements for {touched} documents"
        );
    }
}

/// The statements of a commit are few, and as many in a space with a long history as in an empty one.
#[test]
fn eng_207_a_commit_takes_the_same_statements_in_a_large_space() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let mut local_seq = 0;
    let mut commit = |engine: &mut Engine, operation: Operation, reads: Reads| {
        local_seq += 1;
        let before = engine.counters().statements;
        apply(engine, local_seq, vec![operation], reads).unwrap();
        engine.counters().statements - before
    };
    commit(&mut engine, set("of:x", value!({ "n": 0 })), Reads::default());
    let small = commit(&mut engine, count("of:x"), reads("of:x", Seq(1)));
    for n in 0..2_000 {
        commit(
            &mut engine,
            set(&format!("of:{}", n % 200), value!({ "n": 1 })),
            Reads::default(),
        );
    }
    let large = commit(&mut engine, count("of:x"), reads("of:x", Seq(2)));
    assert_eq!(large, small);
    // BEGIN, the newest seq, the rows of the commit, its revision and its head, the branch, COMMIT.
    assert!(small <= 7, "{small} statements");
}

/// In a group each further commit of a session in use to a document in use costs its three rows, and nothing is asked for.
#[test]
fn eng_206_a_member_of_a_group_takes_three_statements() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let mut local_seq = 0;
    let mut statements = |engine: &mut Engine, operation: fn(&str) -> Operation, members: usize| {
        let before = engine.counters().statements;
        engine
            .group(|engine| {
                for n in 0..members {
                    local_seq += 1;
                    let (id, seen) = (format!("of:{n}"), engine.server_seq().unwrap());
                    apply(engine, local_seq, vec![operation(&id)], reads(&id, seen)).unwrap();
                }
            })
            .unwrap();
        engine.counters().statements - before
    };
    statements(&mut engine, |id| set(id, value!({ "n": 0 })), 64);
    statements(&mut engine, count, 64);
    let one = statements(&mut engine, count, 1);
    let all = statements(&mut engine, count, 64);
    assert_eq!(all - one, 63 * 3);
}

/// Texts that a caller worked out are stored like those that admission works out, and are the same.
#[test]
fn eng_120_a_commit_with_its_texts_is_stored_like_one_without() {
    let dir = tempfile::tempdir().unwrap();
    let [with, without] = ["with", "without"].map(|name| dir.path().join(name));
    let operations = [
        set("of:x", value!({ "n": 1, "2": "b", "text": "a \" and \u{1f600}" })),
        count("of:x"),
        Operation::Delete {
            id: "of:y".into(),
            scope: Scope::Space,
        },
        set("of:y", value!([1, 2])),
    ];
    for path in [&with, &without] {
        let mut engine = Engine::open(StoreLocation::File(path.clone()), EngineOptions::default()).unwrap();
        for (n, operation) in operations.iter().enumerate() {
            let parts = CommitParts {
                operations: vec![operation.clone()],
                ..CommitParts::default()
            };
            let commit = ClientCommit::build(LocalSeq(n as u64 + 1), parts);
            let texts = CommitTexts::of(&commit);
            let session = "s".into();
            let apply = ApplyCommit::authored(&session, None, &commit, NOW_MS);
            let texts = (*path == with).then_some(&texts);
            engine.apply_commit(ApplyCommit { texts, ..apply }).unwrap();
        }
    }
    let rows = |path: &std::path::Path| {
        let conn = rusqlite::Connection::open(path).unwrap();
        let query = "SELECT c.original, r.op, r.data FROM \"commit\" c JOIN revision r ON r.commit_seq = c.seq ORDER BY c.seq";
        let mut statement = conn.prepare(query).unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let rows: Vec<(String, String, Option<String>)> = statement
            .query_map([], row)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        rows
    };
    assert_eq!(rows(&with), rows(&without));
    assert_eq!(rows(&with).len(), operations.len());
}

/// Spaces that nobody uses hold no thread and no file, and come back when they are asked.
#[test]
fn f39_spaces_at_rest_hold_no_thread_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let options = ActorOptions {
        idle_close: Duration::from_millis(20),
        ..ActorOptions::default()
    };
    let handles: Vec<EngineHandle> = (0..40)
        .map(|n| {
            let location = StoreLocation::File(dir.path().join(format!("{n}.sqlite")));
            EngineHandle::new(location, EngineOptions::default(), options)
        })
        .collect();
    for handle in &handles {
        let landed =
            handle.write(|engine| apply(engine, 1, vec![set("of:x", value!({ "n": 1 }))], Reads::default()));
        assert_eq!(landed.wait().unwrap().unwrap().seq, Seq(1));
    }
    while !handles.iter().all(EngineHandle::is_resting) {
        std::thread::yield_now();
    }
    for handle in &handles {
        let counters = handle.counters();
        assert_eq!(
            (
                counters.documents.entries,
                counters.heads.entries,
                counters.patches.entries
            ),
            (0, 0, 0)
        );
    }
    let state = handles[17].state(&InstanceId::space("of:x"), &BranchName::default());
    assert_eq!(number(state.wait().unwrap().unwrap()), Some(1.0));
}

/// Hundreds of spaces used one after the other never hold many files at once, however long an idle one may stay open.
#[test]
fn f39_many_spaces_hold_few_files() {
    let dir = tempfile::tempdir().unwrap();
    let options = ActorOptions {
        idle_close: Duration::from_secs(3_600),
        crowd: 4,
        ..ActorOptions::default()
    };
    let open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let of = |file: std::io::Result<std::fs::DirEntry>| std::fs::read_link(file.ok()?.path()).ok();
        files
            .filter_map(of)
            .filter(|path| path.starts_with(dir.path()))
            .count()
    };
    let mut handles = Vec::new();
    for n in 0..40 {
        let location = StoreLocation::File(dir.path().join(format!("{n}.sqlite")));
        let handle = EngineHandle::new(location, EngineOptions::default(), options);
        let landed = handle.write(|engine| apply(engine, 1, vec![set("of:x", value!(1))], Reads::default()));
        assert_eq!(landed.wait().unwrap().unwrap().seq, Seq(1));
        handles.push(handle);
        // A store is its file, its log and the log's index; one may be about to open beside the eight that may be.
        assert!(open() <= 9 * 3, "{} files after {n} spaces", open());
    }
}

/// ENG-201: a document weighs in the cache what it is, not all that it went through; else one that is counted up for ever
/// would come to take the place of all others.
#[test]
fn eng_201_a_document_that_is_patched_for_ever_takes_no_more_room() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    apply(
        &mut engine,
        1,
        vec![set("of:hot", value!({ "n": 0 }))],
        Reads::default(),
    )
    .unwrap();
    let mut heaviest = 0;
    for local_seq in 2..2_000 {
        let before = engine.counters().documents;
        apply(&mut engine, local_seq, vec![count("of:hot")], Reads::default()).unwrap();
        let after = engine.counters().documents;
        assert_eq!(after.entries, before.entries + 1, "nothing was pushed out");
        heaviest = heaviest.max(after.bytes - before.bytes);
    }
    assert!(heaviest < 2_000, "{heaviest}");
}
