//! Every knob of the serving loop, with unit, default and environment override (SS-10…SS-13). A bad value never
//! fails the start: it is warned about and the default is used.

use std::num::NonZeroU32;
use std::time::Duration;

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
    /// The defaults with what `lookup` (normally the environment) overrides.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> LoopSettings {
        let mut settings = LoopSettings::default();
        if let Some(ms) = read(&lookup, "SERVER_EXECUTION_FLUSH_DEADLINE_MS", positive) {
            settings.flush_deadline = Duration::from_millis(u64::from(ms.get()));
        }
        if let Some(ms) = read(&lookup, "SERVER_EXECUTION_LEASE_TTL_MS", positive) {
            settings.lease_ttl = Duration::from_millis(u64::from(ms.get()));
            settings.lease_renew = settings.lease_ttl / 3;
        }
        if let Some(cap) = read(&lookup, "SERVER_EXECUTION_MAX_OUTSTANDING_EFFECTS", digits) {
            settings.outstanding_effects = if cap == 0 {
                OutstandingEffects::Unbounded
            } else {
                OutstandingEffects::AtMost(cap)
            };
        }
        settings.egress_per_second = read(&lookup, "SERVER_EXECUTION_EGRESS_RATE_PER_S", positive);
        settings
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

/// `EXPERIMENTAL_SERVER_EXECUTION`: `true` or `false`, otherwise the given default with a warning (SS-10, SS-11).
pub fn server_execution(text: Option<&str>, default: bool) -> bool {
    match text {
        None | Some("") => default,
        Some("true") => true,
        Some("false") => false,
        Some(other) => {
            tracing::warn!(
                value = other,
                "EXPERIMENTAL_SERVER_EXECUTION is neither true nor false; using {default}"
            );
            default
        }
    }
}

fn read<T>(lookup: &impl Fn(&str) -> Option<String>, name: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
    let text = lookup(name).filter(|text| !text.is_empty())?;
    let parsed = parse(&text);
    if parsed.is_none() {
        tracing::warn!(
            name,
            value = text,
            "not a number this setting takes; using the default"
        );
    }
    parsed
}

/// Digits and nothing else: reading a prefix of `12abc` as 12 is the bug this avoids.
fn digits(text: &str) -> Option<u32> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

fn positive(text: &str) -> Option<NonZeroU32> {
    digits(text).and_then(NonZeroU32::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> LoopSettings {
        LoopSettings::from_environment(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn ss_12_a_bad_value_means_the_default() {
        for bad in ["12abc", "-5", "0", "1e3", " 7", "99999999999"] {
            assert_eq!(
                with("SERVER_EXECUTION_FLUSH_DEADLINE_MS", bad),
                LoopSettings::default(),
                "{bad}"
            );
        }
        assert_eq!(
            with("SERVER_EXECUTION_FLUSH_DEADLINE_MS", "250").flush_deadline,
            Duration::from_millis(250)
        );
    }

    #[test]
    fn ss_13_the_environments_zero_is_unbounded() {
        let name = "SERVER_EXECUTION_MAX_OUTSTANDING_EFFECTS";
        assert_eq!(with(name, "0").outstanding_effects, OutstandingEffects::Unbounded);
        assert_eq!(with(name, "3").outstanding_effects, OutstandingEffects::AtMost(3));
        assert_eq!(
            with(name, "-1").outstanding_effects,
            OutstandingEffects::AtMost(16)
        );
    }

    #[test]
    fn ss_105_backoff_doubles_to_a_maximum() {
        let s = LoopSettings::default();
        let ms: Vec<u128> = [0, 1, 2, 3, 11, 12, 40]
            .iter()
            .map(|n| s.backoff(*n).as_millis())
            .collect();
        assert_eq!(ms, [0, 25, 50, 100, 25_600, 30_000, 30_000]);
    }

    #[test]
    fn ss_10_flag_has_two_values() {
        assert!(server_execution(Some("true"), false));
        assert!(!server_execution(Some("false"), true));
        assert!(server_execution(Some("TRUE"), true) && !server_execution(Some("1"), false));
        assert!(!server_execution(None, false));
    }
}
