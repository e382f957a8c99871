//! The pass: an event, then iterations over what is stale and demanded, until nothing is (RUN-530…536, 560).

use std::collections::{BTreeSet, VecDeque};

use crate::runtime::Posture;
use crate::scheduler::events::Park;
use crate::scheduler::gates::{
    CONVERGENCE_HOLD_PASSES, MAX_ITERS, OFF_BUDGET_WARNING_EVERY, PASS_RUN_BUDGET, YIELD_SLICE_MS,
};
use crate::scheduler::node::{Node, NodeId, NodeKind, Status};
use crate::scheduler::{Scheduler, State, Step, order};

/// A pass under way. It survives between steps.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    events_done: bool,
    iteration: u32,
    work: VecDeque<NodeId>,
    /// Nodes that ran in this pass.
    pub(crate) ran: BTreeSet<NodeId>,
    /// Nodes demanded for this pass only: registered by a run, or upstream of the head event (RUN-554 (a)).
    pub(crate) transient: BTreeSet<NodeId>,
}

/// One unit of work, as [`Scheduler::advance`] found it.
enum Unit {
    /// Something ran.
    Ran,
    /// Bookkeeping only; go on.
    Moved,
    /// Nothing to do.
    Quiet,
}

impl Scheduler {
    /// Works until the slice is used up (serving posture) or nothing can run now. Synchronous: never waits.
    pub fn step(&self) -> Step {
        let started = self.0.clock.now_ms();
        loop {
            match self.advance() {
                Unit::Ran => {
                    let spent = self.0.clock.now_ms() - started;
                    if self.0.posture == Posture::Serving && spent >= YIELD_SLICE_MS {
                        // The observer comes first: the host renews its lease there (RUN-536).
                        let observer = self.0.host.borrow().yield_observer.clone();
                        if let Some(observer) = observer {
                            observer();
                        }
                        return Step::Yielded;
                    }
                }
                Unit::Moved => {}
                Unit::Quiet => {
                    return Step::Quiet {
                        wake_at: self.wake_at(),
                    };
                }
            }
        }
    }

    /// True when nothing runs, nothing runnable waits and no event is queued (RUN-560). Synchronous (§5.8).
    pub fn is_idle(&self) -> bool {
        let now = self.0.clock.now_ms();
        let state = self.0.state.borrow();
        if state.disposed {
            return true;
        }
        let busy = state.executing || state.background > 0 || state.tick || state.pass.is_some();
        let holding = state.held_passes > 0 && state.held_passes <= CONVERGENCE_HOLD_PASSES;
        !busy
            && state.queue.is_empty()
            && !state.graph.due().any(|node| {
                !node.gate.closed(now)
                    || first_run_held(node, now)
                    || (holding && idle_relevant(node) && node.gate.backed_off(now))
            })
    }

    /// True when a debounce or throttle window will open a run later (SS-502).
    pub fn has_armed_gate_wake(&self) -> bool {
        let now = self.0.clock.now_ms();
        self.0.state.borrow().graph.due().any(|node| node.gate.armed(now))
    }

    /// The nearest instant at which a gated node or a parked event becomes eligible (RUN-535).
    fn wake_at(&self) -> Option<i64> {
        let now = self.0.clock.now_ms();
        let state = self.0.state.borrow();
        let gates = state.graph.due().filter_map(|n| n.gate.eligible_at());
        let retries = state.queue.iter().filter_map(|(_, queued)| match queued.park {
            Park::Until(at) | Park::Gated(at) => Some(at),
            Park::Ready | Park::Loading(_) | Park::Loads(_) | Park::Upstream | Park::Presync(_) => None,
        });
        gates.chain(retries).filter(|at| *at > now).min()
    }

    fn advance(&self) -> Unit {
        let now = self.0.clock.now_ms();
        {
            let mut state = self.0.state.borrow_mut();
            if state.disposed || state.executing {
                // A step from inside a body would run one action inside another.
                return Unit::Quiet;
            }
            if state.pass.is_none() {
                let due =
                    state.tick || state.queue_due(now) || state.graph.due().any(|node| runnable(node, now));
                if !due {
                    return Unit::Quiet;
                }
                state.tick = false;
                let fresh: BTreeSet<NodeId> = state
                    .graph
                    .due()
                    .filter(|node| node.provisional)
                    .map(|node| node.id)
                    .collect();
                state.pass = Some(Pass {
                    transient: fresh,
                    ..Pass::default()
                });
            }
            if state.pass.as_ref().is_some_and(|pass| !pass.events_done) {
                if let Some(pass) = state.pass.as_mut() {
                    pass.events_done = true;
                }
                drop(state);
                return if self.event_phase() {
                    Unit::Ran
                } else {
                    Unit::Moved
                };
            }
        }
        let next = {
            let mut state = self.0.state.borrow_mut();
            loop {
                let Some(pass) = state.pass.as_mut() else {
                    return Unit::Moved;
                };
                match pass.work.pop_front() {
                    Some(id) if state.graph.node(id).is_some_and(|node| runnable(node, now)) => {
                        break Some(id);
                    }
                    Some(_) => {}
                    None => break None,
                }
            }
        };
        match next {
            Some(id) => {
                self.run_node(id);
                Unit::Ran
            }
            None => {
                self.next_iteration(now);
                Unit::Moved
            }
        }
    }

    /// Fills the next iteration, or ends the pass.
    fn next_iteration(&self, now: i64) {
        let mut state = self.0.state.borrow_mut();
        let set = iteration_set(&state, now);
        let Some(pass) = state.pass.as_ref() else { return };
        if set.is_empty() || pass.iteration == MAX_ITERS {
            let again = end_pass(&mut state, now);
            drop(state);
            if again {
                self.queue_execution();
            }
            return;
        }
        let work = order::sorted(&state.graph, &set).into();
        if let Some(pass) = state.pass.as_mut() {
            pass.iteration += 1;
            pass.work = work;
        }
    }

    /// Makes nodes demanded until the pass ends.
    pub(crate) fn demand_for_pass(&self, ids: impl IntoIterator<Item = NodeId>) {
        let mut state = self.0.state.borrow_mut();
        for id in ids {
            state.graph.set_root(id, |node| node.provisional = true);
            if let Some(pass) = state.pass.as_mut() {
                pass.transient.insert(id);
            }
        }
    }
}

/// May this node run in the present pass (I-2)?
fn runnable(node: &Node, now: i64) -> bool {
    node.stale() && node.live() && !node.gate.closed(now) && node.runs_this_pass < PASS_RUN_BUDGET
}

/// RUN-532.
fn iteration_set(state: &State, now: i64) -> BTreeSet<NodeId> {
    let graph = &state.graph;
    let mut seeds: BTreeSet<NodeId> = graph
        .due()
        .filter(|n| runnable(n, now) && !n.is_materializer())
        .map(|n| n.id)
        .collect();
    if seeds.is_empty() {
        seeds = graph.due().filter(|n| runnable(n, now)).map(|n| n.id).collect();
    }
    let mut set = seeds.clone();
    for id in &seeds {
        let Some(node) = graph.node(*id) else { continue };
        if node.status == Status::NeverRan {
            set.extend(node.writers.iter().copied());
        }
    }
    // The wavefront and one clean tier behind it: recursion goes through stale readers only.
    let mut waiting: Vec<NodeId> = seeds.into_iter().collect();
    while let Some(id) = waiting.pop() {
        let Some(node) = graph.node(id) else { continue };
        for reader in node
            .readers
            .iter()
            .filter_map(|r| graph.node(*r))
            .filter(|r| r.live())
        {
            if set.insert(reader.id) && reader.stale() {
                waiting.push(reader.id);
            }
        }
    }
    set
}

/// RUN-534: closes the pass, backs off what did not settle, and answers whether another pass is due.
fn end_pass(state: &mut State, now: i64) -> bool {
    let Some(pass) = state.pass.take() else {
        return false;
    };
    let mut unsettled = false;
    let mut untouched = false;
    // Whoever ran, and whoever is still due; everybody else is as the pass found him.
    let mut concerned = pass.ran;
    concerned.extend(state.graph.due().map(|node| node.id));
    for id in concerned {
        let Some(node) = state.graph.node_mut(id) else {
            continue;
        };
        let runs = std::mem::take(&mut node.runs_this_pass);
        let waiting = node.stale() && node.live() && !node.gate.closed(now);
        match (waiting, runs) {
            (true, 0) => untouched = true,
            (true, _) => {
                node.gate.back_off(now);
                unsettled = true;
                if node.gate.streak % OFF_BUDGET_WARNING_EVERY == 1 {
                    tracing::warn!(action = %node.spec.action_id, runs, "graph did not settle; node backed off");
                }
            }
            (false, 0) => {}
            (false, _) if node.stale() => {}
            (false, _) => node.gate.converged(),
        }
    }
    for id in pass.transient {
        state.graph.set_root(id, |node| node.provisional = false);
    }
    let still_backed_off = state.graph.due().any(|node| node.gate.backed_off(now));
    state.held_passes = match (unsettled, still_backed_off) {
        (true, _) => state.held_passes + 1,
        // A pass over other work does not end the episode.
        (false, true) => state.held_passes,
        (false, false) => 0,
    };
    untouched || state.queue_due(now)
}

impl State {
    /// Can the head event be looked at?
    fn queue_due(&self, now: i64) -> bool {
        self.queue
            .head()
            .and_then(|slot| self.queue.get(slot))
            .is_some_and(|queued| match &queued.park {
                Park::Ready | Park::Upstream => true,
                Park::Until(at) | Park::Gated(at) => *at <= now,
                Park::Loading(promise) => promise.is_settled(),
                Park::Loads(promise) => promise.is_settled(),
                Park::Presync(promise) => promise.is_settled(),
            })
    }
}

fn idle_relevant(node: &Node) -> bool {
    node.spec.kind == NodeKind::Effect || node.is_materializer() || node.demanded || node.live_refs > 0
}

fn first_run_held(node: &Node, now: i64) -> bool {
    node.status == Status::NeverRan && node.gate.closed(now) && !node.gate.backed_off(now)
}
