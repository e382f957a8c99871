//! INV-6 and INV-11: an answer once given stays, and asking again adds nothing.

use memory_engine::{ApplyCommit, Engine, EngineError, Holder, Refusal, SnapshotPolicy, StoreLocation};
use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{Did, LocalSeq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::value;

use crate::admission::model::{Submission, Verdict};
use crate::admission::{apply, open};
use crate::run;
use crate::support::{NOW_MS, dump};

/// The same commit with one operation more.
fn with_another_payload(submission: &Submission) -> Submission {
    let commit = &submission.commit;
    let more = Operation::Set {
        id: "of:more".into(),
        scope: memory_wire::Scope::Space,
        value: value!({ "value": 1 }),
    };
    let parts = CommitParts {
        branch: commit.branch.clone(),
        reads: commit.reads.clone(),
        operations: commit.operations.iter().cloned().chain([more]).collect(),
        preconditions: commit.preconditions.clone(),
        event_appends: commit.event_appends.clone(),
    };
    Submission {
        commit: ClientCommit::build(LocalSeq(commit.local_seq.0), parts),
        ..submission.clone()
    }
}

/// Submits a commit under its own session as one of another class or by another holder.
fn otherwise(
    engine: &mut Engine,
    submission: &Submission,
    class: CommitClass,
    holder: Option<&Holder>,
) -> EngineError {
    let who = &submission.who;
    let (session, principal) = (
        who.session.as_str().into(),
        who.principal.as_deref().map(Did::from),
    );
    let other = ApplyCommit {
        class,
        holder,
        ..ApplyCommit::authored(&session, principal.as_ref(), &submission.commit, NOW_MS)
    };
    engine.apply_commit(other).unwrap_err()
}

/// INV-6 and INV-11: an accepted commit replayed is answered accepted with its seq and adds no row; a changed payload,
/// class or holder is refused; a refused commit left no row.
#[test]
fn inv_6_and_11_replays_agree_and_add_nothing() {
    let mut derived = 0;
    let stranger = Holder::from("did:key:zOther#1");
    for seed in 1..6 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let mut engine = open(StoreLocation::File(path.clone()), SnapshotPolicy::default());
        let (model, submitted) = run(&mut engine, seed, 100, |_, _, _| {});
        let before = dump(&path);
        let rows = before["commit"].as_array().unwrap();
        assert_eq!(rows.len(), model.accepted());
        for (submission, verdict) in &submitted {
            match verdict {
                Verdict::Accepted { seq, .. } => {
                    let Verdict::Accepted {
                        seq: again, replayed, ..
                    } = apply(&mut engine, submission)
                    else {
                        panic!("seed {seed}: {submission:?} is not accepted again");
                    };
                    assert_eq!((again, replayed), (*seq, true));
                    let changed = apply(&mut engine, &with_another_payload(submission));
                    assert_eq!(changed, Verdict::Refused("ReplayMismatch"));
                    let others = match submission.who.derived {
                        true => [
                            (CommitClass::Authored, None),
                            (CommitClass::Derived, Some(&stranger)),
                        ],
                        false => [
                            (CommitClass::System, None),
                            (CommitClass::Derived, Some(&stranger)),
                        ],
                    };
                    for (class, holder) in others {
                        let mismatch = otherwise(&mut engine, submission, class, holder);
                        assert!(
                            matches!(
                                mismatch,
                                EngineError::Refused(Refusal::ReplayClassMismatch { .. })
                            ),
                            "{class:?}: {mismatch}"
                        );
                    }
                    derived += u64::from(submission.who.derived);
                }
                _ => assert!(!model.has_accepted(submission), "a refused commit left a row"),
            }
        }
        assert_eq!(dump(&path), before, "seed {seed}");
    }
    assert!(derived > 0);
}
