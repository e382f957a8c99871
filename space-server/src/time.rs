//! Time as the serving loop gets it: both clocks and the sleeps come from the host's configuration, so that no test
//! waits for a wall clock (SS-7). Used by every room that waits or stamps.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use memory_engine::lease::Clocks;
use memory_server::{Clock, SystemClock};

/// A sleep that is over when it resolves.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes sleeps.
pub trait Sleeper: Send + Sync + 'static {
    /// Resolves after `how_long`.
    fn sleep(&self, how_long: Duration) -> Sleep;
}

/// Sleeps on the executor's timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecutorSleeper;

impl Sleeper for ExecutorSleeper {
    fn sleep(&self, how_long: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(how_long))
    }
}

/// Clocks and sleeps of one host; clones share them.
#[derive(Clone)]
pub struct HostTime {
    clock: Arc<dyn Clock>,
    sleeper: Arc<dyn Sleeper>,
}

impl HostTime {
    /// Time from the given sources; the clock should be the memory server's own, which judges the same leases.
    pub fn new(clock: Arc<dyn Clock>, sleeper: Arc<dyn Sleeper>) -> HostTime {
        HostTime { clock, sleeper }
    }

    /// The machine's time.
    pub fn system() -> HostTime {
        HostTime::new(Arc::new(SystemClock::default()), Arc::new(ExecutorSleeper))
    }

    /// Milliseconds since 1970.
    pub fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// Milliseconds of a clock that never goes back.
    pub fn monotonic_ms(&self) -> i64 {
        i64::try_from(self.clock.monotonic_ms()).unwrap_or(i64::MAX)
    }

    /// Both clocks, as the lease judges them (ENG-705).
    pub fn clocks(&self) -> Clocks {
        Clocks {
            wall_ms: self.wall_ms(),
            monotonic_ms: self.monotonic_ms(),
        }
    }

    /// Resolves after `how_long`.
    pub fn sleep(&self, how_long: Duration) -> Sleep {
        self.sleeper.sleep(how_long)
    }
}

impl std::fmt::Debug for HostTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostTime")
            .field("wall_ms", &self.wall_ms())
            .finish_non_exhaustive()
    }
}

/// The same time in the shape a runtime takes it.
#[derive(Clone)]
pub(crate) struct RuntimeTime(pub(crate) HostTime);

impl runner::ambient::Clock for RuntimeTime {
    fn now_ms(&self) -> i64 {
        self.0.wall_ms()
    }
}

impl runner::runtime::Timer for RuntimeTime {
    fn sleep_until(&self, at_ms: i64) -> Pin<Box<dyn Future<Output = ()>>> {
        let distance = u64::try_from(at_ms.saturating_sub(self.0.wall_ms())).unwrap_or(0);
        self.0.sleep(Duration::from_millis(distance))
    }
}
