//! When a node may run: debounce, throttle and convergence backoff (RUN-530, 534, 535). Times are milliseconds of
//! the injected clock.

use crate::scheduler::node::{NodeKind, Timing};

/// Settle iterations of one pass.
pub(crate) const MAX_ITERS: u32 = 10;
/// Runs of one node (instance runs count as one) in one pass before it is backed off.
pub(crate) const PASS_RUN_BUDGET: u32 = 10;
/// Reactive retries of one node after failed commits.
pub(crate) const MAX_REACTIVE_RETRIES: u32 = 10;
/// Passes for which `idle()` waits on convergence backoff, per episode.
pub(crate) const CONVERGENCE_HOLD_PASSES: u32 = 3;
/// Work between two cooperative yields on the serving posture.
pub(crate) const YIELD_SLICE_MS: i64 = 16;
/// Off-budget passes between two warnings of one node.
pub(crate) const OFF_BUDGET_WARNING_EVERY: u32 = 100;
/// How long an initial run is held for its space to sync (RUN-828).
pub(crate) const INITIAL_SYNC_HOLD_MS: i64 = 2_000;

const BACKOFF_BASE_MS: i64 = 250;
const BACKOFF_MAX_MS: i64 = 2_000;
const AUTO_DEBOUNCE_MS: i64 = 100;
const AUTO_DEBOUNCE_RUNS: u32 = 3;
const AUTO_DEBOUNCE_AVERAGE_MS: i64 = 50;

/// The gates of one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    debounce_until: Option<i64>,
    throttle_until: Option<i64>,
    backoff_until: Option<i64>,
    /// Held until its space synced, or this instant.
    hold_until: Option<i64>,
    /// Consecutive passes that ended with this node off budget.
    pub(crate) streak: u32,
    runs: u32,
    total_run_ms: i64,
}

impl Gate {
    /// The earliest instant at which the node may run, or `None` for now.
    pub(crate) fn eligible_at(&self) -> Option<i64> {
        [
            self.debounce_until,
            self.throttle_until,
            self.backoff_until,
            self.hold_until,
        ]
        .into_iter()
        .flatten()
        .max()
    }

    /// True when the node has to wait.
    pub(crate) fn closed(&self, now: i64) -> bool {
        self.eligible_at().is_some_and(|at| at > now)
    }

    /// True when convergence backoff alone, not a requested gate, keeps the node waiting.
    pub(crate) fn backed_off(&self, now: i64) -> bool {
        self.backoff_until.is_some_and(|at| at > now)
    }

    /// True when a debounce or throttle window is open: a trailing run is due (SS-502).
    pub(crate) fn armed(&self, now: i64) -> bool {
        [self.debounce_until, self.throttle_until]
            .into_iter()
            .flatten()
            .any(|at| at > now)
    }

    /// The node became invalid: the debounce window starts anew.
    pub(crate) fn invalidated(&mut self, kind: NodeKind, timing: &Timing, now: i64) {
        if timing.no_debounce || (self.runs == 0 && !timing.debounce_first) {
            return;
        }
        let window = match (timing.debounce, kind) {
            (Some(requested), _) => Some(requested),
            (None, NodeKind::Effect) if self.slow() => Some(AUTO_DEBOUNCE_MS),
            (None, NodeKind::Effect | NodeKind::Computation) => None,
        };
        if let Some(window) = window {
            self.debounce_until = Some(now + window);
        }
    }

    /// The node ran from `started` to `finished`.
    pub(crate) fn ran(&mut self, timing: &Timing, started: i64, finished: i64) {
        self.runs += 1;
        self.total_run_ms += (finished - started).max(0);
        self.debounce_until = None;
        self.hold_until = None;
        self.throttle_until = timing.throttle.map(|window| finished + window);
    }

    /// A pass ended with the node off budget (RUN-534).
    pub(crate) fn back_off(&mut self, now: i64) {
        let delay = BACKOFF_BASE_MS
            .saturating_mul(1 << self.streak.min(16))
            .min(BACKOFF_MAX_MS);
        self.backoff_until = Some(now + delay);
        self.streak += 1;
    }

    /// A pass ended with the node inside budget.
    pub(crate) fn converged(&mut self) {
        self.streak = 0;
        self.backoff_until = None;
    }

    /// Holds the first run until `at`, unless released earlier.
    pub(crate) fn hold(&mut self, at: i64) {
        self.hold_until = Some(at);
    }

    /// The awaited sync came.
    pub(crate) fn release_hold(&mut self) {
        self.hold_until = None;
    }

    fn slow(&self) -> bool {
        self.runs >= AUTO_DEBOUNCE_RUNS
            && self.total_run_ms >= AUTO_DEBOUNCE_AVERAGE_MS * i64::from(self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_534_backoff_doubles_to_its_cap() {
        let mut gate = Gate::default();
        let mut delays = Vec::new();
        for _ in 0..6 {
            gate.back_off(0);
            delays.push(gate.eligible_at());
        }
        assert_eq!(delays, [250, 500, 1000, 2000, 2000, 2000].map(Some));
        gate.converged();
        assert_eq!(gate.eligible_at(), None);
    }

    #[test]
    fn run_535_debounce_gates_only_after_the_first_run_and_rearms() {
        let timing = Timing {
            debounce: Some(50),
            ..Timing::default()
        };
        let mut gate = Gate::default();
        gate.invalidated(NodeKind::Computation, &timing, 0);
        assert!(!gate.closed(0));
        gate.ran(&timing, 0, 1);
        gate.invalidated(NodeKind::Computation, &timing, 10);
        gate.invalidated(NodeKind::Computation, &timing, 40);
        assert!(gate.closed(89) && !gate.closed(90) && gate.armed(80));
    }

    #[test]
    fn run_535_only_slow_effects_debounce_by_themselves() {
        let timing = Timing::default();
        for (kind, gated) in [(NodeKind::Effect, true), (NodeKind::Computation, false)] {
            let mut gate = Gate::default();
            for start in [0, 100, 200] {
                gate.ran(&timing, start, start + 60);
            }
            gate.invalidated(kind, &timing, 300);
            assert_eq!(gate.closed(300), gated);
        }
    }
}
