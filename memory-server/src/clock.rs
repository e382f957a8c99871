//! Time as the server sees it: wall time for what others read (challenges, leases, blobs), monotonic time for
//! lifetimes inside the process. Both are injected, so that no test waits (SRV-301, SRV-312).

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Source of time. The production clock is [`SystemClock`].
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch.
    fn wall_ms(&self) -> i64;
    /// Milliseconds since an arbitrary fixed point; never goes back.
    fn monotonic_ms(&self) -> u64;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that reads the machine's monotonic clock"
    )]
    fn default() -> SystemClock {
        SystemClock {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that reads the machine's wall clock"
    )]
    fn wall_ms(&self) -> i64 {
        // A clock before 1970 is answered as the epoch: challenges then expire early, which is safe.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
