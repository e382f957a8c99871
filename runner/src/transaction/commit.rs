//! The end of a transaction: validation, handing over, callbacks (RUN-84…86, RUN-89, RUN-95).

use std::rc::Rc;

use memory_wire::SpaceId;
use memory_wire::message::Precondition;

use super::build;
use super::{NativeCommit, PostCommitEffect, RunTx, SealSink, TxCallback, TxStatus};
use crate::error::{CommitError, CommitErrorName, RunnerError};
use crate::promise::Promise;

/// What waits for a transaction's fate; each runs exactly once, verdict first (RUN-95).
#[derive(Default)]
pub(super) struct Callbacks {
    verdict: Vec<TxCallback>,
    commit: Vec<TxCallback>,
    effects: Vec<PostCommitEffect>,
    fate: Option<Result<(), CommitError>>,
    settled: Option<Result<(), CommitError>>,
    /// Sealed layers whose settlement is outstanding.
    open_seals: usize,
    /// The destination accepted the seal.
    seal_accepted: bool,
}

impl RunTx {
    /// Runs `f` when the fate is sealed: accept verdict or rejection receipt (now, if it already is).
    pub fn on_verdict(&self, f: impl FnOnce(&RunTx, &Result<(), CommitError>) + 'static) {
        let fate = self.0.callbacks.borrow().fate.clone();
        match fate {
            Some(fate) => f(self, &fate),
            None => self.0.callbacks.borrow_mut().verdict.push(Box::new(f)),
        }
    }

    /// Runs `f` when the commit is settled: after coverage on accept, after read repair on rejection, on abort.
    pub fn on_commit(&self, f: impl FnOnce(&RunTx, &Result<(), CommitError>) + 'static) {
        let settled = self.0.callbacks.borrow().settled.clone();
        match settled {
            Some(outcome) => f(self, &outcome),
            None => self.0.callbacks.borrow_mut().commit.push(Box::new(f)),
        }
    }

    /// Queues an effect for after the verdict, success only; a seal destination may take it over (RUN-607).
    pub fn add_effect(&self, effect: PostCommitEffect) {
        self.0.callbacks.borrow_mut().effects.push(effect);
    }

    /// Effects queued and not yet run or taken.
    pub fn pending_effects(&self) -> Vec<PostCommitEffect> {
        self.0.callbacks.borrow().effects.clone()
    }

    /// The settled outcome, once there is one.
    pub fn outcome(&self) -> Option<Result<(), CommitError>> {
        self.0.callbacks.borrow().settled.clone()
    }

    /// Ends the transaction: seals it into its destination if that takes it, else commits it to the store
    /// (RUN-600). The promise settles with the commit, or with the destination's acceptance.
    pub fn commit(&self) -> Promise<Result<(), CommitError>> {
        if !self.is_open() {
            let state = self.status().name();
            return Promise::ready(Err(CommitError::aborted(format!(
                "{} is already {state}",
                self.id()
            ))));
        }
        if self.is_read_only() {
            self.0.status.set(TxStatus::Committed);
            self.finish(Ok(()));
            return Promise::ready(Ok(()));
        }
        match self.destination().filter(|d| d.accepts(self)) {
            Some(destination) => {
                self.0.status.set(TxStatus::Sealed);
                let sealed = destination.seal(self);
                let tx = self.clone();
                sealed.then(move |accepted| tx.seal_answered(accepted.clone()));
                sealed
            }
            None => self.commit_to_store(),
        }
    }

    /// Gives the transaction up; callbacks run now with `StorageTransactionAborted`.
    pub fn abort(&self, reason: impl Into<String>) {
        self.abort_with(CommitError::aborted(reason));
    }

    /// Gives the transaction up with an error of the caller's choice (a dropped event presents its reason).
    pub fn abort_with(&self, error: CommitError) {
        if self.is_open() {
            self.0.status.set(TxStatus::Aborted);
            self.finish(Err(error));
        }
    }

    // --- to the store ------------------------------------------------------------------------------------------

    fn commit_to_store(&self) -> Promise<Result<(), CommitError>> {
        self.0.status.set(TxStatus::Committed);
        if let Err(stale) = self.validate() {
            self.finish(Err(stale.clone()));
            return Promise::ready(Err(stale));
        }
        let spaces = self.written_spaces();
        let settled = Promise::new();
        // In the durability barrier before `commit` returns (RUN-64).
        self.0.storage.track_commit(settled.clone());
        let tx = self.clone();
        settled.then(move |outcome| tx.finish(outcome.clone()));
        self.commit_from(Rc::new(spaces), 0, settled.clone());
        settled
    }

    /// RUN-85: one commit per space, in order, the next only after the one before is settled.
    fn commit_from(&self, spaces: Rc<Vec<SpaceId>>, at: usize, settled: Promise<Result<(), CommitError>>) {
        let Some(space) = spaces.get(at) else {
            settled.settle(Ok(()));
            return;
        };
        let native = self.native_commit(space);
        let committed = self
            .0
            .storage
            .replica(space)
            .commit_native(native, Some(self.clone()));
        let (tx, many) = (self.clone(), spaces.len() > 1);
        committed.then(move |outcome| match outcome {
            Ok(()) if at + 1 < spaces.len() => tx.commit_from(spaces, at + 1, settled),
            Err(error) if many && at > 0 => {
                // Earlier spaces stay committed; the caller cannot know which.
                let text = format!(
                    "indeterminate: space {} of {} failed: {}",
                    at + 1,
                    spaces.len(),
                    error.message
                );
                settled.settle(Err(CommitError {
                    message: text,
                    ..error.clone()
                }));
            }
            outcome => {
                settled.settle(outcome.clone());
            }
        });
    }

    /// RUN-86.
    fn validate(&self) -> Result<(), CommitError> {
        let identity = self.scope_identity();
        let work = self.0.work.borrow();
        for (space, part) in &work.spaces {
            if part.docs.is_empty() {
                continue;
            }
            if !part.replica.is_current() {
                let text = format!("replica of {space} was replaced");
                return Err(CommitError::new(CommitErrorName::Inconsistent, text));
            }
            if let Some((scope, id)) = part.first_stale(identity.as_ref()) {
                let text = format!("{id} ({}) changed since it was read", scope.as_str());
                let error = CommitError::new(CommitErrorName::Inconsistent, text);
                return Err(CommitError {
                    entity: Some(id.clone()),
                    gate: Some(Promise::ready(())),
                    ..error
                });
            }
        }
        Ok(())
    }

    /// What this transaction writes to `space` (RUN-87…90).
    pub fn native_commit(&self, space: &SpaceId) -> NativeCommit {
        let preconditions = self.0.preconditions.borrow();
        let mine = preconditions
            .iter()
            .filter(|(s, _)| s == space)
            .map(|(_, p): &(_, Precondition)| p.clone());
        build::native_commit(&self.0.work.borrow(), space, self.is_authoritative(), mine)
    }

    // --- to a destination --------------------------------------------------------------------------------------

    /// RUN-608: hands over, per written space in commit order, the native commit, then the read set of every
    /// space that was only read. Called by destinations from `seal`.
    pub fn seal_into(&self, sink: &mut dyn SealSink) -> Result<(), RunnerError> {
        if self.status() != TxStatus::Sealed {
            let tx = self.id().to_string();
            return Err(RunnerError::TransactionClosed {
                tx,
                state: self.status().name(),
                action: "seal_into",
            });
        }
        self.validate()?;
        let written = self.written_spaces();
        for space in &written {
            sink.written(space, self.native_commit(space));
        }
        let work = self.0.work.borrow();
        for space in work.spaces.keys().filter(|s| !written.contains(s)) {
            sink.read_only(space, build::reads_of(&work, space));
        }
        Ok(())
    }

    /// True when this transaction changes something anywhere (a write that ended where it began does not count).
    pub fn has_changes(&self) -> bool {
        self.written_spaces()
            .iter()
            .any(|space| !self.native_commit(space).is_empty())
    }

    /// A layer of this transaction was sealed into a replica.
    pub(crate) fn sealed_layer_opened(&self) {
        self.0.callbacks.borrow_mut().open_seals += 1;
    }

    /// A sealed layer is confirmed or gone.
    pub(crate) fn sealed_layer_settled(&self, outcome: Result<(), CommitError>) {
        let last = {
            let mut callbacks = self.0.callbacks.borrow_mut();
            callbacks.open_seals = callbacks.open_seals.saturating_sub(1);
            callbacks.open_seals == 0 && callbacks.seal_accepted
        };
        if last || outcome.is_err() {
            self.finish(outcome);
        }
    }

    fn seal_answered(&self, accepted: Result<(), CommitError>) {
        match accepted {
            Err(refused) => self.finish(Err(refused)),
            Ok(()) => {
                let done = {
                    let mut callbacks = self.0.callbacks.borrow_mut();
                    callbacks.seal_accepted = true;
                    let effects = callbacks.effects.clone();
                    drop(callbacks);
                    let taken = !effects.is_empty()
                        && self
                            .destination()
                            .is_some_and(|d| d.defer_sealed_effects(self, &effects));
                    let mut callbacks = self.0.callbacks.borrow_mut();
                    if taken {
                        callbacks.effects.clear();
                    }
                    callbacks.open_seals == 0
                };
                if done {
                    self.finish(Ok(()));
                }
            }
        }
    }

    // --- callbacks ---------------------------------------------------------------------------------------------

    /// The verdict is in: runs the verdict callbacks and, on success, the effects that nobody took over.
    pub(crate) fn fate_sealed(&self, outcome: &Result<(), CommitError>) {
        let (callbacks, effects) = {
            let mut state = self.0.callbacks.borrow_mut();
            if state.fate.is_some() {
                return;
            }
            state.fate = Some(outcome.clone());
            let effects = std::mem::take(&mut state.effects);
            (std::mem::take(&mut state.verdict), effects)
        };
        for callback in callbacks {
            self.guarded(callback, outcome);
        }
        if outcome.is_ok() {
            for effect in effects {
                (effect.enact)();
            }
        }
    }

    fn finish(&self, outcome: Result<(), CommitError>) {
        self.fate_sealed(&outcome);
        let callbacks = {
            let mut state = self.0.callbacks.borrow_mut();
            if state.settled.is_some() {
                return;
            }
            state.settled = Some(outcome.clone());
            std::mem::take(&mut state.commit)
        };
        for callback in callbacks {
            self.guarded(callback, &outcome);
        }
    }

    /// One failing callback does not stop the others.
    fn guarded(&self, callback: TxCallback, outcome: &Result<(), CommitError>) {
        let run = std::panic::AssertUnwindSafe(|| callback(self, outcome));
        if std::panic::catch_unwind(run).is_err() {
            tracing::error!(tx = %self.id(), "transaction callback panicked");
        }
    }
}
