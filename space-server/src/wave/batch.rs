//! The home batch: what survives of a wave, as the one derived commit that the store will verify again
//! (SS-730…SS-735).

use std::collections::BTreeMap;

use memory_engine::basis::{ActionInstance, BasisInstance, BasisRead};
use memory_engine::outbox::OutboxAppend;
use memory_wire::commit_meta::WriteAnnotation;
use memory_wire::message::{EventAppendDecl, Operation, Precondition};
use memory_wire::{EventId, InstanceId, Object, Scope, ScopeKey, Seq, SpaceId, Value};
use runner::transaction::RunKind;
use smol_str::SmolStr;

use super::contribution::{Contribution, ContributionIx, RunRecord, SpaceWrites, written_instance};
use super::resolve::{Resolution, introduced_events, with_entries_changed};

/// One derived commit in the making.
#[derive(Clone, Debug, Default)]
pub struct HomeBatch {
    /// The store head when the wave opened.
    pub basis_seq: Seq,
    /// Operations, contributions in seal order.
    pub operations: Vec<Operation>,
    /// Addressing and attribution per operation (SS-733).
    pub annotations: Vec<WriteAnnotation>,
    /// Preconditions with the contribution each came from.
    pub preconditions: Vec<(Precondition, ContributionIx)>,
    /// Events whose consequences this is, in first-appearance order (SS-731).
    pub consequence_of: Vec<EventId>,
    /// Declarations of the entries it introduces (SS-734).
    pub event_appends: Vec<EventAppendDecl>,
    /// The watermark it carries.
    pub derived_through: Option<Seq>,
    /// What each action instance's last run in the wave read (SS-735).
    pub basis: Vec<BasisInstance>,
    /// Appends to deliver once it has landed (SS-732).
    pub outbox: Vec<OutboxAppend>,
    /// Documents written over a newer head on purpose, with that head (SS-712).
    pub rebased_heads: Vec<(InstanceId, Seq)>,
}

impl HomeBatch {
    /// True when there is nothing to commit for: basis rows alone do not make a commit (SS-730).
    pub fn is_vacuous(&self) -> bool {
        self.operations.is_empty()
            && self.consequence_of.is_empty()
            && self.preconditions.is_empty()
            && self.outbox.is_empty()
    }
}

/// Builds the batch of the survivors.
pub(super) fn build(
    home: &SpaceId,
    basis_seq: Seq,
    derived_through: Option<Seq>,
    contributions: &[Contribution],
    resolution: &Resolution,
) -> HomeBatch {
    let survivors: Vec<(ContributionIx, &Contribution)> = contributions
        .iter()
        .enumerate()
        .filter(|(ix, _)| resolution.survives(*ix))
        .collect();
    // Entries whose own in-process copy ran in this wave land already marked; a surviving sibling does not mark.
    let handled_here: Vec<EventId> = survivors
        .iter()
        .filter(|(_, c)| c.run.lt1)
        .filter_map(|(_, c)| c.run.event_id.clone())
        .collect();
    let mut batch = HomeBatch {
        basis_seq,
        derived_through,
        ..HomeBatch::default()
    };
    for (ix, contribution) in &survivors {
        if let (RunKind::EventHandler, Some(event)) = (contribution.run.kind, &contribution.run.event_id)
            && !batch.consequence_of.contains(event)
        {
            batch.consequence_of.push(event.clone());
        }
        batch.outbox.extend(contribution.appends.iter().cloned());
        if let Some(writes) = contribution.writes_to(home) {
            for precondition in &writes.preconditions {
                batch.preconditions.push((precondition.clone(), *ix));
            }
            add_operations(
                &mut batch,
                *ix,
                &contribution.run,
                writes,
                resolution,
                &handled_here,
            );
        }
    }
    let written: Vec<InstanceId> = survivors
        .iter()
        .flat_map(|(_, c)| c.writes_to(home).map(|w| (c, w)))
        .flat_map(|(c, w)| super::resolve::written(w, &c.run.resolution))
        .collect();
    batch.rebased_heads = resolution
        .rebased
        .iter()
        .filter(|(instance, _)| written.contains(instance))
        .map(|(instance, head)| (instance.clone(), *head))
        .collect();
    batch.basis = basis_sets(&survivors);
    batch
}

fn add_operations(
    batch: &mut HomeBatch,
    ix: ContributionIx,
    run: &RunRecord,
    writes: &SpaceWrites,
    resolution: &Resolution,
    handled_here: &[EventId],
) {
    for operation in &writes.operations {
        let instance = written_instance(operation, &run.resolution).ok().flatten();
        if !resolution.keeps(ix, instance.as_ref()) {
            continue;
        }
        let introduced = introduced_events(operation);
        let operation = if introduced.iter().any(|event| handled_here.contains(event)) {
            with_entries_changed(operation, handled_here, &mark_consequenced)
        } else {
            operation.clone()
        };
        if let Some(instance) = &instance {
            batch
                .event_appends
                .extend(introduced.into_iter().map(|event_id| EventAppendDecl {
                    id: instance.id.clone(),
                    scope: Scope::Space,
                    event_id,
                }));
        }
        let scope_key = instance
            .map(|i| i.scope_key)
            .filter(|key| key.scope() > Scope::Space);
        let annotation = WriteAnnotation {
            op: batch.operations.len(),
            scope_key,
            acting_user: run.acting.user.clone(),
            acting_session: run.acting.session.clone(),
        };
        let sqlite = matches!(operation, Operation::Sqlite { .. });
        let says_something = annotation.scope_key.is_some()
            || annotation.acting_user.is_some()
            || annotation.acting_session.is_some();
        if says_something && !sqlite {
            batch.annotations.push(annotation);
        }
        batch.operations.push(operation);
    }
}

fn mark_consequenced(entry: &mut Value) {
    if let Value::Object(fields) = entry {
        let fields: &mut Object = fields;
        fields.insert("consequenced", true);
    }
}

/// SS-735: one set per action instance, the last run of the wave winning; stranded keys are cleared unless real
/// rows were recorded under them.
fn basis_sets(survivors: &[(ContributionIx, &Contribution)]) -> Vec<BasisInstance> {
    let mut recorded: BTreeMap<(SmolStr, ScopeKey), Vec<BasisRead>> = BTreeMap::new();
    let mut cleared: Vec<(SmolStr, ScopeKey)> = Vec::new();
    for (_, contribution) in survivors {
        let rows = basis_rows(contribution);
        let run = &contribution.run;
        // Runs that read nothing and were never filed leave the table alone, apart from clearing their own set.
        recorded.insert((SmolStr::new(&run.action_id), run.basis_key()), rows);
        cleared.extend(
            run.stranded_keys()
                .into_iter()
                .map(|key| (SmolStr::new(&run.action_id), key)),
        );
    }
    for instance in cleared {
        recorded.entry(instance).or_default();
    }
    recorded
        .into_iter()
        .map(|((action, action_scope_key), rows)| BasisInstance {
            instance: ActionInstance {
                action,
                action_scope_key,
            },
            rows,
        })
        .collect()
}

/// What one run read, one row an instance; a read of something this wave wrote carries the wave's own seq.
fn basis_rows(contribution: &Contribution) -> Vec<BasisRead> {
    let mut rows: BTreeMap<(SpaceId, InstanceId), Option<Seq>> = BTreeMap::new();
    for writes in &contribution.writes {
        for read in &writes.confirmed {
            rows.insert((writes.space.clone(), read.instance.clone()), Some(read.seq));
        }
        for read in &writes.pending {
            // A layer of this very wave: the row carries the wave's own seq, which the store knows.
            rows.insert((writes.space.clone(), read.instance.clone()), None);
        }
    }
    rows.into_iter()
        .map(|((entity_space, instance), seq)| BasisRead {
            entity_space,
            entity: instance.id,
            entity_scope_key: instance.scope_key,
            seq,
        })
        .collect()
}
