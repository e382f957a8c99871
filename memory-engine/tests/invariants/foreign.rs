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
