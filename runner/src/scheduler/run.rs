//! One run of one action, and the fan-out over its demanded instances (RUN-540…548).

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use memory_wire::{Scope, ScopeIdentity, ScopeKey};

use crate::error::{CommitError, CommitErrorName, RunnerError};
use crate::replica::{DocKey, Instance};
use crate::runtime::Posture;
use crate::scheduler::fan_out::{DemandedInstance, FanOut};
use crate::scheduler::gates::{MAX_REACTIVE_RETRIES, PASS_RUN_BUDGET};
use crate::scheduler::node::{NodeId, RunFailure, Status};
use crate::scheduler::trigger::ReadLog;
use crate::scheduler::{RunRecord, Scheduler};
use crate::seal::refusal;
use crate::transaction::{ReactivityLog, RunKind, RunStamp, SourceAction};

/// What one run means for the rest of its node's pass.
#[derive(Clone, Copy, Debug, Default)]
struct RunEnd {
    /// It left nothing behind and is not tried again in this pass.
    set_aside: bool,
    /// It discovered a narrower scope: which instances there are is to be asked anew.
    ratchet_moved: bool,
}

impl Scheduler {
    /// Runs a node: every demanded instance that is not clean, or the single fallback (RUN-544). Never yields
    /// between instances of one node (RUN-536).
    pub(crate) fn run_node(&self, id: NodeId) {
        {
            let mut state = self.0.state.borrow_mut();
            if let Some(node) = state.graph.node_mut(id) {
                node.runs_this_pass += 1;
            }
            if let Some(pass) = state.pass.as_mut() {
                pass.ran.insert(id);
            }
        }
        let mut deferred: BTreeSet<ScopeKey> = BTreeSet::new();
        let mut runs = 0;
        // A round runs what is owed at the present ratchet; what a run discovers makes a new round.
        loop {
            let demanders = self.demanders_of(id);
            if demanders.iter().all(|pair| pair.principal.is_none()) {
                if let Some(node) = self.0.state.borrow_mut().graph.node_mut(id) {
                    node.fan_out = None;
                }
                self.run_once(id, None);
                return;
            }
            let (owed, budget) = {
                let mut state = self.0.state.borrow_mut();
                let Some(node) = state.graph.node_mut(id) else {
                    return;
                };
                let fan_out = node.fan_out.get_or_insert_with(FanOut::default);
                let wanted = fan_out.demanded(&demanders);
                fan_out.prune(&wanted);
                // An instance that keeps dirtying itself is as bounded as a node that does.
                let budget = wanted.len().max(1) * PASS_RUN_BUDGET as usize;
                let owed: Vec<DemandedInstance> = wanted
                    .into_iter()
                    .filter(|w| !fan_out.is_clean(&w.key) && !deferred.contains(&w.key))
                    .collect();
                (owed, budget)
            };
            if owed.is_empty() || runs >= budget {
                self.end_fan_out(id, runs);
                return;
            }
            for instance in owed {
                runs += 1;
                let (key, probe) = (instance.key.clone(), instance.key.scope() == Scope::Space);
                let run = self.run_once(id, Some(instance));
                if run.set_aside {
                    deferred.insert(key);
                }
                // A principal that turns out session-deep changes his own instances only; the probe changes all.
                if run.ratchet_moved && probe {
                    break;
                }
            }
        }
    }

    /// Every demanded instance is current or set aside: departed ones leave the subscription with their reads
    /// (I-15).
    fn end_fan_out(&self, id: NodeId, runs: usize) {
        let mut state = self.0.state.borrow_mut();
        let Some(node) = state.graph.node_mut(id) else {
            return;
        };
        let union = node.fan_out.as_ref().map(FanOut::union_log).unwrap_or_default();
        if runs == 0 {
            // Nothing was owed: what made it stale concerned others.
            node.causes.clear();
            state.graph.set_status(id, Status::Clean);
        }
        state.graph.subscribe(id, union);
    }

    /// The pairs that demand a node: its host's registry plus the actors of queued events (RUN-542, SS-1110).
    fn demanders_of(&self, id: NodeId) -> Vec<ScopeIdentity> {
        let roots = match self.0.state.borrow().graph.node(id) {
            Some(node) => node.spec.demand_roots.clone(),
            None => return Vec::new(),
        };
        let supply = self.0.host.borrow().supply.clone();
        let mut demanders = supply.demanders(&roots);
        demanders.extend(self.transient_event_demanders_for(&roots));
        demanders
    }

    /// One run in one transaction; without an instance it is the fallback: the runtime's own identity, or none at
    /// all when serving (RUN-548).
    fn run_once(&self, id: NodeId, instance: Option<DemandedInstance>) -> RunEnd {
        let identity = match (&instance, self.0.posture) {
            (Some(instance), _) => Some(instance.identity.clone()),
            (None, Posture::Serving) => Some(ScopeIdentity::default()),
            (None, Posture::Standalone | Posture::Client) => None,
        };
        let (action, action_id, causes) = {
            let mut state = self.0.state.borrow_mut();
            let Some(node) = state.graph.node_mut(id) else {
                return RunEnd::default();
            };
            let taken = (
                node.spec.action.clone(),
                node.spec.action_id.clone(),
                std::mem::take(&mut node.causes),
            );
            if let (Some(fan_out), Some(instance)) = (&mut node.fan_out, &instance) {
                fan_out.run_started(&instance.key, &instance.identity);
            }
            // Clean before invoking, so that a change that lands during the run invalidates anew (RUN-540).
            state.graph.set_status(id, Status::Clean);
            state.running = Some(id);
            state.executing = true;
            taken
        };
        let mut stamp = RunStamp::new(action_id.as_str(), RunKind::Derivation);
        stamp.scope_identity = identity.clone();
        stamp.action_scope_key = instance.as_ref().map(|i| i.key.clone());
        stamp.attribution_from_scope = instance.is_some();
        self.record_run(RunRecord {
            action_id: action_id.clone(),
            kind: RunKind::Derivation,
            instance: stamp.action_scope_key.clone(),
            identity: identity.clone(),
            event_id: None,
        });
        let tx = self.edit();
        tx.set_source_action(SourceAction(id.0));
        let started = self.0.clock.now_ms();
        let stamper = self.stamper();
        let ended = match stamper.stamp(&tx, stamp) {
            Ok(()) => catch_unwind(AssertUnwindSafe(|| action.run(&tx))).unwrap_or_else(|panic| {
                Err(RunFailure::Failed(RunnerError::Panicked {
                    action: action_id.to_string(),
                    message: panic_text(panic.as_ref()),
                }))
            }),
            Err(error) => Err(RunFailure::Failed(error)),
        };
        let discovered = tx.narrowest_read_scope();
        let recorded = tx.reactivity_log();
        let log = ReadLog::of(&recorded);
        let ended = ended
            .and_then(|()| unresolvable(identity.as_ref(), discovered))
            .and_then(|()| self.none_owed(&recorded));
        let (key, ratchet_moved) = self.note_run(id, instance.as_ref(), discovered, log, started);
        match ended {
            Ok(()) => {
                let early = tx.stamp().is_some_and(|s| emitted_too_early(&s, discovered));
                if early {
                    // An event would have gone out attributed to too many (RUN-547).
                    tx.abort(refusal::EARLY_EMIT);
                    self.drop_events_of(&tx);
                    self.run_failed(id, key, causes, &CommitError::aborted(refusal::EARLY_EMIT));
                    return RunEnd {
                        set_aside: false,
                        ratchet_moved,
                    };
                }
                let settled = tx.commit();
                let shared = std::rc::Rc::downgrade(&self.0);
                let origin = tx.clone();
                settled.then(move |outcome| {
                    let Some(scheduler) = shared.upgrade().map(Scheduler) else {
                        return;
                    };
                    match outcome {
                        Ok(()) => scheduler.run_stood(id),
                        Err(error) => {
                            scheduler.drop_events_of(&origin);
                            scheduler.run_failed(id, key, causes, error);
                        }
                    }
                });
                RunEnd {
                    set_aside: false,
                    ratchet_moved,
                }
            }
            Err(RunFailure::Withdrawn(reason)) => {
                tracing::debug!(action = %action_id, %reason, "run withdrawn");
                tx.abort(&reason);
                self.drop_events_of(&tx);
                RunEnd {
                    set_aside: true,
                    ratchet_moved,
                }
            }
            Err(RunFailure::Failed(error)) => {
                tx.abort(error.to_string());
                self.drop_events_of(&tx);
                self.report(&action_id, &error);
                RunEnd {
                    set_aside: true,
                    ratchet_moved,
                }
            }
        }
    }

    /// After the body: the ratchet learns, the subscription follows, gates move. What a run discovered counts
    /// even if its seal is refused (RUN-544). Answers the instance's key at the new ratchet, and whether that moved.
    fn note_run(
        &self,
        id: NodeId,
        instance: Option<&DemandedInstance>,
        discovered: Scope,
        log: ReadLog,
        started: i64,
    ) -> (Option<ScopeKey>, bool) {
        let finished = self.0.clock.now_ms();
        let mut state = self.0.state.borrow_mut();
        state.running = None;
        state.executing = false;
        let Some(node) = state.graph.node_mut(id) else {
            return (None, false);
        };
        let timing = node.spec.timing;
        node.gate.ran(&timing, started, finished);
        match instance {
            Some(instance) => {
                let fan_out = node.fan_out.get_or_insert_with(FanOut::default);
                let moved = fan_out.run_finished(discovered, log.clone());
                let key = fan_out
                    .key_at_ratchet(&instance.identity)
                    .unwrap_or_else(|| instance.key.clone());
                // Only added to here: the exact union follows when the node's instances are through.
                state.graph.extend_subscription(id, &log);
                (Some(key), moved)
            }
            None => {
                if self.0.posture == Posture::Serving && discovered != Scope::Space {
                    // Remembered, so that an arriving demander finds the node narrowed (RUN-548).
                    node.fan_out
                        .get_or_insert_with(FanOut::default)
                        .discover(&ScopeIdentity::default(), discovered);
                }
                state.graph.subscribe(id, log);
                (None, false)
            }
        }
    }

    /// RUN-59: a derivation that read an absent scoped instance which this loop still has to produce is withdrawn,
    /// and re-runs when it arrives.
    fn none_owed(&self, log: &ReactivityLog) -> Result<(), RunFailure> {
        let Some(owed) = self.owed_instances() else {
            return Ok(());
        };
        for read in log.reads.iter().chain(&log.shallow_reads) {
            let Some(key) = &read.scope_key else { continue };
            let replica = self.0.storage.replica(&read.space);
            let document = DocKey {
                instance: Instance::Key(key.clone()),
                id: read.id.clone(),
            };
            if replica.visible(&document).is_none() && owed.owes(&read.id, key) {
                return Err(RunFailure::Withdrawn(format!(
                    "instance {key} of {} is still to be derived",
                    read.id
                )));
            }
        }
        Ok(())
    }

    fn run_stood(&self, id: NodeId) {
        if let Some(node) = self.0.state.borrow_mut().graph.node_mut(id) {
            node.retries = 0;
        }
    }

    /// A commit or seal of a run was refused: restore the causes and re-arm exactly that instance, a bounded
    /// number of times (RUN-540, RUN-544, I-18).
    fn run_failed(
        &self,
        id: NodeId,
        key: Option<ScopeKey>,
        causes: Vec<crate::address::Address>,
        error: &CommitError,
    ) {
        let action = {
            let mut state = self.0.state.borrow_mut();
            let Some(node) = state.graph.node_mut(id) else {
                return;
            };
            let action = node.spec.action_id.clone();
            if !retriable(error) || node.retries >= MAX_REACTIVE_RETRIES {
                drop(state);
                self.report(&action, &RunnerError::Commit(error.clone()));
                return;
            }
            node.retries += 1;
            for cause in causes {
                if !node.causes.contains(&cause) {
                    node.causes.push(cause);
                }
            }
            if let (Some(fan_out), Some(key)) = (&mut node.fan_out, &key) {
                fan_out.rearm(key);
            }
            state.graph.reconsider(id);
            action
        };
        tracing::debug!(action = %action, %error, "run re-armed");
        self.queue_execution();
    }
}

/// RUN-548, RUN-543: a run that reached for a scope its identity cannot resolve leaves nothing behind.
fn unresolvable(identity: Option<&ScopeIdentity>, discovered: Scope) -> Result<(), RunFailure> {
    match identity {
        Some(identity) if ScopeKey::resolve(discovered, identity).is_err() => {
            Err(RunFailure::Withdrawn(refusal::UNDEMANDED_NARROWING.to_owned()))
        }
        Some(_) | None => Ok(()),
    }
}

/// RUN-547.
fn emitted_too_early(stamp: &RunStamp, discovered: Scope) -> bool {
    stamp.attribution_from_scope && stamp.emitted_scope.is_some_and(|emitted| emitted < discovered)
}

/// Which failures a reactive run is tried again after (RUN-96 restricted to what changes by itself).
fn retriable(error: &CommitError) -> bool {
    match error.name {
        CommitErrorName::Conflict
        | CommitErrorName::Inconsistent
        | CommitErrorName::Connection
        | CommitErrorName::InvalidMessage => true,
        CommitErrorName::Aborted => error.message != refusal::FOREIGN_WRITE,
        CommitErrorName::Authorization => error.retriable,
        CommitErrorName::PreconditionFailed
        | CommitErrorName::RowLabel
        | CommitErrorName::Protocol
        | CommitErrorName::Session
        | CommitErrorName::EventAppendDuplicate
        | CommitErrorName::SpeculativeBasis
        | CommitErrorName::Convergence
        | CommitErrorName::Transaction => false,
    }
}

/// RUN-1102: text of a caught panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}
