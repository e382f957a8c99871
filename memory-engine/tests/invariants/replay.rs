//! INV-6 and INV-11: an answer once given stays, and asking again adds nothing.

use memory_engine::{ApplyCommit, Engine, EngineError, EngineOptions, Refusal, StoreLocation};
use memory_wire::codec;
use memory_wire::commit_meta::CommitClass;

use crate::model::Verdict;
use crate::run;
use crate::support::{NOW_MS, dump};

/// INV-6 and INV-11: an accepted commit replayed is answered accepted with its seq and adds no row; a changed payload,
/// class or holder is refused; a refused commit left no row.
#[test]
fn inv_6_and_11_replays_agree_and_add_nothing() {
    for seed in 1..6 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let mut engine = Engine::open(StoreLocation::File(path.clone()), EngineOptions::default()).unwrap();
        let (model, submitted) = run(&mut engine, seed, 50);
        let before = dump(&path);
        let rows = before["commit"].as_array().unwrap();
        assert_eq!(rows.len(), model.commits.len());
        for (who, commit, verdict) in &submitted {
            let apply = || ApplyCommit::authored(&who.session, who.principal.as_ref(), commit, NOW_MS);
            match verdict {
                Verdict::Accepted { seq, .. } => {
                    let again = engine.apply_commit(apply()).unwrap();
                    assert_eq!((again.seq.0, again.replayed), (*seq, true));
                    let other = ApplyCommit {
                        class: CommitClass::System,
                        ..apply()
                    };
                    let mismatch = engine.apply_commit(other).unwrap_err();
                    assert!(matches!(
                        mismatch,
                        EngineError::Refused(Refusal::ReplayClassMismatch { .. })
                    ));
                }
                _ => {
                    let key = (who.key(), commit.local_seq.0);
                    let stored = model
                        .commits
                        .iter()
                        .find(|c| (c.session.clone(), c.local_seq) == key);
                    let original = codec::encode(&commit.value).unwrap();
                    assert!(
                        stored.is_none_or(|stored| stored.original != original),
                        "a refused commit left a row"
                    );
                }
            }
        }
        assert_eq!(dump(&path), before, "seed {seed}");
    }
}
