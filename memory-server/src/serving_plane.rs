//! What a co-hosted serving loop uses (SRV §9): the [`ServingPlane`] it calls and the [`Observer`] it is called through.
//! In-process only; nothing here has a wire form. The implementations live in the rooms of what they do: `demand`,
//! `delegated_append`, `foreign_authority`, `served_acl`, `executor_commit`.

use memory_engine::sqlite_builtin::CellDatabases;
use memory_engine::{EngineHandle, Holder};
use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::EventId;
use memory_wire::message::ReadCeiling;
use memory_wire::{
    Did, EntityId, InstanceId, LocalSeq, Scope, ScopeIdentity, Seq, SessionId, SpaceId, Value,
};

use crate::error::ServerError;
use crate::statistics::PushStats;
use crate::views::{ViewHandle, ViewInterestRow, ViewSelection};

/// One durable commit, as the accepted-commit feed reports it (SRV-902). Of every class, in seq order per space; an
/// exact replay is reported again with its original seq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmittedCommit {
    /// The space.
    pub space: SpaceId,
    /// Its seq.
    pub seq: Seq,
    /// Its class.
    pub class: CommitClass,
    /// Who held the lease; derived commits only.
    pub holder: Option<Holder>,
    /// The session that made it.
    pub session_id: SessionId,
    /// Instances written, elided operations left out (SRV-412).
    pub writes: Vec<InstanceId>,
    /// Events appended.
    pub event_appends: Vec<EventAppendNotice>,
    /// Activates a parked space although nobody is there (SRV-910).
    pub warm: bool,
}

/// One event appended by a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventAppendNotice {
    /// The sidecar instance.
    pub stream: InstanceId,
    /// The event.
    pub event_id: EventId,
}

/// Why the set of demanded instances changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DemandReason {
    /// A session's watches changed (SRV-506).
    Watch,
    /// A pass reached instances that were not tracked before (SRV-431).
    PushGrowth,
}

/// Receives notices, synchronously and within the space's turn: it must not block and must not call back into a method
/// that takes a turn; it posts to a queue of its own (SRV-911). A panic in it is contained and logged.
pub trait Observer: Send + Sync + 'static {
    /// A commit is durable.
    fn commit_admitted(&self, notice: &AdmittedCommit);
    /// A session was opened or resumed.
    fn session_opened(&self, space: &SpaceId);
    /// Demand changed, through a session of `principal`.
    fn demand_changed(&self, space: &SpaceId, reason: DemandReason, principal: Option<&Did>);
}

/// One instance a live session demands (SRV-904). Never deduplicated across sessions: whose demand it is is the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemandRow {
    /// The document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// The instance.
    pub scope_key: memory_wire::ScopeKey,
    /// The demanding session; an anonymous one has no principal.
    pub identity: ScopeIdentity,
    /// Some watch of the session names it.
    pub root: bool,
}

/// Sizes behind the demand of a space (SRV-905).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DemandSizes {
    /// Per live session.
    pub per_session: Vec<SessionDemand>,
    /// Distinct instances over all of them.
    pub union_keys: usize,
}

/// Demand of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionDemand {
    /// The session.
    pub session_id: SessionId,
    /// Its principal.
    pub principal: Option<Did>,
    /// Instances it tracks.
    pub tracked: usize,
    /// Watches it has.
    pub watches: usize,
}

/// An event append made by the server for an actor (SRV-907).
#[derive(Debug, Clone)]
pub struct DelegatedAppend {
    /// Where the stream is.
    pub target_space: SpaceId,
    /// The stream's sidecar.
    pub target_stream: EntityId,
    /// The stream, as an entry names it: an object `{id, path, scope?}`. Absent is refused.
    pub target_stream_link: Option<Value>,
    /// The event.
    pub event_id: EventId,
    /// Its payload.
    pub payload: Value,
    /// For whom.
    pub acting_principal: Option<Did>,
    /// In which session of theirs.
    pub acting_session: Option<SessionId>,
    /// The declared exception: a chain with no actor, space scope only.
    pub sessionless_space_scope: bool,
    /// Tag from the closed vocabulary; presence is required, the tag is not resolved.
    pub capability_ref: String,
    /// The serving session.
    pub session_id: SessionId,
    /// Fresh on every attempt (SRV-908).
    pub local_seq: LocalSeq,
}

/// What became of a delegated append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It was committed.
    Fresh {
        /// Seq of the commit.
        seq: Seq,
    },
    /// The event was there already, above the stream's horizon: delivered.
    Deduped,
}

/// Answer of the structural grant probe (SRV-816).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// A foreign write may go ahead.
    Granted {
        /// Through what.
        via: GrantVia,
    },
    /// It may not.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Through what a foreign write is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantVia {
    /// The principal is the space.
    Owner,
    /// The space does not exist yet.
    Creation,
    /// The list gives WRITE or more.
    Acl,
}

impl GrantVia {
    /// The word used in traces.
    pub fn as_str(self) -> &'static str {
        match self {
            GrantVia::Owner => "owner",
            GrantVia::Creation => "creation",
            GrantVia::Acl => "acl",
        }
    }
}

/// A change of a space's access list made for an actor by a served handler (SRV-813).
#[derive(Debug, Clone)]
pub struct ServedAclChange {
    /// The space.
    pub space: SpaceId,
    /// The new list: the value of the list document.
    pub list: Value,
    /// For whom.
    pub actor: Did,
    /// `event-consequence:<eventId>`.
    pub capability_ref: String,
    /// The serving session.
    pub session_id: SessionId,
    /// Fresh on every attempt (SRV-908).
    pub local_seq: LocalSeq,
}

/// What became of a served list change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedAclOutcome {
    /// The list was replaced.
    Committed {
        /// Seq of the commit.
        seq: Seq,
    },
    /// The list was equal already; nothing was committed.
    Unchanged,
}

/// A future of the plane, boxed so that the trait can be used as an object.
pub type PlaneFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The engine plane of a server, for a serving loop in the same process. Implemented by [`crate::Server`]. Server and host
/// are compiled together, so whether the one supports what the other calls is the compiler's question (SRV-901).
///
/// Futures resolve under any executor; methods without one may be called from any thread.
pub trait ServingPlane: Send + Sync {
    /// The store of a space, created by the first job if absent. Keeps the space open.
    fn engine(&self, space: &SpaceId) -> Result<EngineHandle, ServerError>;

    /// Installs the one observer, or removes it.
    fn set_observer(&self, observer: Option<std::sync::Arc<dyn Observer>>);

    /// Tells the server of a durable commit made through [`ServingPlane::engine`]: its instances become dirty without
    /// origin, derived ones with push priority, and the observer is told. To be called in the same turn as the commit,
    /// that is, from the `publish` step of [`EngineHandle::write_then`] or within [`EngineHandle::turn`] (SRV-903).
    fn note_executor_commit(&self, notice: AdmittedCommit);

    /// True when somebody but `exclude` has a live session: attached, or detached within its lifetime.
    fn has_live_sessions(&self, space: &SpaceId, exclude: Option<&Did>) -> bool;

    /// True when this very session of this principal is live.
    fn has_live_session_for(&self, space: &SpaceId, principal: &Did, session: &SessionId) -> bool;

    /// What live sessions other than those of `exclude` demand.
    fn demanded_instances(&self, space: &SpaceId, exclude: Option<&Did>) -> Vec<DemandRow>;

    /// How much they demand.
    fn demand_set_sizes(&self, space: &SpaceId, exclude: Option<&Did>) -> DemandSizes;

    /// Appends an event for an actor.
    fn commit_delegated_append(
        &self,
        append: DelegatedAppend,
    ) -> PlaneFuture<'_, Result<Appended, ServerError>>;

    /// What is known of databases beside the stores: a wave with SQLite operations lands through
    /// [`memory_engine::Engine::apply_wave_with_sqlite`] with it, so that tables are created once (SRV-523).
    fn cell_databases(&self) -> std::sync::Arc<CellDatabases>;

    /// Whether a served write of `principal` into another space may go ahead. Never creates a store;
    /// reads one, so call it off the network threads.
    fn foreign_write_authority(
        &self,
        space: &SpaceId,
        principal: Option<&Did>,
    ) -> Result<Authority, ServerError>;

    /// The lease of `space` was regained by `principal` after a gap: what was withheld from its sessions is delivered
    /// (SRV-609).
    fn note_lease_reacquired(&self, space: &SpaceId, principal: &Did);

    /// The bound a session declared at its open (SRV-322).
    fn session_read_ceiling(&self, space: &SpaceId, session: &SessionId) -> Option<ReadCeiling>;

    /// What the clients of a space render (SRV-1003).
    fn view_interests(&self, space: &SpaceId) -> Vec<ViewInterestRow>;

    /// Publishes what was selected for a view (SRV-1004). False when the handle is stale, READ is denied, or another
    /// selection stands; an error when the delivery cannot be evaluated, and then nothing changes.
    fn set_view_selection(
        &self,
        space: &SpaceId,
        handle: ViewHandle,
        selection: ViewSelection,
    ) -> PlaneFuture<'_, Result<bool, ServerError>>;

    /// Flushes the given spaces, or all that are dirty, without waiting for inbound frames (SRV-438).
    fn flush(&self, spaces: Option<&[SpaceId]>) -> PlaneFuture<'_, Result<(), ServerError>>;

    /// Waits for queued turns, flushes, and returns when nothing is dirty.
    fn idle(&self) -> PlaneFuture<'_, Result<(), ServerError>>;

    /// Push priority counters.
    fn push_priority_stats(&self) -> PushStats;

    /// Whether the actor may make this change of the list (SRV-813); commits nothing.
    fn check_served_acl_change(&self, change: ServedAclChange) -> PlaneFuture<'_, Result<(), ServerError>>;

    /// Makes the change.
    fn commit_served_acl_change(
        &self,
        change: ServedAclChange,
    ) -> PlaneFuture<'_, Result<ServedAclOutcome, ServerError>>;
}
