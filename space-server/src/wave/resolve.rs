//! Which contributions survive: per conflicted document a write is dropped, rebased, or takes its event back to
//! the stream, and whoever stood on a withdrawn write goes with it (SS-700…SS-715).

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::message::Operation;
use memory_wire::patch::{PatchAction, PatchOp};
use memory_wire::pointer::{DocPath, paths_overlap};
use memory_wire::{EventId, InstanceId, ScopeIdentity, Seq, SpaceId, Value, well_known};
use runner::transaction::RunKind;

use super::commit::WaveSink;
use super::contribution::{Contribution, ContributionIx, SpaceWrites, written_instance};

/// Why a contribution does not land.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Withdrawal {
    /// Dropped; something it stood on is gone, and it will be recomputed through what it read.
    Dependency,
    /// Dropped; an in-process event copy whose durable entry does not land (SS-715).
    Orphan,
    /// Its event goes back to the stream.
    Requeue,
}

/// The decisions about one wave, grown to a fixpoint; re-entered with what a rejection taught.
#[derive(Debug, Default)]
pub(super) struct Resolution {
    /// Contributions that do not land at all.
    pub(super) withdrawn: BTreeMap<ContributionIx, Withdrawal>,
    /// Home documents whose operations a surviving derivation loses.
    pub(super) superseded: BTreeMap<ContributionIx, BTreeSet<InstanceId>>,
    /// Documents written over a newer head on purpose, with the head that was seen (SS-712).
    pub(super) rebased: BTreeMap<InstanceId, Seq>,
    /// Rebased documents whose head moved again before the store saw them: decided anew.
    pub(super) moved: BTreeSet<InstanceId>,
}

impl Resolution {
    /// True when `ix` lands, possibly without some documents.
    pub(super) fn survives(&self, ix: ContributionIx) -> bool {
        !self.withdrawn.contains_key(&ix)
    }

    /// True when this operation of a surviving contribution lands in the home batch.
    pub(super) fn keeps(&self, ix: ContributionIx, instance: Option<&InstanceId>) -> bool {
        match (instance, self.superseded.get(&ix)) {
            (Some(instance), Some(lost)) => !lost.contains(instance),
            _ => true,
        }
    }

    /// Withdraws `ix`, if it is not withdrawn already. A requeue outranks a drop decided in the same round.
    fn withdraw(&mut self, ix: ContributionIx, why: Withdrawal) -> bool {
        match self.withdrawn.get_mut(&ix) {
            Some(_) => false,
            None => {
                self.withdrawn.insert(ix, why);
                true
            }
        }
    }

    /// Withdraws in the way a contribution of this kind goes when something under it is gone.
    pub(super) fn withdraw_by_kind(&mut self, ix: ContributionIx, contribution: &Contribution) -> bool {
        self.withdraw(ix, by_kind(contribution.run.kind))
    }

    /// Decides every conflicted document and everything that follows, to a fixpoint.
    pub(super) async fn decide<S: WaveSink>(
        &mut self,
        home: &SpaceId,
        basis: Seq,
        contributions: &[Contribution],
        failed_events: &[EventId],
        history: &mut S,
    ) -> Result<(), String> {
        for (ix, contribution) in contributions.iter().enumerate() {
            if contribution
                .run
                .event_id
                .as_ref()
                .is_some_and(|event| failed_events.contains(event))
            {
                self.withdraw_by_kind(ix, contribution);
            }
        }
        for (ix, contribution) in contributions.iter().enumerate() {
            if self.survives(ix) {
                self.decide_conflicts(home, basis, ix, contribution, history)
                    .await?;
            }
        }
        self.close(home, contributions);
        Ok(())
    }

    /// SS-710 for one contribution.
    async fn decide_conflicts<S: WaveSink>(
        &mut self,
        home: &SpaceId,
        basis: Seq,
        ix: ContributionIx,
        contribution: &Contribution,
        history: &mut S,
    ) -> Result<(), String> {
        let Some(writes) = contribution.writes_to(home) else {
            return Ok(());
        };
        for instance in written(writes, &contribution.run.resolution) {
            if !self.keeps(ix, Some(&instance)) {
                continue;
            }
            let head = history.head(&instance).await?;
            let pinned = self.rebased.get(&instance) == Some(&head) && !self.moved.contains(&instance);
            if head <= basis || (pinned && contribution.run.kind != RunKind::Derivation) {
                continue;
            }
            let since = history.write_paths_since(&instance, basis).await?;
            match contribution.run.kind {
                RunKind::Derivation => {
                    self.superseded.entry(ix).or_default().insert(instance);
                }
                RunKind::EventHandler | RunKind::Bookkeeping => {
                    if commutes(writes, &contribution.run.resolution, &instance, &since) {
                        self.moved.remove(&instance);
                        self.rebased.insert(instance, head);
                    } else {
                        self.withdraw_by_kind(ix, contribution);
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// SS-713 to a fixpoint.
    fn close(&mut self, home: &SpaceId, contributions: &[Contribution]) {
        loop {
            let mut changed = false;
            // Requeues first: a requeued handler emitter reaches its children as a parent, not as an orphan.
            for (ix, contribution) in contributions.iter().enumerate() {
                if !self.survives(ix) {
                    continue;
                }
                let requeued = |event: &Option<EventId>| {
                    event
                        .as_ref()
                        .is_some_and(|event| self.has_requeued(contributions, event))
                };
                if requeued(&contribution.run.parent_event_id)
                    || requeued(&contribution.run.event_id)
                    || self.read_withdrawn(home, contributions, contribution)
                {
                    changed |= self.withdraw_by_kind(ix, contribution);
                }
            }
            if changed {
                continue;
            }
            for (ix, contribution) in contributions.iter().enumerate() {
                if self.survives(ix) && self.is_orphan(home, contributions, ix, contribution) {
                    changed |= self.withdraw(ix, Withdrawal::Orphan);
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn has_requeued(&self, contributions: &[Contribution], event: &EventId) -> bool {
        self.withdrawn.iter().any(|(ix, why)| {
            *why == Withdrawal::Requeue && contributions[*ix].run.event_id.as_ref() == Some(event)
        })
    }

    /// SS-714. Layers resolve per space, because local seqs are counters of a space's replica.
    fn read_withdrawn(&self, home: &SpaceId, contributions: &[Contribution], reader: &Contribution) -> bool {
        let layered = reader.writes.iter().any(|writes| {
            writes.pending.iter().any(|read| {
                contributions.iter().enumerate().any(|(ix, other)| {
                    let Some(layer) = other.writes_to(&writes.space) else {
                        return false;
                    };
                    read.layers.contains(&layer.local_seq)
                        && (!self.survives(ix)
                            || (writes.space == *home && !self.keeps(ix, Some(&read.instance))))
                })
            })
        });
        layered
            || reader.read_only.iter().any(|(space, documents)| {
                contributions.iter().enumerate().any(|(ix, other)| {
                    other.writes_to(space).is_some_and(|layer| {
                        written(layer, &other.run.resolution).into_iter().any(|instance| {
                            documents.contains(&instance)
                                && (!self.survives(ix)
                                    || (*space == *home && !self.keeps(ix, Some(&instance))))
                        })
                    })
                })
            })
    }

    /// SS-715, and the same-event siblings of a refused orphan.
    fn is_orphan(
        &self,
        home: &SpaceId,
        contributions: &[Contribution],
        ix: ContributionIx,
        contribution: &Contribution,
    ) -> bool {
        let Some(event) = &contribution.run.event_id else {
            return false;
        };
        let sibling_refused = self.withdrawn.iter().any(|(other, why)| {
            *why == Withdrawal::Orphan && contributions[*other].run.event_id.as_ref() == Some(event)
        });
        if sibling_refused {
            return true;
        }
        contribution.run.lt1
            && !contributions
                .iter()
                .enumerate()
                .any(|(other, emitter)| other != ix && self.appends_event(home, other, emitter, event))
    }

    /// True when `emitter` survives with the sidecar write that introduces `event`.
    fn appends_event(
        &self,
        home: &SpaceId,
        ix: ContributionIx,
        emitter: &Contribution,
        event: &EventId,
    ) -> bool {
        let Some(writes) = emitter.writes_to(home) else {
            return false;
        };
        self.survives(ix)
            && writes.operations.iter().any(|operation| {
                let instance = written_instance(operation, &emitter.run.resolution)
                    .ok()
                    .flatten();
                self.keeps(ix, instance.as_ref())
                    && introduced_events(operation)
                        .iter()
                        .any(|introduced| introduced == event)
            })
    }
}

fn by_kind(kind: RunKind) -> Withdrawal {
    match kind {
        RunKind::EventHandler => Withdrawal::Requeue,
        RunKind::Derivation | RunKind::Bookkeeping => Withdrawal::Dependency,
    }
}

/// Distinct instances that `writes` writes, in first-appearance order. Scoped operations that nobody can
/// resolve are left to the store's refusal.
pub(super) fn written(writes: &SpaceWrites, identity: &ScopeIdentity) -> Vec<InstanceId> {
    let mut seen = Vec::new();
    for operation in &writes.operations {
        if let Ok(Some(instance)) = written_instance(operation, identity)
            && !seen.contains(&instance)
        {
            seen.push(instance);
        }
    }
    seen
}

/// SS-711: every operation on the document is a patch and none of its paths overlaps a path written since.
fn commutes(
    writes: &SpaceWrites,
    identity: &ScopeIdentity,
    instance: &InstanceId,
    since: &[DocPath],
) -> bool {
    let sidecar = well_known::is_stream_sidecar(&instance.id);
    writes.operations.iter().all(|operation| {
        if written_instance(operation, identity).ok().flatten().as_ref() != Some(instance) {
            return true;
        }
        let Operation::Patch { patches, .. } = operation else {
            return false;
        };
        patches.iter().all(|patch| {
            let own = patch.path();
            since.iter().all(|theirs| {
                !paths_overlap(own, theirs) || (sidecar && is_tail_append(theirs) && is_inside_entry(own))
            })
        })
    })
}

/// A concurrent write reported at exactly the entries list of a sidecar is an append at its tail.
fn is_tail_append(path: &DocPath) -> bool {
    matches!(path.as_slice(), [value, entries] if value == "value" && entries == "entries")
}

/// A path below one numbered entry.
fn is_inside_entry(path: &DocPath) -> bool {
    matches!(path.as_slice(), [value, entries, index, ..]
        if value == "value" && entries == "entries" && memory_wire::value::index_rank(index.as_bytes()).is_some())
}

/// Events whose entries (those without a `seq` yet) this operation introduces (SS-734).
pub(super) fn introduced_events(operation: &Operation) -> Vec<EventId> {
    introduced_entries(operation)
        .into_iter()
        .filter_map(unsequenced_event)
        .collect()
}

/// The event of an entry that no commit has numbered yet.
pub(super) fn unsequenced_event(entry: &Value) -> Option<EventId> {
    match entry.member("seq") {
        None => entry.member("eventId").and_then(Value::as_str).map(EventId::from),
        Some(_) => None,
    }
}

/// The stream entries that an operation on a sidecar carries.
fn introduced_entries(operation: &Operation) -> Vec<&Value> {
    fn elements(list: Option<&Value>) -> Vec<&Value> {
        list.and_then(Value::as_array)
            .map(|list| list.elements().map(|(_, v)| v).collect())
            .unwrap_or_default()
    }
    match operation {
        Operation::Set { id, value, .. } if well_known::is_stream_sidecar(id) => {
            elements(value.member("value").and_then(|v| v.member("entries")))
        }
        Operation::Patch { id, patches, .. } if well_known::is_stream_sidecar(id) => patches
            .iter()
            .filter(|patch| is_tail_append(patch.path()))
            .flat_map(|patch| match patch.action() {
                PatchAction::Append { values, .. } | PatchAction::AddUnique { values, .. } => {
                    values.iter().collect()
                }
                PatchAction::Add { value, .. } | PatchAction::Replace { value, .. } => elements(Some(value)),
                PatchAction::Remove { .. }
                | PatchAction::Move { .. }
                | PatchAction::Splice { .. }
                | PatchAction::RemoveByValue { .. }
                | PatchAction::Increment { .. } => Vec::new(),
            })
            .collect(),
        Operation::Set { .. }
        | Operation::Patch { .. }
        | Operation::Delete { .. }
        | Operation::Sqlite { .. } => Vec::new(),
    }
}

/// `operation` with `change` applied to every entry it introduces that names an event of `events`. Only the way
/// to those entries is cloned, never a payload (SS-734).
pub(super) fn with_entries_changed(
    operation: &Operation,
    events: &[EventId],
    change: &dyn Fn(&mut Value),
) -> Operation {
    fn over(list: &mut [Value], events: &[EventId], change: &dyn Fn(&mut Value)) {
        list.iter_mut()
            .filter(|entry| unsequenced_event(entry).is_some_and(|event| events.contains(&event)))
            .for_each(change);
    }
    fn over_value(list: &mut Value, events: &[EventId], change: &dyn Fn(&mut Value)) {
        if let Value::Array(array) = list
            && let Some(items) = array.as_dense_mut()
        {
            over(items, events, change);
        }
    }
    match operation {
        Operation::Set { id, scope, value } => {
            let mut document = value.clone();
            if let Value::Object(root) = &mut document
                && let Some(Value::Object(data)) = root.get_mut("value")
                && let Some(list) = data.get_mut("entries")
            {
                over_value(list, events, change);
            }
            Operation::Set {
                id: id.clone(),
                scope: *scope,
                value: document,
            }
        }
        Operation::Patch { id, scope, patches } => {
            let patches = patches
                .iter()
                .map(|patch| {
                    let mut action = patch.action().clone();
                    match &mut action {
                        PatchAction::Append { values, .. } | PatchAction::AddUnique { values, .. } => {
                            over(values, events, change);
                        }
                        PatchAction::Add { value, .. } | PatchAction::Replace { value, .. } => {
                            over_value(value, events, change);
                        }
                        PatchAction::Remove { .. }
                        | PatchAction::Move { .. }
                        | PatchAction::Splice { .. }
                        | PatchAction::RemoveByValue { .. }
                        | PatchAction::Increment { .. } => return patch.clone(),
                    }
                    PatchOp::from_action(action)
                })
                .collect();
            Operation::Patch {
                id: id.clone(),
                scope: *scope,
                patches,
            }
        }
        Operation::Delete { .. } | Operation::Sqlite { .. } => operation.clone(),
    }
}
