//! What a query answers for one instance (ENG-1001).

use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{BranchName, EntityId, Seq};
use memory_wire::scope_key::{InstanceId, ScopeKey};
use memory_wire::value::Value;

use crate::error::EngineError;
use crate::reader::Reader;

/// The state of one instance as a query found it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The query's branch, also for a row inherited from a parent.
    pub branch: BranchName,
    /// The entity.
    pub id: EntityId,
    /// Its instance.
    pub scope_key: ScopeKey,
    /// Seq of the revision; 0 when the instance was never written.
    pub seq: Seq,
    /// The whole root; `None` when never written or deleted.
    pub document: Option<Value>,
    /// Class of the commit at `seq`, where known. Sent with the serving flag on only.
    pub cover_class: Option<CommitClass>,
}

impl Snapshot {
    pub(super) fn of(
        reader: &Reader,
        branch: &BranchName,
        instance: &InstanceId,
        found: &Loaded,
    ) -> Result<Snapshot, EngineError> {
        let cover_class = match found.seq {
            Seq(0) => None,
            seq => reader.commit_class_of_seq(seq)?,
        };
        Ok(Snapshot {
            branch: branch.clone(),
            id: instance.id.clone(),
            scope_key: instance.scope_key.clone(),
            seq: found.seq,
            document: found.document.clone(),
            cover_class,
        })
    }

    /// The instance the snapshot is of.
    pub fn instance(&self) -> InstanceId {
        InstanceId {
            id: self.id.clone(),
            scope_key: self.scope_key.clone(),
        }
    }
}

/// An instance as an evaluation loaded it.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    pub(super) seq: Seq,
    pub(super) document: Option<Value>,
}
