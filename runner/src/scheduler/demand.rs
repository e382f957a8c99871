//! Hooks of a serving host (RUN-5.8 table, RUN-522, 546, 554 (b)). None of them is called off the serving posture,
//! where their state stays empty (RUN-580).

use std::collections::BTreeSet;
use std::rc::Rc;

use memory_wire::{EntityId, Scope, ScopeIdentity, SpaceId};

use crate::address::Address;
use crate::error::CommitError;
use crate::keys::EntityNameKey;
use crate::scheduler::events::{Queued, QueuedEvent};
use crate::scheduler::node::NodeId;
use crate::scheduler::trigger::ReadLog;
use crate::scheduler::{NodeKind, Scheduler, StreamKey};
use crate::transaction::{RunTx, SourceAction};

impl Scheduler {
    /// Counts a demand for an entity, by scope name; the first one makes its writers demand roots (RUN-522).
    pub fn enter_demanded_entity(&self, space: &SpaceId, id: &EntityId, scope: Scope) {
        let name = EntityNameKey {
            space: space.clone(),
            scope,
            id: id.clone(),
        };
        let woken = self.0.state.borrow_mut().graph.enter_demanded(name);
        if !woken.is_empty() {
            self.queue_execution();
        }
    }

    /// Takes one demand back; the last one lets the writers go dormant.
    pub fn leave_demanded_entity(&self, space: &SpaceId, id: &EntityId, scope: Scope) {
        let name = EntityNameKey {
            space: space.clone(),
            scope,
            id: id.clone(),
        };
        self.0.state.borrow_mut().graph.leave_demanded(&name);
    }

    /// RUN-546: re-arms the fanned-out writers of an entity whose instance for `who` is not current. Answers how
    /// many.
    pub fn rearm_not_current_for_demander(&self, address: &Address, who: &ScopeIdentity) -> usize {
        let writers = self.0.state.borrow().graph.writers_of(address);
        self.rearm_not_current(writers, who).len()
    }

    /// Arrival re-arm: narrowed nodes beneath these piece roots run again for whoever is not current. Nodes that
    /// never ran or never narrowed need nothing.
    pub fn invalidate_for_demand_roots(&self, roots: &[EntityId]) {
        let woken = {
            let mut state = self.0.state.borrow_mut();
            let narrowed = |id: &NodeId| {
                state
                    .graph
                    .node(*id)
                    .and_then(|node| node.fan_out.as_ref())
                    .is_some_and(|f| f.narrowed())
            };
            let concerned: Vec<NodeId> = state.graph.beneath(roots).into_iter().filter(narrowed).collect();
            for id in &concerned {
                state.graph.reconsider(*id);
            }
            !concerned.is_empty()
        };
        if woken {
            self.queue_execution();
        }
    }

    /// Actors of queued served events whose handler belongs to one of these roots (RUN-554 (b)): somebody who
    /// watches nothing still gets computed instances before his event is handled.
    pub fn transient_event_demanders_for(&self, roots: &[EntityId]) -> Vec<ScopeIdentity> {
        let state = self.0.state.borrow();
        let mut actors = Vec::new();
        for (_, queued) in state.queue.iter() {
            let Some(actor) = queued.event.actor() else {
                continue;
            };
            let belongs = state
                .handlers
                .get(&StreamKey::of(&queued.event.stream))
                .is_some_and(|handler| {
                    handler
                        .code
                        .demand_roots()
                        .iter()
                        .any(|root| roots.contains(root))
                });
            if belongs && !actors.contains(&actor) {
                actors.push(actor);
            }
        }
        actors
    }

    /// RUN-554 (b): re-arms the *direct* fanned-out writers of a handler's closure that are not current for its
    /// actor. Answers them.
    pub(crate) fn rearm_not_current_for_actor(
        &self,
        closure: &ReadLog,
        actor: &ScopeIdentity,
    ) -> Vec<NodeId> {
        let writers = self.0.state.borrow().graph.writers_of_log(closure);
        self.rearm_not_current(writers, actor)
    }

    fn rearm_not_current(&self, writers: BTreeSet<NodeId>, who: &ScopeIdentity) -> Vec<NodeId> {
        let rearmed: Vec<NodeId> = {
            let mut state = self.0.state.borrow_mut();
            let stale: Vec<NodeId> = writers
                .into_iter()
                .filter(|id| {
                    state
                        .graph
                        .node(*id)
                        .and_then(|node| node.fan_out.as_ref())
                        .is_some_and(|fan_out| {
                            fan_out.narrowed()
                                && fan_out
                                    .key_at_ratchet(who)
                                    .is_some_and(|key| !fan_out.is_clean(&key))
                        })
                })
                .collect();
            for id in &stale {
                state.graph.reconsider(*id);
            }
            stale
        };
        if !rearmed.is_empty() {
            self.queue_execution();
        }
        rearmed
    }

    /// A run that sealed was marked clean; when its whole wave is withdrawn for reasons that are not its own, exactly
    /// that instance runs again (SS-206, SS-721).
    pub fn rearm_withdrawn(&self, tx: &RunTx) {
        let Some(SourceAction(ordinal)) = tx.source_action() else {
            return;
        };
        let id = NodeId(ordinal);
        {
            let mut state = self.0.state.borrow_mut();
            let Some(node) = state.graph.node_mut(id) else {
                return;
            };
            if let (Some(fan_out), Some(identity)) = (&mut node.fan_out, tx.scope_identity())
                && let Some(key) = fan_out.key_at_ratchet(&identity)
            {
                fan_out.rearm(&key);
            }
            state.graph.reconsider(id);
        }
        self.queue_execution();
    }

    /// Removes queued events, never dispatched ones, that `matches`; they end quietly with `reason`. Answers how
    /// many (SS-821).
    pub fn purge_queued_events(&self, matches: &dyn Fn(&QueuedEvent<'_>) -> bool, reason: &str) -> usize {
        let view = |queued: &Queued| {
            matches(&QueuedEvent {
                event_id: &queued.event.event_id,
                stream: &queued.event.stream,
                served: queued.event.served.as_ref(),
            })
        };
        let purged = self.0.state.borrow_mut().queue.remove_where(view);
        let count = purged.len();
        for queued in purged {
            self.finish_event(queued, Err(CommitError::aborted(reason)));
        }
        count
    }

    /// Called synchronously before each cooperative yield (RUN-536): lease renewal.
    pub fn serving_yield_observer(&self, observer: Option<Rc<dyn Fn()>>) {
        self.0.host.borrow_mut().yield_observer = observer;
    }

    /// Kind of a registered node, for hosts that account for eager work.
    pub fn node_kind(&self, id: NodeId) -> Option<NodeKind> {
        self.0.state.borrow().graph.node(id).map(|node| node.spec.kind)
    }
}
