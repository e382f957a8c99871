//! A naive re-implementation of admission for sessions' own commits: everything in vectors, every question answered by
//! looking at all of it. Slow and obvious on purpose; the engine must agree with it on every verdict and every state.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeSet;

use memory_engine::EngineError;
use memory_wire::ids::{Did, LocalSeq, Seq, SessionId};
use memory_wire::message::{ClientCommit, Operation, Precondition};
use memory_wire::patch::{PatchAction, PatchOp, apply_patches};
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
use memory_wire::value::{Object, Value};
use memory_wire::{codec, hash};

/// One accepted commit.
pub struct Commit {
    pub seq: u64,
    pub session: String,
    pub local_seq: u64,
    pub original: String,
}

/// One stored operation.
#[derive(Clone)]
pub struct Revision {
    pub branch: String,
    pub instance: InstanceId,
    pub seq: u64,
    pub change: Change,
}

#[derive(Clone)]
pub enum Change {
    Set(Value),
    Patch(Vec<PatchOp>),
    Delete,
}

pub struct Branch {
    pub name: String,
    pub parent: Option<(String, u64)>,
    pub head: u64,
    pub active: bool,
}

#[derive(Default)]
pub struct Model {
    pub commits: Vec<Commit>,
    pub revisions: Vec<Revision>,
    pub branches: Vec<Branch>,
}

/// What became of a commit. Texts are left to the vectors.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Verdict {
    Accepted { seq: u64, replayed: bool },
    ReplayMismatch,
    Empty,
    UnknownBranch,
    InactiveBranch,
    NoIdentity,
    OriginNotCommitted(u64),
    ReceiptExists(String),
    ValueHashChanged(String),
    StaleConfirmed { of: String, seq: u64, conflict: u64 },
    PendingDependency(u64),
    BasisAhead,
    StalePending { of: String, via: u64, conflict: u64 },
    BadPatch,
}

impl Verdict {
    /// The engine's answer in the model's words.
    pub fn of(answer: &Result<memory_engine::Applied, EngineError>) -> Verdict {
        use memory_engine::Refusal;
        match answer {
            Ok(applied) => Verdict::Accepted {
                seq: applied.seq.0,
                replayed: applied.replayed,
            },
            Err(EngineError::Refused(Refusal::ReplayMismatch { .. })) => Verdict::ReplayMismatch,
            Err(EngineError::EmptyCommit) => Verdict::Empty,
            Err(EngineError::UnknownBranch(_)) => Verdict::UnknownBranch,
            Err(EngineError::BranchNotActive(_)) => Verdict::InactiveBranch,
            Err(EngineError::Scope(_)) => Verdict::NoIdentity,
            Err(EngineError::OriginNotCommitted { origin }) => Verdict::OriginNotCommitted(origin.0),
            Err(EngineError::ReceiptExists { id }) => Verdict::ReceiptExists(id.to_string()),
            Err(EngineError::ValueHashChanged { id }) => Verdict::ValueHashChanged(id.to_string()),
            Err(EngineError::StaleConfirmedRead {
                of,
                seq,
                conflict_seq,
            }) => Verdict::StaleConfirmed {
                of: of.to_string(),
                seq: seq.0,
                conflict: conflict_seq.0,
            },
            Err(EngineError::PendingDependency { local_seq }) => Verdict::PendingDependency(local_seq.0),
            Err(EngineError::Refused(Refusal::BasisAheadOfLog { .. })) => Verdict::BasisAhead,
            Err(EngineError::StalePendingRead {
                of,
                via,
                conflict_seq,
            }) => Verdict::StalePending {
                of: of.to_string(),
                via: via.0,
                conflict: conflict_seq.0,
            },
            Err(EngineError::Patch(_)) => Verdict::BadPatch,
            Err(other) => panic!("the model has no word for {other:?}"),
        }
    }
}

/// Who submits.
#[derive(Clone, Debug)]
pub struct Submitter {
    pub session: SessionId,
    pub principal: Option<Did>,
}

impl Submitter {
    pub fn identity(&self) -> ScopeIdentity {
        ScopeIdentity {
            principal: self.principal.clone(),
            session_id: Some(self.session.clone()),
        }
    }

    pub fn key(&self) -> String {
        memory_wire::scope_key::session_key(self.principal.as_ref(), &self.session)
    }
}

impl Model {
    pub fn new() -> Model {
        let main = Branch {
            name: String::new(),
            parent: None,
            head: 0,
            active: true,
        };
        Model {
            branches: vec![main],
            ..Model::default()
        }
    }

    pub fn server_seq(&self) -> u64 {
        self.commits.iter().map(|commit| commit.seq).max().unwrap_or(0)
    }

    pub fn fork(&mut self, name: &str, at: u64) {
        if !self.branches.iter().any(|branch| branch.name == name) {
            self.branches.push(Branch {
                name: name.into(),
                parent: Some((String::new(), at)),
                head: at,
                active: true,
            });
        }
    }

    pub fn close(&mut self, name: &str) {
        self.branches
            .iter_mut()
            .filter(|branch| branch.name == name)
            .for_each(|branch| branch.active = false);
    }

    /// Judges a commit and, if it is new and fine, stores it.
    pub fn submit(&mut self, who: &Submitter, commit: &ClientCommit) -> Verdict {
        match self.judge(who, commit) {
            Ok((seq, revisions)) => {
                self.commits.push(Commit {
                    seq,
                    session: who.key(),
                    local_seq: commit.local_seq.0,
                    original: codec::encode(&commit.value).unwrap(),
                });
                self.revisions.extend(revisions);
                let branch = self
                    .branches
                    .iter_mut()
                    .find(|branch| branch.name == *commit.branch.as_str())
                    .unwrap();
                branch.head = seq;
                Verdict::Accepted { seq, replayed: false }
            }
            Err(verdict) => verdict,
        }
    }

    fn judge(&self, who: &Submitter, commit: &ClientCommit) -> Result<(u64, Vec<Revision>), Verdict> {
        let session = who.key();
        if let Some(stored) = self.committed(&session, commit.local_seq) {
            let same = stored.original == codec::encode(&commit.value).unwrap();
            let replayed = Verdict::Accepted {
                seq: stored.seq,
                replayed: true,
            };
            return Err(if same { replayed } else { Verdict::ReplayMismatch });
        }
        if commit.operations.is_empty() && commit.preconditions.is_empty() {
            return Err(Verdict::Empty);
        }
        let branch = commit.branch.as_str();
        match self.branches.iter().find(|known| known.name == branch) {
            None => return Err(Verdict::UnknownBranch),
            Some(known) if !known.active => return Err(Verdict::InactiveBranch),
            Some(_) => {}
        }
        let own = |id: &memory_wire::EntityId, scope: Scope| {
            let scope_key = ScopeKey::resolve(scope, &who.identity()).map_err(|_| Verdict::NoIdentity)?;
            Ok::<InstanceId, Verdict>(InstanceId {
                id: id.clone(),
                scope_key,
            })
        };
        for precondition in &commit.preconditions {
            match precondition {
                Precondition::OriginCommitted { origin_local_seq } => {
                    if self.committed(&session, *origin_local_seq).is_none() {
                        return Err(Verdict::OriginNotCommitted(origin_local_seq.0));
                    }
                }
                Precondition::EntityAbsent { id, scope } => {
                    let target = own(id, *scope)?;
                    let mut here = self.on(branch, &target);
                    if here.any(|revision| !matches!(revision.change, Change::Patch(_))) {
                        return Err(Verdict::ReceiptExists(id.to_string()));
                    }
                }
                Precondition::EntityValueHash {
                    id,
                    scope,
                    value_hash,
                } => {
                    let document = self.state(branch, &own(id, *scope)?, u64::MAX).flatten();
                    let value = document
                        .as_ref()
                        .and_then(|document| document.as_object()?.get("value"));
                    let current = value.map(|value| hash::precondition_value_hash(value).unwrap());
                    if current != *value_hash {
                        return Err(Verdict::ValueHashChanged(id.to_string()));
                    }
                }
            }
        }
        for read in &commit.reads.confirmed {
            let on = read.branch.as_ref().map_or(branch, |branch| branch.as_str());
            if !self.branches.iter().any(|known| known.name == on) {
                return Err(Verdict::UnknownBranch);
            }
            let instance = own(&read.id, read.scope)?;
            if let Some(conflict) =
                self.conflict(on, &instance, &read.path, read.non_recursive, read.seq.0, &[])
            {
                return Err(Verdict::StaleConfirmed {
                    of: read.id.to_string(),
                    seq: read.seq.0,
                    conflict,
                });
            }
        }
        for read in &commit.reads.pending {
            let mut layers = Vec::new();
            for layer in &read.local_seqs {
                match self.committed(&session, *layer) {
                    Some(accepted) => layers.push((layer.0, accepted.seq)),
                    None => return Err(Verdict::PendingDependency(layer.0)),
                }
            }
            let (via, via_seq) = *layers.iter().max_by_key(|(local_seq, _)| *local_seq).unwrap();
            let (since, excluded) = match read.basis_seq {
                Some(Seq(basis)) if basis > self.server_seq() => return Err(Verdict::BasisAhead),
                Some(Seq(basis)) => (basis, layers.iter().map(|(_, seq)| *seq).collect()),
                None => (via_seq, Vec::new()),
            };
            let instance = own(&read.id, read.scope)?;
            if let Some(conflict) = self.conflict(
                branch,
                &instance,
                &read.path,
                read.non_recursive,
                since,
                &excluded,
            ) {
                return Err(Verdict::StalePending {
                    of: read.id.to_string(),
                    via,
                    conflict,
                });
            }
        }
        let seq = self.server_seq() + 1;
        let mut written = Vec::new();
        for operation in &commit.operations {
            let (id, scope) = operation.target().unwrap();
            let change = match operation {
                Operation::Set { value, .. } => Change::Set(value.clone()),
                Operation::Patch { patches, .. } => Change::Patch(patches.clone()),
                Operation::Delete { .. } | Operation::Sqlite { .. } => Change::Delete,
            };
            written.push(Revision {
                branch: branch.into(),
                instance: own(id, scope)?,
                seq,
                change,
            });
        }
        // A patch that cannot be applied matters only if the final state depends on it.
        let instances: BTreeSet<&InstanceId> = written.iter().map(|revision| &revision.instance).collect();
        for instance in instances {
            let all = self
                .on(branch, instance)
                .chain(written.iter().filter(|revision| revision.instance == *instance));
            fold(all).map_err(|()| Verdict::BadPatch)?;
        }
        Ok((seq, written))
    }

    fn committed(&self, session: &str, local_seq: LocalSeq) -> Option<&Commit> {
        self.commits
            .iter()
            .find(|commit| commit.session == session && commit.local_seq == local_seq.0)
    }

    fn on<'m>(&'m self, branch: &'m str, instance: &'m InstanceId) -> impl Iterator<Item = &'m Revision> {
        self.revisions
            .iter()
            .filter(move |revision| revision.branch == branch && revision.instance == *instance)
    }

    /// The newest `set` or `delete` after `since`, else the newest overlapping patch.
    fn conflict(
        &self,
        branch: &str,
        instance: &InstanceId,
        path: &[smol_str::SmolStr],
        shape: bool,
        since: u64,
        excluded: &[u64],
    ) -> Option<u64> {
        let all: Vec<&Revision> = self.on(branch, instance).collect();
        let counts = |revision: &Revision| revision.seq > since && !excluded.contains(&revision.seq);
        let replaced = all
            .iter()
            .filter(|revision| counts(revision) && !matches!(revision.change, Change::Patch(_)));
        let overlapping = all
            .iter()
            .enumerate()
            .filter(|(at, revision)| match &revision.change {
                Change::Patch(patches) if counts(revision) => patches.iter().any(|patch| {
                    overlaps(patch, path, shape) || (shape && creates_below(&all[..*at], patch, path))
                }),
                Change::Patch(_) | Change::Set(_) | Change::Delete => false,
            });
        let newest_replaced = replaced.map(|revision| revision.seq).max();
        newest_replaced.or_else(|| overlapping.map(|(_, revision)| revision.seq).max())
    }

    /// `None`: never written; `Some(None)`: deleted.
    pub fn state(&self, branch: &str, instance: &InstanceId, at: u64) -> Option<Option<Value>> {
        let here: Vec<&Revision> = self
            .on(branch, instance)
            .filter(|revision| revision.seq <= at)
            .collect();
        if !here.is_empty() {
            return Some(fold(here.into_iter()).expect("an accepted history can be replayed"));
        }
        let branch = self.branches.iter().find(|known| known.name == branch)?;
        let (parent, fork) = branch.parent.as_ref()?;
        self.state(parent, instance, at.min(*fork))
    }
}

/// Replays revisions over nothing.
pub fn fold<'r>(revisions: impl Iterator<Item = &'r Revision>) -> Result<Option<Value>, ()> {
    let revisions: Vec<&Revision> = revisions.collect();
    // What a later `set` or `delete` replaces is never computed.
    let base = revisions
        .iter()
        .rposition(|revision| !matches!(revision.change, Change::Patch(_)));
    let mut state = None;
    for revision in &revisions[base.unwrap_or(0)..] {
        state = match &revision.change {
            Change::Set(document) => Some(document.clone()),
            Change::Delete => None,
            Change::Patch(patches) => {
                let base = state.unwrap_or_else(|| Value::Object(Object::new()));
                Some(apply_patches(&base, patches).map_err(|_| ())?)
            }
        };
    }
    Ok(state)
}

/// ENG-342…344 in their own words.
fn overlaps(patch: &PatchOp, path: &[smol_str::SmolStr], shape: bool) -> bool {
    let mut touched = vec![patch.path().clone()];
    if let PatchAction::Move { from, .. } = patch.action() {
        touched.push(from.clone());
    }
    let starts = |long: &[smol_str::SmolStr], short: &[smol_str::SmolStr]| {
        long.len() >= short.len() && long.iter().zip(short).all(|(a, b)| a == b)
    };
    if !shape {
        return touched
            .iter()
            .any(|touched| starts(touched, path) || starts(path, touched));
    }
    let changes_keys = match patch.action() {
        PatchAction::Add { .. } | PatchAction::Remove { .. } | PatchAction::Move { .. } => true,
        PatchAction::Append { creates_key, .. }
        | PatchAction::AddUnique { creates_key, .. }
        | PatchAction::Increment { creates_key, .. } => *creates_key,
        PatchAction::Replace { .. } | PatchAction::Splice { .. } | PatchAction::RemoveByValue { .. } => false,
    };
    if changes_keys {
        let parents: Vec<_> = touched
            .iter()
            .map(|path| path[..path.len().saturating_sub(1)].to_vec())
            .collect();
        touched.extend(parents);
    }
    touched.iter().any(|touched| starts(path, touched))
}

/// Whether a patch makes a new member of what a shape read looked at, however far below that it writes (INV-2): the
/// member on the way to its target was not there before the revision.
fn creates_below(before: &[&Revision], patch: &PatchOp, path: &[smol_str::SmolStr]) -> bool {
    let creates = match patch.action() {
        PatchAction::Add { .. }
        | PatchAction::Replace { .. }
        | PatchAction::Move { .. }
        | PatchAction::Append { .. }
        | PatchAction::AddUnique { .. }
        | PatchAction::Increment { .. } => true,
        PatchAction::Remove { .. } | PatchAction::Splice { .. } | PatchAction::RemoveByValue { .. } => false,
    };
    if !creates || patch.path().len() <= path.len() || !patch.path().starts_with(path) {
        return false;
    }
    let member = &patch.path()[..=path.len()];
    let state = fold(before.iter().copied()).unwrap_or_default();
    state.as_ref().and_then(|state| state.at_path(member)).is_none()
}
