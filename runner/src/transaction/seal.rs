//! The seam between a finished transaction and whatever it is sealed into instead of the store (RUN-600, RUN-608).
//!
//! Implemented by the client's overlay and by the serving host's wave; called by [`RunTx::commit`] only.

use memory_wire::{Did, EntityId, EventId, SessionId, SpaceId, Value};

use super::{NativeCommit, NativeRead, PostCommitEffect, RunTx};
use crate::error::CommitError;
use crate::link::Link;
use crate::promise::Promise;

/// Where transactions of a runtime go (RUN-610).
pub trait SealDestination {
    /// The wave's home space; `Some` iff this destination can stage appends.
    fn space(&self) -> Option<&SpaceId>;

    /// True when this destination takes `tx`; otherwise it commits to the store (the overlay diverts only
    /// derivation and event-handler stamps, RUN-603).
    fn accepts(&self, tx: &RunTx) -> bool;

    /// Takes the transaction. `Ok` = accepted, which is not yet durable (RUN-607).
    fn seal(&self, tx: &RunTx) -> Promise<Result<(), CommitError>>;

    /// Stages an append into another space's stream.
    fn stage_outbound_append(&self, tx: &RunTx, row: OutboundAppend) -> Result<(), CommitError>;

    /// True when the destination takes ownership of the effects.
    fn defer_sealed_effects(&self, tx: &RunTx, effects: &[PostCommitEffect]) -> bool;
}

/// RUN-573.
#[derive(Clone, Debug)]
pub struct OutboundAppend {
    /// Space of the stream.
    pub target_space: SpaceId,
    /// Its sidecar document.
    pub target_stream: EntityId,
    /// The stream itself.
    pub target_stream_link: Link,
    /// Event.
    pub event_id: EventId,
    /// Payload.
    pub payload: Value,
    /// Acting user.
    pub acting_principal: Option<Did>,
    /// Acting session.
    pub acting_session: Option<SessionId>,
    /// Set only when there is neither user nor session.
    pub sessionless_space_scope: bool,
    /// `stream-append:<sidecar id>`.
    pub capability_ref: String,
    /// The stream entry whose handling sent this.
    pub source_event: Option<(EntityId, EventId)>,
}

/// Receives what [`RunTx::seal_into`] hands over, per written space in commit order (RUN-608).
pub trait SealSink {
    /// A written space and its native commit.
    fn written(&mut self, space: &SpaceId, native: NativeCommit);
    /// A space that was only read, with its read set.
    fn read_only(&mut self, space: &SpaceId, reads: Vec<NativeRead>);
}
