//! What a serving host implements around the runs of a runtime, and what a run is recorded as (RUN-605, RUN-606,
//! RUN-11 traits). The destination trait itself, the stamp and the hand-over live with the transaction; the
//! client's destination is [`crate::overlay`].

use memory_wire::{Did, EntityId, EventId, Scope, ScopeIdentity, ScopeKey};

use crate::error::RunnerError;
use crate::link::Link;
use crate::promise::Promise;
use crate::transaction::{Acting, PostCommitEffect, RunKind, RunStamp, RunTx};

/// Stamps a run's transaction. A host's version also writes the `consequenced` mark of a drained event into the
/// run's own transaction (SS-612); an error aborts the run, because a handler must not run unmarked.
pub trait RunStamper {
    /// Attaches `stamp`; called before the run's first read (RUN-601).
    fn stamp(&self, tx: &RunTx, stamp: RunStamp) -> Result<(), RunnerError>;
}

/// The stamper of runtimes without a host: attaches the stamp and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainStamper;

impl RunStamper for PlainStamper {
    fn stamp(&self, tx: &RunTx, stamp: RunStamp) -> Result<(), RunnerError> {
        tx.set_stamp(stamp)
    }
}

/// Who demands a node (RUN-542, SS-1110). The scheduler adds transient event actors itself.
pub trait RunSupply {
    /// Demanding pairs of any of these piece roots, in any order, repetitions allowed.
    fn demanders(&self, demand_roots: &[EntityId]) -> Vec<ScopeIdentity>;
}

/// The supply of runtimes without a host: nobody, so that every node makes its single fallback run.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSupply;

impl RunSupply for NoSupply {
    fn demanders(&self, _demand_roots: &[EntityId]) -> Vec<ScopeIdentity> {
        Vec::new()
    }
}

/// How starting a stream's piece ended (RUN-553, RUN-811).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceStart {
    /// Its graph is registered.
    Running,
    /// Confirmed: no piece owns the stream.
    NoPiece,
    /// Not startable yet, and why.
    NotYet(String),
}

/// Starts the piece that owns a stream which has no running handler (RUN-553).
pub trait PieceLoader {
    /// Starts it; an error is a failed attempt, like [`PieceStart::NotYet`].
    fn start_for(&self, stream: &Link) -> Promise<Result<PieceStart, RunnerError>>;
}

/// Performs egress after durability.
pub trait EffectSink {
    /// Enacts one effect; settles when done, successful or not.
    fn enact(&self, effect: PostCommitEffect) -> Promise<()>;
}

/// Answers whether an absent scoped instance is one that this loop still has to produce (RUN-59).
pub trait OwedInstances {
    /// True when `id` at `key` is demanded and derived here.
    fn owes(&self, id: &EntityId, key: &ScopeKey) -> bool;
}

/// Who a sealed run is recorded for: attribution, which is never the same as resolution (SS-606).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// Recorded actor.
    pub acting: Acting,
    /// Capability reference of its foreign writes; staged appends have their own.
    pub capability_ref: Option<String>,
}

/// RUN-605: the record of a run, given the narrowest scope it read.
pub fn attribution(stamp: &RunStamp, discovered: Scope) -> Attribution {
    if stamp.attribution_from_scope {
        let pair = stamp.scope_identity.clone().unwrap_or_default();
        let acting = acting_at(&pair, discovered);
        let capability_ref = acting.user.as_ref().map(demanded_run);
        return Attribution {
            acting,
            capability_ref,
        };
    }
    match stamp.kind {
        RunKind::EventHandler => Attribution {
            acting: stamp.acting.clone().unwrap_or_default(),
            capability_ref: stamp
                .capability_ref
                .clone()
                .or_else(|| stamp.event_id.as_ref().map(event_consequence)),
        },
        RunKind::Bookkeeping => Attribution {
            acting: stamp.acting.clone().unwrap_or_default(),
            capability_ref: stamp.capability_ref.clone(),
        },
        RunKind::Derivation => Attribution::default(),
    }
}

/// `pair` cut to what `scope` attributes: nothing, the user, or both.
pub fn acting_at(pair: &ScopeIdentity, scope: Scope) -> Acting {
    match scope {
        Scope::Space => Acting::default(),
        Scope::User => Acting {
            user: pair.principal.clone(),
            session: None,
        },
        Scope::Session => Acting {
            user: pair.principal.clone(),
            session: pair.session_id.clone(),
        },
    }
}

/// The identity an actor's scoped addresses resolve with; what it lacks stays lacking (RUN-574).
pub fn identity_of(acting: &Acting) -> ScopeIdentity {
    ScopeIdentity {
        principal: acting.user.clone(),
        session_id: acting.session.clone(),
    }
}

/// RUN-606: capability reference of an append to a stream.
pub fn stream_append(sidecar: &EntityId) -> String {
    format!("stream-append:{sidecar}")
}

/// RUN-606: capability reference of a handler's foreign writes.
pub fn event_consequence(event: &EventId) -> String {
    format!("event-consequence:{event}")
}

/// RUN-606: capability reference of a demanded run's foreign writes.
pub fn demanded_run(user: &Did) -> String {
    format!("demanded-run:{user}")
}

/// Reason messages of refused seals, each carried by a `StorageTransactionAborted` (SS-603).
pub mod refusal {
    /// The wave this run aimed at is detached.
    pub const WAVE_CLOSED: &str = "wave-closed";
    /// The replica cannot seal.
    pub const SEAL_UNSUPPORTED: &str = "seal-unsupported";
    /// Seals overtook each other.
    pub const SEAL_OUT_OF_ORDER: &str = "seal-out-of-order";
    /// An event went out attributed more broadly than what the run discovered (RUN-547).
    pub const EARLY_EMIT: &str = "early-emit-under-attributed";
    /// A write to another space without authority.
    pub const FOREIGN_WRITE: &str = "foreign-write-refused";
    /// An in-process event copy finished after its wave; settles quietly (RUN-572).
    pub const LT1_LATE: &str = "lt1-late-seal-refused";
    /// An effect completion was refused.
    pub const EFFECT_COMPLETION: &str = "effect-completion-refused";
    /// A handler seal without an event id: nothing could ever retire it (RUN-702).
    pub const NO_EVENT_ID: &str = "handler seal names no event";
    /// A derivation that nobody with an identity demands reached for a scoped instance (RUN-548).
    pub const UNDEMANDED_NARROWING: &str = "undemanded run reached for a scoped instance";
}
