//! Verdicts: accept, park, confirm, reject, cascade (RUN-32…37, RUN-46).

use memory_wire::commit_meta::CommitClass;
use memory_wire::message::AppliedCommit;
use memory_wire::{LocalSeq, Seq, Value, WireError};

use super::record::Confirmed;
use super::{ACKS_KEPT, Core, InFlight, NotificationKind, Replica, Route, Sending, Snapshot, Stage, Touched};
use crate::error::{CommitError, CommitErrorName};
use crate::promise::Promise;
use crate::transaction::SealedVerdict;

/// How long a rejection waits for the marker that repairs its reads (RUN-35).
const REPAIR_BACKSTOP_MS: i64 = 30_000;

/// RUN-39.
pub(super) fn wire_error(error: &WireError) -> CommitError {
    let mut normalised = CommitError::normalised(error.name.as_str(), error.message.clone());
    normalised.precondition = error.precondition.map(|p| p.as_str().to_owned());
    if normalised.name == CommitErrorName::PreconditionFailed && normalised.precondition.is_none() {
        // Permanent only when it says what failed (WIRE-766).
        normalised.name = CommitErrorName::Transaction;
    }
    normalised.retry_after_seq = error.retry_after_seq.map(Seq);
    normalised.retriable = error.retriable;
    normalised
}

impl Replica {
    /// The server answered a pushed commit.
    pub(super) fn verdict(&self, local_seq: LocalSeq, result: Result<Value, WireError>) {
        let error = match result {
            Ok(body) => match AppliedCommit::from_value(&body) {
                Ok(applied) => return self.accepted(local_seq, applied.seq),
                Err(error) => CommitError::new(CommitErrorName::InvalidMessage, error.to_string()),
            },
            Err(error) => wire_error(&error),
        };
        self.rejected_by_server(local_seq, error);
    }

    fn accepted(&self, local_seq: LocalSeq, seq: Seq) {
        let source = {
            let mut core = self.0.core.borrow_mut();
            core.remember_ack(local_seq, seq);
            match core.in_flight.get(&local_seq) {
                None => None,
                Some(entry) if entry.stage == Stage::Dead => {
                    tracing::warn!(space = %self.0.space, local_seq = local_seq.0, seq = seq.0, "accept after local rejection; not promoted");
                    return;
                }
                Some(entry) => Some((entry.source.clone(), core.must_park(local_seq, entry))),
            }
        };
        self.observe_ack(local_seq, seq);
        let Some((source, park)) = source else { return };
        if let Some(source) = source {
            source.fate_sealed(&Ok(()));
        }
        if park {
            if let Some(entry) = self.0.core.borrow_mut().in_flight.get_mut(&local_seq) {
                entry.stage = Stage::Parked(seq);
            }
        } else {
            self.confirm(&[(local_seq, seq)], CommitClass::Authored);
        }
    }

    /// RUN-34, for a batch. Documents whose visible value moved are told as `integrate`: a layer went away over
    /// novelty it had been hiding.
    pub(super) fn confirm(&self, batch: &[(LocalSeq, Seq)], class: CommitClass) {
        let (changes, finished, flipped) = {
            let mut core = self.0.core.borrow_mut();
            let touched = core.touched_by(batch.iter().map(|(n, _)| n));
            let before = self.snapshot(&core, touched);
            let mut finished = Vec::new();
            let mut flipped = false;
            for (local_seq, seq) in batch {
                flipped |= core.promote(*local_seq, *seq, class);
                finished.extend(core.in_flight.remove(local_seq));
                core.speculative.remove(local_seq);
            }
            (self.changes_since(&core, &before), finished, flipped)
        };
        self.notify(NotificationKind::Integrate, changes, None, None);
        finished.into_iter().for_each(|entry| entry.finish(Ok(())));
        self.shadow_cleared(flipped);
    }

    fn rejected_by_server(&self, local_seq: LocalSeq, mut error: CommitError) {
        let gate = {
            let mut core = self.0.core.borrow_mut();
            let Some(entry) = core.in_flight.get(&local_seq) else {
                return;
            };
            let names_speculation = entry.depends_on.iter().any(|n| core.speculative.contains(n));
            if error.name != CommitErrorName::Conflict {
                None
            } else if names_speculation {
                // RUN-36: nobody else will ever resolve that layer.
                error.name = CommitErrorName::SpeculativeBasis;
                None
            } else if core.markers && core.caught_up < local_seq {
                Some(core.gates.entry(local_seq).or_default().clone())
            } else {
                Some(Promise::ready(()))
            }
        };
        error.gate = gate;
        self.reject(local_seq, error);
    }

    /// RUN-35: the one rejection tail.
    pub(super) fn reject(&self, local_seq: LocalSeq, error: CommitError) {
        let source = {
            let mut core = self.0.core.borrow_mut();
            let Some(entry) = core
                .in_flight
                .get_mut(&local_seq)
                .filter(|e| e.stage != Stage::Dead)
            else {
                return;
            };
            entry.stage = Stage::Dead;
            let source = entry.source.clone();
            core.dead.entry(local_seq).or_default();
            source
        };
        let outcome = Err(error.clone());
        if let Some(source) = &source {
            source.fate_sealed(&outcome);
        }
        let Some(gate) = error.gate.clone().filter(|g| !g.is_settled()) else {
            return self.drop_rejected(local_seq, error);
        };
        let replica = self.clone();
        let dropped = error.clone();
        gate.then(move |()| replica.drop_rejected(local_seq, dropped));
        if let Some(storage) = self.storage() {
            // Dropping twice is dropping once: whoever comes second finds nothing.
            let replica = self.clone();
            storage.after_ms(REPAIR_BACKSTOP_MS, move || {
                replica.drop_rejected(local_seq, error)
            });
        }
    }

    fn drop_rejected(&self, local_seq: LocalSeq, error: CommitError) {
        let Some((entry, before, flipped)) = self.take_layers(local_seq) else {
            return;
        };
        self.cascade(local_seq);
        let changes = self.changes_since(&self.0.core.borrow(), &before);
        self.notify(
            NotificationKind::Revert,
            changes,
            entry.source.clone(),
            Some(error.message.clone()),
        );
        let gates = {
            let mut core = self.0.core.borrow_mut();
            [core.dead.remove(&local_seq), core.gates.remove(&local_seq)]
        };
        entry.finish(Err(error));
        for gate in gates.into_iter().flatten() {
            gate.settle(());
        }
        self.shadow_cleared(flipped);
    }

    /// Takes a commit and its layers out; answers it with the visible documents from before.
    fn take_layers(&self, local_seq: LocalSeq) -> Option<(InFlight, Snapshot, bool)> {
        let mut core = self.0.core.borrow_mut();
        let entry = core.in_flight.remove(&local_seq)?;
        core.speculative.remove(&local_seq);
        let before = self.snapshot(&core, entry.touched.iter().cloned());
        let mut flipped = false;
        for touched in &entry.touched {
            flipped |= core.drop_layer(&touched.key, local_seq);
        }
        Some((entry, before, flipped))
    }

    /// RUN-37: whatever was built on the dropped layer goes with it; a late server verdict finds nothing.
    fn cascade(&self, dropped: LocalSeq) {
        let dependents: Vec<LocalSeq> = {
            let core = self.0.core.borrow();
            let built_on = |e: &InFlight| e.depends_on.contains(&dropped) && e.stage != Stage::Dead;
            core.in_flight
                .iter()
                .filter(|(_, e)| built_on(e))
                .map(|(n, _)| *n)
                .collect()
        };
        for dependent in dependents {
            let text = format!("pending dependency dropped locally: {dropped}");
            self.reject(dependent, CommitError::local_conflict(text));
        }
    }

    /// RUN-46: the verdict of a sealed commit.
    pub(super) fn sealed_verdict(&self, local_seq: LocalSeq, verdict: &Result<SealedVerdict, String>) {
        match verdict {
            Ok(SealedVerdict::Committed { seq }) => {
                let source = {
                    let mut core = self.0.core.borrow_mut();
                    let Some(entry) = core
                        .in_flight
                        .get(&local_seq)
                        .filter(|e| e.stage == Stage::Waiting)
                    else {
                        return;
                    };
                    let source = entry.source.clone();
                    core.remember_ack(local_seq, *seq);
                    source
                };
                self.observe_ack(local_seq, *seq);
                if let Some(source) = source {
                    source.fate_sealed(&Ok(()));
                }
                // The committer applied it in the co-hosted store: no marker will ever come for it.
                self.confirm(&[(local_seq, *seq)], CommitClass::Derived);
            }
            Ok(SealedVerdict::Withdrawn { superseded: true, .. }) => self.supersede(local_seq),
            Ok(SealedVerdict::Withdrawn {
                message,
                superseded: false,
            }) => {
                self.reject(local_seq, CommitError::local_conflict(message.clone()));
            }
            // A verdict that fails is a plain withdrawal, so that layers can never strand.
            Err(message) => self.reject(local_seq, CommitError::local_conflict(message.clone())),
        }
    }

    /// Success-shaped withdrawal: the layer's effect is covered elsewhere.
    fn supersede(&self, local_seq: LocalSeq) {
        let Some((entry, before, flipped)) = self.take_layers(local_seq) else {
            return;
        };
        let changes = self.changes_since(&self.0.core.borrow(), &before);
        self.notify(NotificationKind::Integrate, changes, entry.source.clone(), None);
        entry.finish(Ok(()));
        self.shadow_cleared(flipped);
    }

    /// RUN-33, RUN-65: the session is gone. Parked accepts are applied: no marker will come. Commits whose fate
    /// nobody can tell any more reject; with `unsent_too` those that were never sent do as well.
    pub(super) fn session_lost(&self, error: &CommitError, unsent_too: bool) {
        let (parked, lost) = {
            let mut core = self.0.core.borrow_mut();
            // Markers start over with the next session.
            core.caught_up = LocalSeq(0);
            let mut parked = Vec::new();
            let mut lost = Vec::new();
            for (local_seq, entry) in &core.in_flight {
                match (entry.stage, &entry.route) {
                    (Stage::Parked(seq), _) => parked.push((*local_seq, seq)),
                    (Stage::Waiting, Route::Pushed { sending, .. })
                        if *sending != Sending::Queued || unsent_too =>
                    {
                        lost.push(*local_seq)
                    }
                    (Stage::Waiting | Stage::Dead, _) => {}
                }
            }
            (parked, lost)
        };
        if !parked.is_empty() {
            self.confirm(&parked, CommitClass::Authored);
        }
        let gates = std::mem::take(&mut self.0.core.borrow_mut().gates);
        for gate in gates.into_values() {
            gate.settle(());
        }
        for local_seq in lost {
            self.reject(local_seq, error.clone());
        }
    }
}

impl Core {
    fn remember_ack(&mut self, local_seq: LocalSeq, seq: Seq) {
        self.acked.insert(local_seq, seq);
        while self.acked.len() > ACKS_KEPT {
            self.acked.pop_first();
        }
    }

    /// RUN-32.
    fn must_park(&self, local_seq: LocalSeq, entry: &InFlight) -> bool {
        self.markers && self.watches.is_consuming() && !entry.touched.is_empty() && self.caught_up < local_seq
    }

    pub(super) fn touched_by<'a>(&self, batch: impl Iterator<Item = &'a LocalSeq>) -> Vec<Touched> {
        let mut touched: Vec<Touched> = Vec::new();
        for entry in batch.filter_map(|n| self.in_flight.get(n)) {
            for t in &entry.touched {
                if !touched.iter().any(|seen| seen.key == t.key) {
                    touched.push(t.clone());
                }
            }
        }
        touched
    }

    /// RUN-34: the layer becomes confirmed state; answers whether a shadow cleared.
    pub(super) fn promote(&mut self, local_seq: LocalSeq, seq: Seq, class: CommitClass) -> bool {
        let keys: Vec<_> = match self.in_flight.get(&local_seq) {
            Some(entry) => entry.touched.iter().map(|t| t.key.clone()).collect(),
            None => return false,
        };
        let mut flipped = false;
        for key in keys {
            let Some(record) = self.records.get_mut(&key) else {
                continue;
            };
            let at = record.layers().iter().position(|l| l.local_seq == local_seq);
            let Some(at) = at else {
                tracing::warn!(id = %key.id, local_seq = local_seq.0, "no layer to confirm");
                continue;
            };
            record.known = true;
            if record.confirmed().seq < seq {
                let document = if at == 0 {
                    record.through(0, &key)
                } else {
                    let layer = &record.layers()[at];
                    layer
                        .op
                        .fold(record.confirmed().document.as_ref(), local_seq, &key)
                };
                record.remove(local_seq);
                record.set_confirmed(Confirmed {
                    seq,
                    document,
                    cover_class: Some(class),
                });
            } else {
                record.remove(local_seq);
            }
            flipped |= record.clear_shadow(Some(seq));
        }
        flipped
    }

    pub(super) fn drop_layer(&mut self, key: &super::DocKey, local_seq: LocalSeq) -> bool {
        match self.records.get_mut(key) {
            Some(record) => record.remove(local_seq).is_some() && record.clear_shadow(None),
            None => false,
        }
    }
}
