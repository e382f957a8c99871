//! What a serving host may ask of a runtime: the hooks of RUN §5.8 as one trait, at which the host's loop is tested
//! alone. Implemented by [`Runtime`]; meaningless off the serving posture (RUN-580).

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use memory_wire::{EntityId, EventId, Scope, ScopeIdentity, Seq, SpaceId, Value};

use crate::address::Address;
use crate::error::RunnerError;
use crate::link::Link;
use crate::promise::Promise;
use crate::runtime::{Runtime, StructureLoad};
use crate::scheduler::{EventDelivery, OutcomeCallback, QueuedEvent, ServedFailure, ServedRecord, Step};
use crate::seal::{RunStamper, RunSupply};
use crate::transaction::{Acting, SealDestination, StreamEntryRef};

/// A drained stream entry, ready to be delivered (SS-810).
pub struct ServedEvent {
    /// The entry's event.
    pub event_id: EventId,
    /// The stream, as the entry names it, in the served space.
    pub stream: Link,
    /// The entry's payload, or `Undefined`.
    pub payload: Value,
    /// The entry's stamped actor; session `"server"` is no session (RUN-574).
    pub fired_at: Acting,
    /// Wall clock of the drain, in milliseconds.
    pub now_ms: i64,
    /// The durable entry.
    pub stream_entry: StreamEntryRef,
    /// Told when the delivery fails for good or has to wait (RUN-557).
    pub on_failure: Rc<dyn Fn(ServedFailure)>,
    /// Told once when the delivery is over, accepted by the wave or not.
    pub on_outcome: Option<OutcomeCallback>,
}

/// A runtime as its host sees it.
pub trait ServingRuntime {
    /// Where runs seal, who stamps them, who demands them: all or none (SS-400).
    fn install_seal_destination(
        &self,
        destination: Rc<dyn SealDestination>,
        stamper: Rc<dyn RunStamper>,
        supply: Rc<dyn RunSupply>,
    );
    /// Takes them away.
    fn clear_seal_destination(&self);
    /// Queues a drained event, with retries off.
    fn queue_event(&self, event: ServedEvent) -> Result<(), RunnerError>;
    /// Starts the piece a demanded root belongs to (SS-1105).
    fn ensure_piece_running(&self, root: &Link) -> Promise<Result<StructureLoad, RunnerError>>;
    /// Counts a demand for an entity by scope name (RUN-522).
    fn enter_demanded_entity(&self, space: &SpaceId, id: &EntityId, scope: Scope);
    /// Takes it back.
    fn leave_demanded_entity(&self, space: &SpaceId, id: &EntityId, scope: Scope);
    /// Re-arms writers whose instance for `who` is not current; answers how many (RUN-546).
    fn rearm_not_current_for_demander(&self, address: &Address, who: &ScopeIdentity) -> usize;
    /// Arrival re-arm beneath piece roots.
    fn invalidate_for_demand_roots(&self, roots: &[EntityId]);
    /// One slice of work; see [`Runtime::step`].
    fn step(&self) -> Step;
    /// Works until idle.
    fn idle(&self) -> LocalBoxFuture<'_, ()>;
    /// Idle now?
    fn is_idle(&self) -> bool;
    /// Waits for inbound loads only (SS-555).
    fn input_synced(&self) -> LocalBoxFuture<'_, ()>;
    /// RUN-53: lowest foreign seq hidden under parked or sealed layers of ours.
    fn unapplied_foreign_seq_floor(&self, space: &SpaceId) -> Option<Seq>;
    /// Will a debounce or throttle window open a run later?
    fn has_armed_gate_wake(&self) -> bool;
    /// Removes queued events quietly; answers how many (SS-821).
    fn purge_queued_events(&self, matches: &dyn Fn(&QueuedEvent<'_>) -> bool, reason: &str) -> usize;
    /// Called before each cooperative yield.
    fn serving_yield_observer(&self, observer: Option<Rc<dyn Fn()>>);
    /// Ends the runtime.
    fn dispose(&self);
}

impl ServingRuntime for Runtime {
    fn install_seal_destination(
        &self,
        destination: Rc<dyn SealDestination>,
        stamper: Rc<dyn RunStamper>,
        supply: Rc<dyn RunSupply>,
    ) {
        self.scheduler()
            .install_seal_destination(destination, stamper, supply);
    }

    fn clear_seal_destination(&self) {
        self.scheduler().clear_seal_destination();
    }

    fn queue_event(&self, event: ServedEvent) -> Result<(), RunnerError> {
        self.scheduler().queue_event(EventDelivery {
            event_id: event.event_id,
            caller_id: true,
            stream: event.stream,
            payload: event.payload,
            fired_at_ms: event.now_ms,
            retries: false,
            parent_event_id: None,
            origin: None,
            served: Some(ServedRecord {
                fired_at: event.fired_at,
                lt1: None,
                stream_entry: Some(event.stream_entry),
                on_failure: Some(event.on_failure),
            }),
            on_outcome: event.on_outcome,
        })
    }

    fn ensure_piece_running(&self, root: &Link) -> Promise<Result<StructureLoad, RunnerError>> {
        Runtime::ensure_piece_running(self, root)
    }

    fn enter_demanded_entity(&self, space: &SpaceId, id: &EntityId, scope: Scope) {
        self.scheduler().enter_demanded_entity(space, id, scope);
    }

    fn leave_demanded_entity(&self, space: &SpaceId, id: &EntityId, scope: Scope) {
        self.scheduler().leave_demanded_entity(space, id, scope);
    }

    fn rearm_not_current_for_demander(&self, address: &Address, who: &ScopeIdentity) -> usize {
        self.scheduler().rearm_not_current_for_demander(address, who)
    }

    fn invalidate_for_demand_roots(&self, roots: &[EntityId]) {
        self.scheduler().invalidate_for_demand_roots(roots);
    }

    fn step(&self) -> Step {
        Runtime::step(self)
    }

    fn idle(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(Runtime::idle(self))
    }

    fn is_idle(&self) -> bool {
        Runtime::is_idle(self)
    }

    fn input_synced(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(Runtime::input_synced(self))
    }

    fn unapplied_foreign_seq_floor(&self, space: &SpaceId) -> Option<Seq> {
        self.storage().replica(space).unapplied_foreign_seq_floor()
    }

    fn has_armed_gate_wake(&self) -> bool {
        self.scheduler().has_armed_gate_wake()
    }

    fn purge_queued_events(&self, matches: &dyn Fn(&QueuedEvent<'_>) -> bool, reason: &str) -> usize {
        self.scheduler().purge_queued_events(matches, reason)
    }

    fn serving_yield_observer(&self, observer: Option<Rc<dyn Fn()>>) {
        self.scheduler().serving_yield_observer(observer);
    }

    fn dispose(&self) {
        Runtime::dispose(self);
    }
}
