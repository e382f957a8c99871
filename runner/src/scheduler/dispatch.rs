//! Delivery of queued events: preflight of the head, the handler's run, and its outcome (RUN-553…557).

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use memory_wire::ScopeKey;

use crate::error::{CommitError, CommitErrorName, RunnerError};
use crate::keys::{EntityKey, entity_key};
use crate::promise::Promise;
use crate::runtime::Posture;
use crate::scheduler::events::{
    Disposition, Enqueued, EventDelivery, EventHandler, EventOutcome, Park, Queued, ServedFailure,
    disposition,
};
use crate::scheduler::gates::{CONVERGENCE_HOLD_PASSES, MAX_ITERS};
use crate::scheduler::node::NodeId;
use crate::scheduler::run::panic_text;
use crate::scheduler::trigger::ReadLog;
use crate::scheduler::{RunRecord, Scheduler};
use crate::seal::{PieceStart, event_consequence, refusal};
use crate::transaction::{RunKind, RunStamp, RunTx, TxStatus};

/// How the nodes that a handler depends on stand.
enum Upstream {
    /// Nothing it depends on is stale.
    Current,
    /// Something can run: all of it is demanded for the pass, so that what a run dirties runs too.
    Stale(BTreeSet<NodeId>),
    /// Everything stale waits for a gate; the first opens at this instant.
    Gated(i64),
}

/// What a look at the head found.
enum Look {
    /// Look again: something about it changed.
    Again,
    /// It waits.
    Wait,
    /// It can be delivered now.
    Deliver(Rc<dyn EventHandler>),
}

impl Scheduler {
    /// Takes an event in. A refused one (full backlog, off arm) is told so through its outcome callback.
    pub fn queue_event(&self, event: EventDelivery) -> Result<(), RunnerError> {
        if event.served.is_some() && event.retries {
            // A requeue would shed the acting identity and the failure hook (RUN-557).
            return Err(RunnerError::InvalidValue {
                operation: "queue event",
                reason: format!(
                    "served event {} must not be retried by the scheduler",
                    event.event_id
                ),
            });
        }
        let collapse = self.0.posture == Posture::Standalone;
        let taken = self.0.state.borrow_mut().queue.push(event, collapse);
        match taken {
            Enqueued::Queued => {}
            Enqueued::Collapsed(superseded) => {
                if let Some(tell) = superseded {
                    tell(&EventOutcome::Failed(CommitError::aborted(
                        "superseded by a later event of its backlog",
                    )));
                }
            }
            Enqueued::Refused(event) => {
                let reason = format!("backlog of stream {} is full", event.stream.id);
                self.finish_event(Queued::new(*event), Err(CommitError::aborted(reason)));
            }
        }
        self.queue_execution();
        Ok(())
    }

    /// Looks at the head event and delivers it if it is ready. Answers whether a handler ran.
    pub(crate) fn event_phase(&self) -> bool {
        loop {
            let Some(slot) = self.0.state.borrow().queue.head() else {
                return false;
            };
            match self.look_at(slot) {
                Look::Again => {}
                Look::Wait => return false,
                Look::Deliver(handler) => {
                    let Some(queued) = self.0.state.borrow_mut().queue.take(slot) else {
                        return false;
                    };
                    self.deliver(slot, queued, handler.as_ref());
                    return true;
                }
            }
        }
    }

    fn look_at(&self, slot: u64) -> Look {
        let now = self.0.clock.now_ms();
        let (park, stream) = {
            let mut state = self.0.state.borrow_mut();
            let Some(queued) = state.queue.get_mut(slot) else {
                return Look::Again;
            };
            if queued
                .event
                .origin
                .as_ref()
                .is_some_and(|tx| tx.status() == TxStatus::Aborted)
            {
                drop(state);
                return self.drop_head(slot, "its origin failed", None);
            }
            (
                std::mem::replace(&mut queued.park, Park::Ready),
                queued.event.stream.clone(),
            )
        };
        match park {
            Park::Until(at) if at > now => self.park(slot, Park::Until(at)),
            Park::Loading(start) => match start.peek() {
                None => self.park(slot, Park::Loading(start)),
                // Running, or confirmed to have no piece: either way nobody is asked again.
                Some(Ok(PieceStart::Running | PieceStart::NoPiece)) => {
                    if let Some(queued) = self.0.state.borrow_mut().queue.get_mut(slot) {
                        queued.loader_succeeded = true;
                    }
                    Look::Again
                }
                Some(Ok(PieceStart::NotYet(why))) => {
                    let reason = format!("piece of stream {} could not be started: {why}", stream.id);
                    self.drop_head(slot, &reason, Some(ServedFailure::Deferred(reason.clone())))
                }
                Some(Err(error)) => {
                    let reason = format!("piece of stream {} could not be started: {error}", stream.id);
                    self.drop_head(slot, &reason, Some(ServedFailure::Deferred(reason.clone())))
                }
            },
            Park::Loads(loads) => match loads.peek() {
                None => self.park(slot, Park::Loads(loads)),
                Some(Ok(())) => self.preflight(slot),
                Some(Err(error)) => {
                    let reason =
                        format!("Event dropped: required replica load failed before dispatch ({error})");
                    self.drop_head(slot, &reason, Some(ServedFailure::Deferred(reason.clone())))
                }
            },
            Park::Presync(synced) if !synced.is_settled() => self.park(slot, Park::Presync(synced)),
            Park::Presync(_) => match self.handler_of(&stream) {
                Some(handler) => Look::Deliver(handler),
                None => self.preflight(slot),
            },
            Park::Until(_) | Park::Ready | Park::Upstream | Park::Gated(_) => self.preflight(slot),
        }
    }

    fn park(&self, slot: u64, park: Park) -> Look {
        if let Some(queued) = self.0.state.borrow_mut().queue.get_mut(slot) {
            queued.park = park;
        }
        Look::Wait
    }

    fn park_until_settled<T: Clone + 'static>(
        &self,
        slot: u64,
        promise: Promise<T>,
        park: impl FnOnce(Promise<T>) -> Park,
    ) -> Look {
        let shared = Rc::downgrade(&self.0);
        let settled = promise.is_settled();
        promise.then(move |_| {
            if let Some(scheduler) = shared.upgrade().map(Scheduler) {
                scheduler.queue_execution();
            }
        });
        self.park(slot, park(promise));
        if settled { Look::Again } else { Look::Wait }
    }

    /// RUN-554, for the head event.
    fn preflight(&self, slot: u64) -> Look {
        let (event_id, stream, payload, actor, loader_succeeded) = {
            let state = self.0.state.borrow();
            let Some(queued) = state.queue.get(slot) else {
                return Look::Again;
            };
            let event = &queued.event;
            (
                event.event_id.clone(),
                event.stream.clone(),
                event.payload.clone(),
                event.actor(),
                queued.loader_succeeded,
            )
        };
        let Some(handler) = self.handler_of(&stream) else {
            return self.load_piece(slot, &stream, loader_succeeded);
        };
        // Loads the preflight itself kicks must not park it: only those in flight before count.
        let in_flight: BTreeSet<EntityKey> = self
            .0
            .storage
            .pending_loads()
            .into_iter()
            .map(|(key, _)| key)
            .collect();
        let tx = RunTx::open_read_only(&self.0.storage);
        let looked = match &actor {
            Some(identity) => tx.set_scope_identity(identity.clone()),
            None => Ok(()),
        }
        .and_then(|()| catch_unwind(AssertUnwindSafe(|| handler.populate(&tx, &payload))).unwrap_or(Ok(())));
        if let Err(error) = looked {
            // The run itself will say what is wrong with its inputs.
            tracing::debug!(%event_id, %error, "preflight walk stopped early");
        }
        let closure = ReadLog::of(&tx.reactivity_log());
        tx.abort("preflight");
        if let Some(actor) = &actor {
            self.rearm_not_current_for_actor(&closure, actor);
        }
        match self.upstream_of(&closure) {
            Upstream::Current => {}
            Upstream::Gated(at) => return self.park(slot, Park::Gated(at)),
            Upstream::Stale(nodes) => {
                // Whatever it takes, a stream is not held for ever: a graph that keeps moving is looked at a
                // bounded number of times.
                let looks = {
                    let mut state = self.0.state.borrow_mut();
                    let Some(queued) = state.queue.get_mut(slot) else {
                        return Look::Again;
                    };
                    queued.preflights += 1;
                    queued.preflights
                };
                if looks <= MAX_ITERS {
                    self.demand_for_pass(nodes);
                    return self.park(slot, Park::Upstream);
                }
            }
        }
        let identity = actor.clone().unwrap_or_else(|| self.0.storage.identity());
        let awaited: Vec<EntityKey> = closure
            .iter()
            .map(|(address, _)| entity_key(address, &identity))
            .chain(self.upstream_reads(&closure))
            .filter(|key| in_flight.contains(key))
            .collect();
        if !awaited.is_empty() {
            let loads = self.0.storage.loads_settled(&awaited);
            return self.park_until_settled(slot, loads, Park::Loads);
        }
        let synced = handler.presync(&payload, actor.as_ref());
        if synced.is_settled() {
            return Look::Deliver(handler);
        }
        self.park_until_settled(slot, synced, Park::Presync)
    }

    /// RUN-553: no handler. The FIFO slot is held while the piece starts.
    fn load_piece(&self, slot: u64, stream: &crate::link::Link, loader_succeeded: bool) -> Look {
        let reason = format!("no handler for stream {}", stream.id);
        let loader = self.0.host.borrow().loader.clone();
        match loader {
            Some(loader) if !loader_succeeded => {
                let start = loader.start_for(stream);
                self.track_background(&start);
                self.park_until_settled(slot, start, Park::Loading)
            }
            Some(_) | None => self.drop_head(slot, &reason, Some(ServedFailure::Dropped(reason.clone()))),
        }
    }

    /// How the nodes upstream of a closure stand (RUN-554 (a)). Those that passes have given up on do not count.
    fn upstream_of(&self, closure: &ReadLog) -> Upstream {
        let now = self.0.clock.now_ms();
        let state = self.0.state.borrow();
        let upstream = upstream_of(&state.graph, closure);
        let mut stale = upstream
            .iter()
            .filter_map(|id| state.graph.node(*id))
            .filter(|node| node.stale() && node.gate.streak <= CONVERGENCE_HOLD_PASSES)
            .peekable();
        if stale.peek().is_none() {
            return Upstream::Current;
        }
        match stale
            .map(|node| node.gate.eligible_at().filter(|at| *at > now))
            .min()
        {
            // The least is `None` as soon as one of them can run.
            Some(Some(at)) => Upstream::Gated(at),
            Some(None) | None => Upstream::Stale(upstream),
        }
    }

    /// Instances that the upstream nodes of a closure read.
    fn upstream_reads(&self, closure: &ReadLog) -> Vec<EntityKey> {
        let state = self.0.state.borrow();
        upstream_of(&state.graph, closure)
            .into_iter()
            .filter_map(|id| state.graph.node(id))
            .flat_map(|node| node.triggers.keys().cloned())
            .collect()
    }

    fn drop_head(&self, slot: u64, reason: &str, served: Option<ServedFailure>) -> Look {
        let Some(queued) = self.0.state.borrow_mut().queue.take(slot) else {
            return Look::Again;
        };
        if let Some(failure) = served {
            tell_served(&queued.event, failure);
        }
        self.finish_event(queued, Err(CommitError::aborted(reason)));
        Look::Again
    }

    /// RUN-555: one run of the handler in one transaction.
    fn deliver(&self, slot: u64, queued: Queued, handler: &dyn EventHandler) {
        let event = &queued.event;
        let mut stamp = RunStamp::new(handler.action_id(), RunKind::EventHandler);
        stamp.event_id = Some(event.event_id.clone());
        stamp.parent_event_id = event.parent_event_id.clone();
        if let Some(served) = &event.served {
            stamp.acting = Some(served.fired_at.clone());
            stamp.scope_identity = event.actor();
            stamp.stream_entry = served.stream_entry.clone();
            stamp.lt1 = served.lt1;
            stamp.capability_ref = Some(event_consequence(&event.event_id));
        }
        self.record_run(RunRecord {
            action_id: handler.action_id().into(),
            kind: RunKind::EventHandler,
            instance: None,
            identity: stamp.scope_identity.clone(),
            event_id: Some(event.event_id.clone()),
        });
        let tx = self.edit();
        tx.set_event_time_ms(event.fired_at_ms - event.fired_at_ms.rem_euclid(1_000));
        let stamper = self.stamper();
        if let Err(error) = stamper.stamp(&tx, stamp) {
            // A handler must not run unmarked: the entry stays pending and is drained again (SS-612).
            tx.abort(error.to_string());
            tell_served(event, ServedFailure::Deferred(error.to_string()));
            self.finish_event(queued, Err(CommitError::aborted(error.to_string())));
            return;
        }
        self.0.state.borrow_mut().executing = true;
        let ran =
            catch_unwind(AssertUnwindSafe(|| handler.run(&tx, &event.payload))).unwrap_or_else(|panic| {
                Err(RunnerError::Panicked {
                    action: handler.action_id().to_owned(),
                    message: panic_text(panic.as_ref()),
                })
            });
        self.0.state.borrow_mut().executing = false;
        if let Err(error) = ran.and_then(|()| resolvable(event, &tx)) {
            // The handler's own writes are gone; when served, the error is the consequence (RUN-557, SS-817).
            tx.abort(error.to_string());
            self.drop_events_of(&tx);
            self.report(handler.action_id(), &error);
            tell_served(event, ServedFailure::Error(error.to_string()));
            self.finish_event(queued, Err(CommitError::aborted(error.to_string())));
            return;
        }
        let settled = tx.commit();
        let shared = Rc::downgrade(&self.0);
        settled.then(move |outcome| {
            let Some(scheduler) = shared.upgrade().map(Scheduler) else {
                return;
            };
            match outcome {
                Ok(()) => scheduler.finish_event(queued, Ok(())),
                Err(error) => {
                    scheduler.drop_events_of(&tx);
                    scheduler.delivery_failed(slot, queued, error);
                }
            }
        });
    }

    /// RUN-556, RUN-557: what becomes of a delivery whose commit or seal was refused.
    fn delivery_failed(&self, slot: u64, mut queued: Queued, error: &CommitError) {
        if queued.event.served.is_some() {
            // The entry stays pending for the next drain, except that an error before storage is a consequence.
            if error.message.starts_with("CFC enforcement rejected commit") {
                tell_served(&queued.event, ServedFailure::Error(error.message.clone()));
            } else if error.message != refusal::LT1_LATE {
                tracing::debug!(event_id = %queued.event.event_id, %error, "served delivery did not stand");
            }
            self.finish_event(queued, Err(error.clone()));
            return;
        }
        let now = self.0.clock.now_ms();
        let first = *queued.first_failure_ms.get_or_insert(now);
        queued.attempts += 1;
        let fraction = self.0.storage.mint().fraction();
        match disposition(
            error,
            queued.event.retries,
            queued.attempts,
            now - first,
            fraction,
        ) {
            Disposition::Retry(delay) => {
                // Whole milliseconds, rounded up: never earlier than due.
                queued.park = Park::Until(now + delay.ceil() as i64);
                queued.preflights = 0;
                self.0.state.borrow_mut().queue.put_back(slot, queued);
                self.ring();
            }
            Disposition::Drop => self.finish_event(queued, Err(error.clone())),
            Disposition::GaveUp => {
                let message = format!("event {} did not converge: {error}", queued.event.event_id);
                self.finish_event(
                    queued,
                    Err(CommitError::new(CommitErrorName::Convergence, message)),
                );
            }
        }
    }

    /// The choke point of every event: its outcome is told exactly once.
    pub(crate) fn finish_event(&self, mut queued: Queued, outcome: Result<(), CommitError>) {
        if let Some(tell) = queued.event.on_outcome.take() {
            tell(&match outcome {
                Ok(()) => EventOutcome::Handled,
                Err(error) => EventOutcome::Failed(error),
            });
        }
        self.ring();
    }

    /// RUN-558: events sent by a transaction die with it.
    pub(crate) fn drop_events_of(&self, tx: &RunTx) {
        let doomed = self
            .0
            .state
            .borrow_mut()
            .queue
            .remove_where(|queued| queued.event.origin.as_ref().is_some_and(|origin| origin.same(tx)));
        for queued in doomed {
            self.finish_event(queued, Err(CommitError::aborted("its origin failed")));
        }
    }
}

/// RUN-574: a handler that reached for a scope its actor cannot resolve has failed; nothing is substituted.
fn resolvable(event: &EventDelivery, tx: &RunTx) -> Result<(), RunnerError> {
    match event.actor() {
        Some(actor) => ScopeKey::resolve(tx.narrowest_read_scope(), &actor)
            .map(|_| ())
            .map_err(|error| RunnerError::UnresolvableScope(error.to_string())),
        None => Ok(()),
    }
}

fn tell_served(event: &EventDelivery, failure: ServedFailure) {
    if let Some(tell) = event.served.as_ref().and_then(|served| served.on_failure.clone()) {
        tell(failure);
    }
}

/// The writers of a closure and everything upstream of them.
fn upstream_of(graph: &crate::scheduler::graph::Graph, closure: &ReadLog) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut waiting: Vec<NodeId> = graph.writers_of_log(closure).into_iter().collect();
    while let Some(id) = waiting.pop() {
        if found.insert(id) {
            waiting.extend(
                graph
                    .node(id)
                    .into_iter()
                    .flat_map(|node| node.writers.iter().copied()),
            );
        }
    }
    found
}
