//! ENG-208: commits of other processes.

use memory_engine::{Engine, EngineOptions, StoreLocation};
use serde_json::json;

use crate::{by, commit, number, set};

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

/// A session whose commits this process knows may go on in another one: what it stored there is found all the same.
#[test]
fn eng_310_what_another_process_stored_for_a_known_session_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let location = StoreLocation::File(dir.path().join("store.sqlite"));
    let open = || Engine::open(location.clone(), EngineOptions::default()).unwrap();
    let (mut ours, mut theirs) = (open(), open());
    let write = |n: u64| commit(n, json!({ "operations": [set("of:a", json!(n))] }));
    for n in 1..=3 {
        assert!(!by(&mut ours, "s", &write(n)).unwrap().replayed);
    }
    for n in 4..=6 {
        assert!(!by(&mut theirs, "s", &write(n)).unwrap().replayed);
    }
    for n in (1..=6).rev() {
        let answered = by(&mut ours, "s", &write(n)).unwrap();
        assert!(answered.replayed, "localSeq {n}");
        assert_eq!(answered.seq.0, n);
    }
    assert!(!by(&mut ours, "s", &write(7)).unwrap().replayed);
    // Out of order, and new all the same.
    assert!(!by(&mut ours, "s", &write(9)).unwrap().replayed);
    assert!(!by(&mut ours, "s", &write(8)).unwrap().replayed);
    assert!(by(&mut theirs, "s", &write(9)).unwrap().replayed);
    assert_eq!(number(&theirs, "of:a").and_then(|n| n.as_f64()), Some(8.0));
}

/// A group that is lost after it stored a localSeq leaves it free.
#[test]
fn eng_310_a_commit_that_was_taken_back_is_new_again() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let write = |n: u64| commit(n, json!({ "operations": [set("of:a", json!(n))] }));
    by(&mut engine, "s", &write(1)).unwrap();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        engine.group(|engine| {
            by(engine, "s", &write(2)).unwrap();
            panic!("on purpose");
        })
    }));
    assert!(unwound.is_err());
    let again = by(&mut engine, "s", &write(2)).unwrap();
    assert!(!again.replayed);
    assert_eq!(again.seq.0, 2);
}
