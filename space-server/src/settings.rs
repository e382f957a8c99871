//! Every knob of the serving loop, with unit, default and environment override (SS-10…SS-13). A bad value never
//! fails the start: it is warned about and the default is used.

use std::num::NonZeroU32;
use std::time::Duration;

use memory_server::knobs::ExecutionKnobs;

/// Timings, thresholds and budgets of the serving loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopSettings {
    /// Settling longer than this cuts the wave (`SERVER_EXECUTION_FLUSH_DEADLINE_MS`).
    pub flush_deadline: Duration,
    /// Idle time after which a space without clients parks.
    pub idle_before_park: Duration,
    /// Time box for disposing a runtime at park.
    pub dispose_timeout: Duration,
    /// Lease time to live (`SERVER_EXECUTION_LEASE_TTL_MS`): how long a space waits for a successor after its
    /// process was killed. Renewed every third of it.
    pub lease_ttl: Duration,
    /// Interval of the lease's renew timer.
    pub lease_renew: Duration,
    /// Deferred attempts after which an event is dropped with a notice.
    pub event_deferrals: u32,
    /// Longest wait before deferred events are scanned again.
    pub event_rescan: Duration,
    /// Demand wakes within this of the first are one wake.
    pub demand_grace: Duration,
    /// Consecutive deferred structure loads that count as stuck.
    pub structure_stuck: u32,
    /// Network effects in flight at once (`SERVER_EXECUTION_MAX_OUTSTANDING_EFFECTS`).
    pub outstanding_effects: OutstandingEffects,
    /// Network effects started per second (`SERVER_EXECUTION_EGRESS_RATE_PER_S`); `None` = unpaced.
    pub egress_per_second: Option<NonZeroU32>,
    /// First wait after a failed loop; doubles per failure.
    pub backoff_base: Duration,
    /// Longest wait after failures.
    pub backoff_max: Duration,
    /// Spaces probed at once at start.
    pub boot_concurrency: usize,
}

/// The cap on effects in flight. The environment's `0` means unbounded; a cap of zero given directly holds every
/// effect, and is not what the environment means (SS-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutstandingEffects {
    /// No cap.
    Unbounded,
    /// At most this many.
    AtMost(u32),
}

impl Default for LoopSettings {
    fn default() -> Self {
        LoopSettings {
            flush_deadline: Duration::from_millis(100),
            idle_before_park: Duration::from_secs(30),
            dispose_timeout: Duration::from_secs(5),
            lease_ttl: Duration::from_secs(15),
            lease_renew: Duration::from_secs(5),
            event_deferrals: 8,
            event_rescan: Duration::from_millis(250),
            demand_grace: Duration::from_millis(300),
            structure_stuck: 8,
            outstanding_effects: OutstandingEffects::AtMost(16),
            egress_per_second: None,
            backoff_base: Duration::from_millis(25),
            backoff_max: Duration::from_secs(30),
            boot_concurrency: 4,
        }
    }
}

impl LoopSettings {
    /// The defaults with what the operator set.
    pub fn from_knobs(knobs: &ExecutionKnobs) -> LoopSettings {
        LoopSettings {
            flush_deadline: knobs.flush_deadline,
            lease_ttl: knobs.lease_ttl,
            lease_renew: knobs.lease_ttl / 3,
            outstanding_effects: match knobs.max_outstanding_effects {
                Some(cap) => OutstandingEffects::AtMost(cap.get()),
                None => OutstandingEffects::Unbounded,
            },
            egress_per_second: knobs.egress_per_second,
            ..LoopSettings::default()
        }
    }

    /// How long to wait before activation number `failures + 1` (SS-105): zero without failures, then the base
    /// doubling up to the maximum.
    pub fn backoff(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => self
                .backoff_base
                .saturating_mul(1 << (n - 1).min(30))
                .min(self.backoff_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ss_105_backoff_doubles_to_a_maximum() {
        let s = LoopSettings::default();
        let ms: Vec<u128> = [0, 1, 2, 3, 11, 12, 40]
            .iter()
            .map(|n| s.backoff(*n).as_millis())
            .collect();
        assert_eq!(ms, [0, 25, 50, 100, 25_600, 30_000, 30_000]);
    }
}
