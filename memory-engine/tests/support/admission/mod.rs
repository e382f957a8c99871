//! Admission for the tests: a naive model of it ([`model`], [`tree`], [`stream`]), random schedules of commits
//! ([`schedule`]), what an accepted read has to have seen ([`coherence`]), and here the engine with its answers in the
//! model's words. The differential test and the invariants share it; neither uses everything.
#![allow(dead_code)]

pub(crate) mod coherence;
pub(crate) mod content;
pub(crate) mod model;
mod overlap;
pub(crate) mod schedule;
mod stream;
pub(crate) mod tree;

use memory_engine::lease::{LEASE_TTL_MS, LeaseTable};
use memory_engine::{
    Applied, ApplyCommit, Durability, Engine, EngineError, EngineOptions, Holder, Refusal, SnapshotPolicy,
    StoreLocation,
};
use memory_wire::commit_meta::{CommitClass, WriteAnnotation};
use memory_wire::ids::{Did, Seq, SessionId, SpaceId};
use memory_wire::scope_key::{Scope, ScopeIdentity, ScopeKey};
use model::{Model, Owner, Submission, Verdict};
use schedule::{Action, Schedule};

pub(crate) const NOW_MS: i64 = 1_800_000_000_000;
const SPACE: &str = "did:key:zSpace";

/// The scope key that the engine spells an instance's owner with.
pub(crate) fn key(owner: &Owner) -> ScopeKey {
    let (scope, principal, session) = match owner {
        Owner::Everybody => return ScopeKey::space(),
        Owner::User(principal) => (Scope::User, principal, None),
        Owner::Session(principal, session) => (Scope::Session, principal, Some(session)),
    };
    let identity = ScopeIdentity {
        principal: Some(principal.as_str().into()),
        session_id: session.map(|session| session.as_str().into()),
    };
    ScopeKey::resolve(scope, &identity).expect("the identity is whole")
}

/// Submits a commit to the engine.
pub(crate) fn apply(engine: &mut Engine, submission: &Submission) -> Verdict {
    let Submission {
        who,
        commit,
        addresses,
    } = submission;
    let session = SessionId::from(who.session.as_str());
    let principal = who.principal.as_deref().map(Did::from);
    let plain = ApplyCommit::authored(&session, principal.as_ref(), commit, NOW_MS);
    let answer = if who.derived {
        let annotation = |(op, owner): &(usize, Owner)| WriteAnnotation {
            op: *op,
            scope_key: Some(key(owner)),
            acting_user: None,
            acting_session: None,
        };
        let annotations: Vec<WriteAnnotation> = addresses.iter().map(annotation).collect();
        engine.apply_commit(ApplyCommit {
            class: CommitClass::Derived,
            space: Some(&SpaceId::from(SPACE)),
            holder: Some(&Holder::from(who.session.as_str())),
            annotations: Some(&annotations),
            ..plain
        })
    } else {
        engine.apply_commit(plain)
    };
    verdict(&answer)
}

/// The engine's answer in the model's words.
pub(crate) fn verdict(answer: &Result<Applied, EngineError>) -> Verdict {
    let error = match answer {
        Ok(applied) => {
            return Verdict::Accepted {
                seq: applied.seq.0,
                replayed: applied.replayed,
                elided: applied.elided_op_indexes.clone().unwrap_or_default(),
            };
        }
        Err(error) => error,
    };
    match error {
        EngineError::EmptyCommit => Verdict::Empty,
        EngineError::UnknownBranch(_) => Verdict::UnknownBranch,
        EngineError::BranchNotActive(_) => Verdict::InactiveBranch,
        EngineError::Scope(_) => Verdict::NoIdentity,
        EngineError::OriginNotCommitted { origin } => Verdict::OriginNotCommitted(origin.0),
        EngineError::ReceiptExists { id } => Verdict::ReceiptExists(id.to_string()),
        EngineError::ValueHashChanged { id } => Verdict::ValueHashChanged(id.to_string()),
        EngineError::StaleConfirmedRead {
            of,
            seq,
            conflict_seq,
        } => Verdict::StaleConfirmed {
            of: of.to_string(),
            seq: seq.0,
            conflict: conflict_seq.0,
        },
        EngineError::PendingDependency { local_seq } => Verdict::PendingDependency(local_seq.0),
        EngineError::StalePendingRead {
            of,
            via,
            conflict_seq,
        } => Verdict::StalePending {
            of: of.to_string(),
            via: via.0,
            conflict: conflict_seq.0,
        },
        EngineError::Patch(_) => Verdict::BadPatch,
        EngineError::EventAppendDuplicate { event_id } => Verdict::DuplicateEvent(event_id.clone()),
        EngineError::Refused(refusal) => Verdict::Refused(reason(refusal)),
        other => panic!("the model has no word for {other:?}"),
    }
}

fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::ReplayMismatch { .. } => "ReplayMismatch",
        Refusal::BasisAheadOfLog { .. } => "BasisAheadOfLog",
        Refusal::PendingReadWithoutLayer { .. } => "PendingReadWithoutLayer",
        Refusal::ContentAddressedOp { .. } => "ContentAddressedOp",
        Refusal::ContentAddressedScope { .. } => "ContentAddressedScope",
        Refusal::ContentAddressedChange { .. } => "ContentAddressedChange",
        Refusal::ContentAddressedConflict { .. } => "ContentAddressedConflict",
        Refusal::AnnotationOnSpaceWrite { .. } => "AnnotationOnSpaceWrite",
        Refusal::AnnotationMissing { .. } => "AnnotationMissing",
        Refusal::AnnotationScopeMismatch { .. } => "AnnotationScopeMismatch",
        Refusal::EntriesNotArray { .. } => "EntriesNotArray",
        Refusal::DeclarationOnOrdinaryDoc { .. } => "DeclarationOnOrdinaryDoc",
        Refusal::DuplicateDeclaration { .. } => "DuplicateDeclaration",
        Refusal::SidecarDelete { .. } => "SidecarDelete",
        Refusal::SidecarSet { .. } => "SidecarSet",
        Refusal::SidecarFields { .. } => "SidecarFields",
        Refusal::SidecarWholeArray { .. } => "SidecarWholeArray",
        Refusal::SidecarWrite { .. } => "SidecarWrite",
        Refusal::NonEntry { .. } => "NonEntry",
        Refusal::EntryWithoutEventId { .. } => "EntryWithoutEventId",
        Refusal::RewriteUnknown { .. } => "RewriteUnknown",
        Refusal::Undeclared { .. } => "Undeclared",
        Refusal::EntrySeq { .. } => "EntrySeq",
        Refusal::EntryOutcome { .. } => "EntryOutcome",
        Refusal::EntryWithoutLink { .. } => "EntryWithoutLink",
        Refusal::EntryForeignLink { .. } => "EntryForeignLink",
        Refusal::AppendWithoutPrincipal { .. } => "AppendWithoutPrincipal",
        Refusal::FiredAtEnvelope { .. } => "FiredAtEnvelope",
        Refusal::DerivedWithoutFiredAt { .. } => "DerivedWithoutFiredAt",
        Refusal::DerivedClientSeq { .. } => "DerivedClientSeq",
        Refusal::UnmatchedDeclarations { .. } => "UnmatchedDeclarations",
        other => panic!("schedules give no cause for {other:?}"),
    }
}

/// A store on which the schedules' serving loop holds the lease.
pub(crate) fn open(location: StoreLocation, snapshots: SnapshotPolicy) -> Engine {
    let options = EngineOptions {
        durability: Durability::Normal,
        serving: true,
        snapshots,
    };
    let mut engine = Engine::open(location, options).unwrap();
    let holder = Holder::from(schedule::HOLDER);
    assert!(
        engine
            .acquire(&SPACE.into(), &holder, NOW_MS, LEASE_TTL_MS)
            .unwrap()
    );
    engine
}

/// Applies a random schedule to a store with the schedules' lease ([`open`]) and to the model, which have to agree
/// on every verdict. Each accepted commit is given to `accepted` as it lands.
pub(crate) fn run(
    engine: &mut Engine,
    seed: u64,
    length: usize,
    mut accepted: impl FnMut(&Model, &Submission, u64),
) -> (Model, Vec<(Submission, Verdict)>) {
    let (mut model, mut schedule) = (Model::new(), Schedule::of(seed));
    let mut submitted = Vec::new();
    for step in 0..length {
        match schedule.action(&mut model) {
            Action::Commit(submission) => {
                let want = model.submit(&submission);
                let got = apply(engine, &submission);
                assert_eq!(got, want, "seed {seed}, step {step}: {submission:?}");
                if let Verdict::Accepted {
                    seq, replayed: false, ..
                } = want
                {
                    accepted(&model, &submission, seq);
                }
                schedule.learn(&submission, &want, &model);
                submitted.push((*submission, want));
            }
            Action::Fork { name, parent, at } => {
                engine
                    .create_branch(&name.into(), &parent.into(), Some(Seq(at)))
                    .unwrap();
                model.fork(name, parent, at);
            }
            Action::Close { name } => {
                // Deleting a branch that never was is an error, and changes nothing.
                let _ = engine.delete_branch(&name.into());
                model.close(name);
            }
        }
    }
    (model, submitted)
}
