//! Writes into other spaces: one authored, delegated batch per space and carriage, sent before the home commit
//! (SS-720…SS-722).

use memory_wire::commit_meta::Delegated;
use memory_wire::message::Operation;
use memory_wire::scope_key::can_resolve_scope_key;
use memory_wire::{InstanceId, ScopeIdentity, Seq, SpaceId};
use runner::transaction::Acting;

use super::contribution::{Contribution, ContributionIx, SpaceWrites};
use super::resolve::{Resolution, written};

/// What one foreign space gets from one actor.
#[derive(Clone, Debug)]
pub struct ForeignBatch {
    /// Where it goes.
    pub space: SpaceId,
    /// Whose it is.
    pub acting: Acting,
    /// By what grant.
    pub capability_ref: String,
    /// Identity its scoped operations resolve with.
    pub identity: ScopeIdentity,
    /// Operations, contributions in seal order.
    pub operations: Vec<Operation>,
    /// Contributions it carries.
    pub contributions: Vec<ContributionIx>,
    /// Instances it writes, each once.
    pub writes: Vec<InstanceId>,
}

impl ForeignBatch {
    /// SS-722: a foreign store that is fresh takes its access list first; SQLite operations and scoped operations
    /// without an actor do not travel.
    pub fn check_fresh_store(&self, server_seq: Seq, has_access_list: bool) -> Result<(), String> {
        if server_seq == Seq(0) && !has_access_list {
            return Err(format!(
                "{} is a fresh store: its first commit must be its access list",
                self.space
            ));
        }
        self.check_content()
    }

    /// The part of SS-722 that does not depend on the store.
    fn check_content(&self) -> Result<(), String> {
        for operation in &self.operations {
            match operation.target() {
                None => return Err("SQLite operations do not travel to another space".into()),
                Some((id, scope)) if !can_resolve_scope_key(scope, &self.identity) => {
                    return Err(format!(
                        "a {} write to {id} carries no actor that it could key by",
                        scope.as_str()
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The carriage that its admission records.
    pub fn delegated(&self) -> Delegated {
        Delegated {
            acting_principal: self.acting.user.clone(),
            acting_session: self.acting.session.clone(),
            capability_ref: self.capability_ref.clone(),
            sessionless_space_scope: false,
        }
    }
}

/// Groups the survivors' foreign writes, in first-appearance order.
pub(super) fn group(
    home: &SpaceId,
    contributions: &[Contribution],
    resolution: &Resolution,
) -> Vec<ForeignBatch> {
    let mut batches: Vec<ForeignBatch> = Vec::new();
    for (ix, contribution) in contributions
        .iter()
        .enumerate()
        .filter(|(ix, _)| resolution.survives(*ix))
    {
        for writes in contribution.writes.iter().filter(|w| w.space != *home) {
            add(&mut batches, ix, contribution, writes);
        }
    }
    batches
}

fn add(
    batches: &mut Vec<ForeignBatch>,
    ix: ContributionIx,
    contribution: &Contribution,
    writes: &SpaceWrites,
) {
    let run = &contribution.run;
    let capability_ref = run.capability_ref.clone().unwrap_or_default();
    let at = batches
        .iter()
        .position(|b| b.space == writes.space && b.acting == run.acting && b.capability_ref == capability_ref)
        .unwrap_or_else(|| {
            batches.push(ForeignBatch {
                space: writes.space.clone(),
                acting: run.acting.clone(),
                capability_ref,
                // Scoped rows of a foreign space key from the carried identity (SS-722).
                identity: runner::seal::identity_of(&run.acting),
                operations: Vec::new(),
                contributions: Vec::new(),
                writes: Vec::new(),
            });
            batches.len() - 1
        });
    let batch = &mut batches[at];
    batch.operations.extend(writes.operations.iter().cloned());
    if !batch.contributions.contains(&ix) {
        batch.contributions.push(ix);
    }
    for instance in written(writes, &batch.identity) {
        if !batch.writes.contains(&instance) {
            batch.writes.push(instance);
        }
    }
}
