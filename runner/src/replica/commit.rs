//! Commits into a replica: building, optimistic apply, push; and sealed commits (RUN-30, RUN-31, RUN-36, RUN-38,
//! RUN-45, RUN-47, RUN-48).

use memory_wire::message::{
    ClientCommit, CommitParts, ConfirmedRead, Operation, PendingRead, Precondition, Reads,
};
use memory_wire::{BranchName, LocalSeq, Scope, ScopeIdentity, ScopeKey, Seq};

use super::record::{Layer, LayerOp};
use super::{Core, InFlight, Instance, NotificationKind, Replica, Route, Sending, Stage, Touched};
use crate::error::{CommitError, CommitErrorName};
use crate::promise::Promise;
use crate::transaction::{NativeCommit, NativeRead, RunTx, SealOptions, SealedCommit, SealedVerdict};

impl Replica {
    /// RUN-30: builds, applies optimistically and pushes. The promise settles when the commit is covered (see
    /// RUN-32) or rejected; verdict callbacks of `source` run earlier.
    pub fn commit_native(
        &self,
        native: NativeCommit,
        source: Option<RunTx>,
    ) -> Promise<Result<(), CommitError>> {
        let native = self.keep_preconditions(native);
        if native.is_empty() {
            return Promise::ready(Ok(()));
        }
        let identity = source.as_ref().and_then(RunTx::scope_identity);
        let (local_seq, commit) = self.build(&native, source.as_ref(), identity.as_ref());
        if let Err(refused) = self.may_export(&commit) {
            // Nothing was applied: the layers below are what the caller has to wait for or give up on.
            if let Some(source) = &source {
                source.fate_sealed(&Err(refused.clone()));
            }
            return Promise::ready(Err(refused));
        }
        let touched = self.touched(&native.operations, identity.as_ref());
        self.apply(local_seq, native.operations, &touched, false, source.clone());
        let depends_on = dependencies(&commit);
        let settled = Promise::new();
        let entry = InFlight {
            touched,
            depends_on,
            source,
            route: Route::Pushed {
                commit,
                sending: Sending::Queued,
            },
            stage: Stage::Waiting,
            settled: settled.clone(),
            applied: Promise::new(),
        };
        self.0.core.borrow_mut().in_flight.insert(local_seq, entry);
        self.want_open();
        self.flush_commits();
        settled
    }

    /// RUN-45: applies without pushing; `verdict` settles it.
    pub fn seal_native(
        &self,
        native: NativeCommit,
        source: &RunTx,
        verdict: &Promise<Result<SealedVerdict, String>>,
        options: SealOptions,
    ) -> SealedCommit {
        let native = self.keep_preconditions(native);
        let identity = options.identity.as_ref();
        let (local_seq, commit) = self.build(&native, Some(source), identity);
        let touched = self.touched(&native.operations, identity);
        if options.speculative {
            self.0.core.borrow_mut().speculative.insert(local_seq);
        }
        source.sealed_layer_opened();
        self.apply(
            local_seq,
            native.operations,
            &touched,
            options.speculative,
            Some(source.clone()),
        );
        let settled = Promise::new();
        let entry = InFlight {
            touched,
            // Registered unconditionally, so that a reset can reject it (RUN-47).
            depends_on: dependencies(&commit),
            source: Some(source.clone()),
            route: Route::Sealed,
            stage: Stage::Waiting,
            settled: settled.clone(),
            applied: Promise::new(),
        };
        self.0.core.borrow_mut().in_flight.insert(local_seq, entry);
        if !options.speculative
            && let Some(storage) = self.storage()
        {
            storage.track_commit(settled.clone());
        }
        let replica = self.clone();
        verdict.then(move |verdict| replica.sealed_verdict(local_seq, verdict));
        SealedCommit {
            space: self.space().clone(),
            local_seq,
            commit,
            settled,
        }
    }

    /// A fresh local sequence number, for commits that apply nothing here (event appends).
    pub(crate) fn allocate(&self) -> LocalSeq {
        self.0.stateful.set(true);
        let mut core = self.0.core.borrow_mut();
        let local_seq = LocalSeq(core.next_local_seq);
        core.next_local_seq += 1;
        local_seq
    }

    /// Pushes a commit that applies nothing locally (RUN-78).
    pub(crate) fn push_bare(&self, commit: ClientCommit) -> Promise<Result<(), CommitError>> {
        let settled = Promise::new();
        let entry = InFlight {
            touched: Vec::new(),
            depends_on: Vec::new(),
            source: None,
            route: Route::Pushed {
                commit: commit.clone(),
                sending: Sending::Queued,
            },
            stage: Stage::Waiting,
            settled: settled.clone(),
            applied: Promise::new(),
        };
        self.0.core.borrow_mut().in_flight.insert(commit.local_seq, entry);
        self.want_open();
        self.flush_commits();
        settled
    }

    /// RUN-30 step 1.
    fn keep_preconditions(&self, mut native: NativeCommit) -> NativeCommit {
        if !self.storage().is_some_and(|s| s.options().commit_preconditions) {
            native
                .preconditions
                .retain(|p| matches!(p, Precondition::EntityValueHash { .. }));
        }
        native
    }

    fn build(
        &self,
        native: &NativeCommit,
        source: Option<&RunTx>,
        identity: Option<&ScopeIdentity>,
    ) -> (LocalSeq, ClientCommit) {
        let local_seq = self.allocate();
        if let Some(source) = source {
            source.set_local_seq(self.space(), local_seq);
        }
        let reads = self.reads(&native.reads, identity);
        let parts = CommitParts {
            branch: BranchName::default(),
            reads,
            operations: native.operations.clone(),
            preconditions: native.preconditions.clone(),
            event_appends: native.event_appends.clone(),
        };
        (local_seq, ClientCommit::build(local_seq, parts))
    }

    /// RUN-90: what each logged read stands on, from the records of the instances the identity selects.
    fn reads(&self, reads: &[NativeRead], identity: Option<&ScopeIdentity>) -> Reads {
        let core = self.0.core.borrow();
        let mut built = Reads::default();
        for read in reads {
            let key = self.doc_key(&read.id, read.scope, identity);
            if matches!(key.instance, Instance::Unresolved(_)) {
                // Nobody's instance: nothing to be stale against.
                continue;
            }
            let record = core.records.get(&key);
            let seq = record.map_or(Seq(0), |r| r.confirmed().seq);
            let mut below: Vec<LocalSeq> = record
                .map(|r| r.layers())
                .unwrap_or_default()
                .iter()
                .filter(|layer| !(read.non_speculative && layer.speculative))
                .map(|layer| layer.local_seq)
                .collect();
            below.sort_unstable();
            below.dedup();
            let (id, scope, path) = (read.id.clone(), read.scope, read.path.clone());
            if below.is_empty() {
                built.confirmed.push(ConfirmedRead {
                    id,
                    scope,
                    branch: None,
                    path,
                    seq,
                    non_recursive: read.non_recursive,
                });
            } else {
                built.pending.push(PendingRead {
                    id,
                    scope,
                    path,
                    local_seqs: below,
                    basis_seq: Some(seq),
                    non_recursive: read.non_recursive,
                });
            }
        }
        built
    }

    /// RUN-36 and the dead-but-standing refusal of RUN-35.
    fn may_export(&self, commit: &ClientCommit) -> Result<(), CommitError> {
        let core = self.0.core.borrow();
        let named = dependencies(commit);
        if let Some(layer) = named.iter().find(|n| core.speculative.contains(n)) {
            let text = format!("commit stands on speculative layer {layer}, which only this process knows");
            return Err(CommitError::new(CommitErrorName::SpeculativeBasis, text));
        }
        let gates: Vec<Promise<()>> = named.iter().filter_map(|n| core.dead.get(n).cloned()).collect();
        if gates.is_empty() {
            return Ok(());
        }
        let error = CommitError::new(
            CommitErrorName::Conflict,
            "pending dependency was already rejected",
        );
        Err(CommitError {
            gate: Some(Promise::all(gates)),
            ..error
        })
    }

    fn touched(&self, operations: &[Operation], identity: Option<&ScopeIdentity>) -> Vec<Touched> {
        let mut touched: Vec<Touched> = Vec::new();
        for (id, scope) in operations.iter().filter_map(Operation::target) {
            let key = self.doc_key(id, scope, identity);
            // Changes name the instance exactly when a run identity selected it (RUN-93, RUN-3).
            let scope_key = match (identity, scope) {
                (None, _) | (_, Scope::Space) => None,
                (Some(identity), scope) => ScopeKey::resolve(scope, identity).ok(),
            };
            if !touched.iter().any(|t| t.key == key) {
                touched.push(Touched { key, scope_key });
            }
        }
        touched
    }

    /// RUN-30 step 5: layers on, `commit` told synchronously.
    fn apply(
        &self,
        local_seq: LocalSeq,
        operations: Vec<Operation>,
        touched: &[Touched],
        speculative: bool,
        source: Option<RunTx>,
    ) {
        let subscribed = self.storage().is_some_and(|s| s.has_subscribers());
        let identity = source.as_ref().and_then(RunTx::scope_identity);
        let changes = {
            let mut core = self.0.core.borrow_mut();
            let before = if subscribed {
                self.snapshot(&core, touched.iter().cloned())
            } else {
                Vec::new()
            };
            for operation in operations {
                let Some((id, scope)) = operation.target() else {
                    continue;
                };
                // The instance was chosen when `touched` was built; ops of one document share it.
                let key = touched
                    .iter()
                    .map(|t| &t.key)
                    .find(|k| k.id == *id && k.instance.scope() == scope)
                    .cloned()
                    .unwrap_or_else(|| self.doc_key(id, scope, identity.as_ref()));
                let op = match operation {
                    Operation::Set { value, .. } => LayerOp::Set(value),
                    Operation::Patch { patches, .. } => LayerOp::Patch(patches),
                    Operation::Delete { .. } => LayerOp::Delete,
                    Operation::Sqlite { .. } => continue,
                };
                core.records.entry(key).or_default().push(Layer {
                    local_seq,
                    op,
                    speculative,
                });
            }
            self.changes_since(&core, &before)
        };
        if subscribed {
            self.notify(NotificationKind::Commit, changes, source, None);
        }
    }

    /// Sends what was not sent yet, in local order (RUN-12); answers whether anything left.
    pub(super) fn flush_commits(&self) -> bool {
        if !self.0.connection.borrow().is_open() {
            return false;
        }
        let ready = self.0.core.borrow_mut().take_sendable();
        let worked = !ready.is_empty();
        let mut connection = self.0.connection.borrow_mut();
        for commit in ready {
            connection.transact(commit.local_seq, commit.value);
        }
        worked
    }
}

impl Core {
    /// Marks and answers the commits to send. Without `pendingReadStacks` a commit whose reads lose layers is held
    /// until those are settled, and everything behind it with it (RUN-38).
    fn take_sendable(&mut self) -> Vec<ClientCommit> {
        let mut ready = Vec::new();
        let settled_or_gone: Vec<LocalSeq> = self.in_flight.keys().copied().collect();
        let stacks = self.stacks;
        for (_, entry) in self.in_flight.iter_mut() {
            let Route::Pushed { commit, sending } = &mut entry.route else {
                continue;
            };
            if *sending == Sending::Sent || entry.stage != Stage::Waiting {
                continue;
            }
            if stacks {
                *sending = Sending::Sent;
                ready.push(commit.clone());
                continue;
            }
            let (flat, omitted) = collapse(commit);
            if omitted.iter().any(|n| settled_or_gone.contains(n)) {
                break;
            }
            *sending = Sending::Sent;
            *commit = flat;
            ready.push(commit.clone());
        }
        ready
    }
}

/// Every local sequence number named by a pending read.
fn dependencies(commit: &ClientCommit) -> Vec<LocalSeq> {
    let mut named: Vec<LocalSeq> = commit
        .reads
        .pending
        .iter()
        .flat_map(|r| r.local_seqs.iter().copied())
        .collect();
    named.sort_unstable();
    named.dedup();
    named
}

/// RUN-38: array dependencies reduced to their largest element; answers what was left out.
fn collapse(commit: &ClientCommit) -> (ClientCommit, Vec<LocalSeq>) {
    let mut omitted = Vec::new();
    let mut reads = commit.reads.clone();
    for read in &mut reads.pending {
        if let Some(largest) = read.local_seqs.iter().max().copied() {
            omitted.extend(read.local_seqs.iter().copied().filter(|n| *n != largest));
            read.local_seqs = vec![largest];
        }
        read.basis_seq = None;
    }
    let parts = CommitParts {
        branch: commit.branch.clone(),
        reads,
        operations: commit.operations.clone(),
        preconditions: commit.preconditions.clone(),
        event_appends: commit.event_appends.clone(),
    };
    (ClientCommit::build(commit.local_seq, parts), omitted)
}
