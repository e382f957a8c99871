//! What one sealed run brings to a wave: its operations and reads per space, and the record of who ran it for
//! whom (SS-606, SS-701).

use memory_engine::outbox::OutboxAppend;
use memory_wire::message::{Operation, Precondition};
use memory_wire::scope_key::ScopeKeyError;
use memory_wire::{EventId, InstanceId, LocalSeq, Scope, ScopeIdentity, ScopeKey, Seq, SpaceId};
use runner::transaction::{Acting, RunKind};

/// Position of a contribution in its wave, in seal order.
pub type ContributionIx = usize;

/// Who ran, as what, for whom. *Resolution* (which instance a scoped address means) and *attribution* (who is
/// recorded as having acted) are two identities (SS-606).
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// Durable action id.
    pub action_id: String,
    /// Kind of run.
    pub kind: RunKind,
    /// The event handled.
    pub event_id: Option<EventId>,
    /// The event whose handling sent that one.
    pub parent_event_id: Option<EventId>,
    /// The run handled an in-process copy of an event emitted in this wave (SS-820).
    pub lt1: bool,
    /// What scoped addresses resolve with.
    pub resolution: ScopeIdentity,
    /// Who is recorded as the actor; settled from the discovered scope for derivations.
    pub acting: Acting,
    /// Capability reference of its foreign writes.
    pub capability_ref: Option<String>,
    /// The instance key the run was stamped with.
    pub stamped_key: Option<ScopeKey>,
    /// The narrowest scope the run read.
    pub discovered: Scope,
}

impl RunRecord {
    /// The instance key basis rows are filed under: the discovered scope under the run's identity (SS-735). A
    /// run that narrowed without an identity files under what it was stamped with.
    pub fn basis_key(&self) -> ScopeKey {
        ScopeKey::resolve(self.discovered, &self.resolution)
            .ok()
            .or_else(|| self.stamped_key.clone())
            .unwrap_or_else(ScopeKey::space)
    }

    /// Keys under which earlier runs of this instance may have left rows: the stamped key and every broader one
    /// (SS-735).
    pub fn stranded_keys(&self) -> Vec<ScopeKey> {
        let filed = self.basis_key();
        let mut stranded: Vec<ScopeKey> = self.stamped_key.iter().cloned().collect();
        if filed.scope() > Scope::Space {
            stranded.push(ScopeKey::space());
        }
        if filed.scope() == Scope::Session {
            stranded.extend(ScopeKey::resolve(Scope::User, &self.resolution).ok());
        }
        stranded.retain(|key| *key != filed);
        stranded.dedup();
        stranded
    }
}

/// A read that stands on a committed revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmedRead {
    /// Instance read.
    pub instance: InstanceId,
    /// The revision's seq; 0 = never written.
    pub seq: Seq,
}

/// A read that stands on layers sealed earlier and not committed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRead {
    /// Instance read.
    pub instance: InstanceId,
    /// Layers, by the local seqs of that space's replica.
    pub layers: Vec<LocalSeq>,
}

/// What one run wrote and read in one space it wrote to.
#[derive(Clone, Debug)]
pub struct SpaceWrites {
    /// The space.
    pub space: SpaceId,
    /// The layer this contribution occupies in the space's replica.
    pub local_seq: LocalSeq,
    /// Operations in order.
    pub operations: Vec<Operation>,
    /// Confirmed reads, one per document.
    pub confirmed: Vec<ConfirmedRead>,
    /// Pending reads, one per document.
    pub pending: Vec<PendingRead>,
    /// Preconditions of the run.
    pub preconditions: Vec<Precondition>,
}

/// One sealed run.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// Who ran.
    pub run: RunRecord,
    /// Per written space, in commit order.
    pub writes: Vec<SpaceWrites>,
    /// Spaces it only read, with the documents: there is no layer information for them (SS-714).
    pub read_only: Vec<(SpaceId, Vec<InstanceId>)>,
    /// Appends into other spaces' streams, delivered after the wave (SS-732).
    pub appends: Vec<OutboxAppend>,
}

impl Contribution {
    /// Its part for `space`.
    pub fn writes_to(&self, space: &SpaceId) -> Option<&SpaceWrites> {
        self.writes.iter().find(|w| w.space == *space)
    }

    /// True when it has nothing that could land anywhere.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.appends.is_empty()
    }
}

/// The instance an operation writes, under the run's resolution identity; `None` for SQLite operations, which
/// write no document.
pub fn written_instance(
    operation: &Operation,
    identity: &ScopeIdentity,
) -> Result<Option<InstanceId>, ScopeKeyError> {
    let (id, scope) = match operation {
        Operation::Set { id, scope, .. }
        | Operation::Patch { id, scope, .. }
        | Operation::Delete { id, scope } => (id, *scope),
        Operation::Sqlite { .. } => return Ok(None),
    };
    Ok(Some(InstanceId::new(
        id.clone(),
        ScopeKey::resolve(scope, identity)?,
    )))
}
