//! A store that nobody uses for a while gives back what only makes work quick, and its threads; it stays open (line f of
//! what the engine has to show). Whoever uses it again sees no difference.

use std::time::Duration;

use memory_engine::{
    ActorOptions, Applied, ApplyCommit, Engine, EngineError, EngineHandle, EngineOptions, StoreLocation,
};
use memory_wire::ids::{BranchName, LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::scope_key::InstanceId;
use memory_wire::{Scope, value};

fn apply(engine: &mut Engine, session: &str, local_seq: u64) -> Result<Applied, EngineError> {
    let operation = Operation::Set {
        id: "of:x".into(),
        scope: Scope::Space,
        value: value!({ "value": (local_seq as f64) }),
    };
    let parts = CommitParts {
        operations: vec![operation],
        ..CommitParts::default()
    };
    let commit = ClientCommit::build(LocalSeq(local_seq), parts);
    engine.apply_commit(ApplyCommit::authored(&session.into(), None, &commit, 0))
}

fn write(handle: &EngineHandle, local_seq: u64) -> Applied {
    let landed = handle.write(move |engine| apply(engine, "s", local_seq));
    landed.wait().unwrap().unwrap()
}

fn number(handle: &EngineHandle) -> Option<f64> {
    let (instance, branch) = (InstanceId::space("of:x"), BranchName::default());
    let state = handle.state(&instance, &branch).wait().unwrap().unwrap();
    state?.document?.member("value")?.as_f64()
}

/// Waits until what was remembered has been given back.
fn rest(handle: &EngineHandle) {
    while handle.counters().heads.entries > 0 || handle.counters().documents.entries > 0 {
        std::thread::yield_now();
    }
}

fn files(directory: &std::path::Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let of = |file: std::io::Result<std::fs::DirEntry>| std::fs::read_link(file.ok()?.path()).ok();
    open.filter_map(of)
        .filter(|path| path.starts_with(directory))
        .count()
}

#[test]
fn a_store_at_rest_stays_open_and_is_used_again_without_a_difference() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::File(dir.path().join("store.sqlite"));
    let options = ActorOptions {
        idle_close: Duration::from_secs(3_600),
        ..ActorOptions::default()
    };
    let handle = EngineHandle::new(location.clone(), EngineOptions::default(), options);
    assert_eq!(write(&handle, 1).seq, Seq(1));
    assert_eq!(number(&handle), Some(1.0));
    rest(&handle);
    assert!(!handle.is_resting(), "the store is open");
    assert!(files(dir.path()) >= 1);
    assert_eq!(handle.log_counters().bytes, 0, "the log is emptied");

    // Reads and writes, new and repeated.
    assert_eq!(number(&handle), Some(1.0));
    assert_eq!(write(&handle, 2).seq, Seq(2));
    assert!(write(&handle, 1).replayed);
    assert_eq!(number(&handle), Some(2.0));
    rest(&handle);

    // What another process wrote meanwhile is noticed as ever.
    let mut theirs = Engine::open(location, EngineOptions::default()).unwrap();
    assert_eq!(apply(&mut theirs, "s", 3).unwrap().seq, Seq(3));
    drop(theirs);
    assert!(write(&handle, 3).replayed);
    assert_eq!(write(&handle, 4).seq, Seq(4));
    assert_eq!(number(&handle), Some(4.0));
}

/// A store at rest closes in its time, although no thread of its own is left to close it.
#[test]
fn f39_a_store_at_rest_is_closed_in_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::File(dir.path().join("store.sqlite"));
    let options = ActorOptions {
        idle_close: Duration::from_millis(2_500),
        ..ActorOptions::default()
    };
    let handle = EngineHandle::new(location, EngineOptions::default(), options);
    assert_eq!(write(&handle, 1).seq, Seq(1));
    while !handle.is_resting() {
        std::thread::yield_now();
    }
    assert_eq!(files(dir.path()), 0);
    assert_eq!(write(&handle, 2).seq, Seq(2));
    assert_eq!(number(&handle), Some(2.0));
}
