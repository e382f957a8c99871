//! What one frame carried, kept with its true instances until the peer provably has it, so that a lost frame can
//! be taken back out of the server's belief (SRV-314, SRV-432, SRV-433). Made by `evaluate`, carried by
//! `outbound`, undone by `registry`.

use std::sync::Arc;

use memory_engine::query::Snapshot;
use memory_wire::{BranchName, InstanceId, LocalSeq, Seq, SessionId, SpaceId};
use smol_str::SmolStr;

/// One instance on one branch: what a session holds and what a frame entry names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct InstanceKey {
    pub(crate) branch: BranchName,
    pub(crate) instance: InstanceId,
}

impl InstanceKey {
    /// The key a snapshot is held under.
    pub(crate) fn of(snapshot: &Snapshot) -> InstanceKey {
        InstanceKey {
            branch: snapshot.branch.clone(),
            instance: snapshot.instance(),
        }
    }
}

/// What the server believes a session holds of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) seq: Seq,
    pub(crate) deleted: bool,
    /// False when the frame that carried it may have been lost: the entry then equals nothing, so a later pass
    /// delivers it again or retracts it.
    pub(crate) certain: bool,
}

impl Held {
    pub(crate) fn new(seq: Seq, deleted: bool) -> Held {
        Held {
            seq,
            deleted,
            certain: true,
        }
    }

    /// True when a snapshot with this position would tell the session nothing new (SRV-425).
    pub(crate) fn equals(self, seq: Seq, deleted: bool) -> bool {
        self.certain && self.seq == seq && self.deleted == deleted
    }
}

/// Which session a frame went to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) space: SpaceId,
    pub(crate) session: SessionId,
}

/// The content of one frame that may be lost: an effect, or the answer to `session.watch.add`. (A lost answer to
/// `session.watch.set` is asked for again, and is whole.)
#[derive(Debug, Clone)]
pub(crate) struct Delivered {
    pub(crate) session: SessionKey,
    /// The opening of the session the frame was built for; a record of an older one undoes nothing.
    pub(crate) incarnation: u64,
    pub(crate) from_seq: Seq,
    pub(crate) to_seq: Seq,
    pub(crate) upserts: Arc<[InstanceKey]>,
    pub(crate) removes: Arc<[InstanceKey]>,
    pub(crate) marker: Option<LocalSeq>,
    /// Plans it carried: view and generation.
    pub(crate) plans: Vec<(SmolStr, u64)>,
}

impl Delivered {
    /// True when the peer's word that it has applied everything through `seen` covers this frame. A frame that
    /// did not advance is not covered by a position the peer may have reached before it.
    pub(crate) fn is_confirmed_by(&self, seen: Seq) -> bool {
        self.to_seq < seen || (self.to_seq == seen && self.from_seq < self.to_seq)
    }

    /// True for a frame with nothing but a marker.
    pub(crate) fn is_bare_marker(&self) -> bool {
        self.upserts.is_empty() && self.removes.is_empty() && self.plans.is_empty()
    }
}

/// How much is known about a frame that is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It never left the process.
    Unsent,
    /// It was written, but the connection ended before the peer confirmed it. The answer to the next open repeats
    /// the session's marker, so a bare marker needs no second frame.
    Unconfirmed,
}
