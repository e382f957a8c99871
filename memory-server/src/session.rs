//! One session of a space: who it is, what it has been told and what it is owed (SRV-308…310, §3.4). Owned by the
//! space's [`crate::registry`]; the evaluated graphs live apart in [`SessionView`], so that the record can be read
//! while a pass evaluates.

use std::collections::BTreeMap;
use std::sync::Arc;

use memory_engine::sync::Mutex;
use memory_wire::ids::SessionToken;
use memory_wire::message::{EffectAddress, ReadCeiling};
use memory_wire::{BranchName, Did, InstanceId, ScopeIdentity, Seq, SessionId};
use rustc_hash::{FxHashMap, FxHashSet};
use smol_str::SmolStr;

use crate::connection::Connection;
use crate::delivery::{Held, InstanceKey};
use crate::markers::Markers;
use crate::views::Views;
use crate::watches::WatchSet;
use memory_engine::query::TrackedGraph;

/// Where a session is reachable (SRV-311…313).
#[derive(Debug, Clone)]
pub(crate) enum Attachment {
    /// Open on a connection; `order` is its place among that connection's opens.
    Attached { connection: Arc<Connection>, order: u64 },
    /// Its connection is gone; the record dies when the monotonic clock reaches `expires_at`.
    Detached { expires_at: u64 },
}

/// Dirty instances a slow consumer has been spared so far (SRV-705).
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Deferred(pub(crate) FxHashSet<InstanceId>);

/// The record.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// Whom its effect frames name.
    pub(crate) address: EffectAddress,
    pub(crate) token: SessionToken,
    pub(crate) principal: Option<Did>,
    /// Whose READ answers for this session (SRV-319); never inherited by a resume.
    pub(crate) acting_principal: Option<Did>,
    /// Recorded, not enforced here (SRV-322); never inherited by a resume.
    pub(crate) read_ceiling: Option<ReadCeiling>,
    /// Highest position the client acknowledged.
    pub(crate) seen_seq: Seq,
    /// `toSeq` of the last frame.
    pub(crate) last_synced: Seq,
    pub(crate) markers: Markers,
    /// The next pass must be a full evaluation.
    pub(crate) force_full: bool,
    /// Frames to this session carry scope keys, for life (SRV-607).
    pub(crate) lease_reads: bool,
    /// Foreign instances were withheld or retracted since the lease was last live (SRV-608).
    pub(crate) lease_reads_lapsed: bool,
    pub(crate) attachment: Attachment,
    /// New on every open (SRV-310).
    pub(crate) incarnation: u64,
    /// The incarnation the record began with: what went to an earlier session of this id is none of its business.
    pub(crate) born: u64,
    /// The watch list as the client set it.
    pub(crate) watches: Arc<WatchSet>,
    pub(crate) views: Views,
    /// The watch list with the views that act as watches: what is evaluated.
    pub(crate) effective: Arc<WatchSet>,
    /// Instances whose change concerns this session; mirrored in the registry's index.
    pub(crate) tracked: FxHashSet<InstanceId>,
    /// Those of them that are delivered for a view and demanded by nothing.
    pub(crate) undemanded: FxHashSet<InstanceId>,
    pub(crate) deferred: Deferred,
    pub(crate) view: Arc<Mutex<SessionView>>,
}

/// Which query of a session a graph belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GraphKey {
    /// The watches of a branch, views that render included: delivered and demanded.
    Branch(BranchName),
    /// What the serving loop selected for a view: delivered, never demanded (SRV-1005).
    Delivery(SmolStr),
}

/// What a session's watches evaluate to, and what we believe the client holds of it. Locked by the one pass or
/// request that holds the space's turn.
#[derive(Debug, Default)]
pub(crate) struct SessionView {
    pub(crate) graphs: BTreeMap<GraphKey, TrackedGraph>,
    pub(crate) entities: FxHashMap<InstanceKey, Held>,
}

impl Session {
    /// The identity that scopes resolve with (SRV-319: the envelope, never the acting principal).
    pub(crate) fn identity(&self) -> ScopeIdentity {
        ScopeIdentity {
            principal: self.principal.clone(),
            session_id: Some(self.id.clone()),
        }
    }

    /// Whose READ is asked for (SRV-319).
    pub(crate) fn reader(&self) -> Option<&Did> {
        self.acting_principal.as_ref().or(self.principal.as_ref())
    }

    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        match &self.attachment {
            Attachment::Attached { connection, .. } => Some(connection),
            Attachment::Detached { .. } => None,
        }
    }

    /// Instances the session demands (SRV-904): all it tracks but what is only delivered.
    pub(crate) fn demanded(&self) -> impl Iterator<Item = &InstanceId> {
        self.tracked
            .iter()
            .filter(|instance| !self.undemanded.contains(*instance))
    }

    /// True when a pass must visit the session although no dirty key touches it (SRV-423).
    pub(crate) fn is_owed(&self) -> bool {
        matches!(self.attachment, Attachment::Attached { .. })
            && (self.markers.due().is_some()
                || self.force_full
                || (self.lease_reads && self.lease_reads_lapsed)
                || !self.deferred.0.is_empty()
                || self.views.owes_plans())
    }
}
