//! The end of a tenure (SS-503): everything of the old runtime is gone before the lease is given back, so that
//! nothing of it can commit under a successor.

use memory_wire::SpaceId;
use runner::runtime::Runtime;
use runner::serving_runtime::ServingRuntime;
use tokio::task::JoinHandle;

use super::SpaceLoop;
use crate::statistics::Statistics;

/// Why a space is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParkReason {
    /// Nobody was there and nothing was owed for a whole idle period.
    Idle,
    /// Another holder has the lease; nothing began.
    LeaseUnavailable,
    /// The lease was lost to another holder.
    LeaseLost,
    /// A wave was withdrawn because its tenure ended; a fresh activation recomputes it (SS-206).
    LeaseLostAbort,
    /// The loop, or its activation, failed.
    LoopFailed,
    /// The host closed.
    HostClosed,
}

impl ParkReason {
    fn as_str(self) -> &'static str {
        match self {
            ParkReason::Idle => "idle",
            ParkReason::LeaseUnavailable => "lease-unavailable",
            ParkReason::LeaseLost => "lease-lost",
            ParkReason::LeaseLostAbort => "lease-lost-abort",
            ParkReason::LoopFailed => "loop-failed",
            ParkReason::HostClosed => "host-closed",
        }
    }
}

/// How a loop ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) reason: ParkReason,
    /// Some wave of it landed.
    pub(crate) committed: bool,
}

impl SpaceLoop {
    pub(super) async fn park(self, reason: ParkReason) -> Ended {
        tracing::info!(space = %self.id, reason = reason.as_str(), "parking");
        self.renewer.abort();
        if let Some(open) = self.destination.detach() {
            let (_, _, layers) = open.into_parts();
            layers.withdraw("the space is parked");
        }
        let disposed = tokio::select! {
            biased;
            () = dispose(&self.runtime) => true,
            () = self.shared.time.sleep(self.shared.settings.dispose_timeout) => false,
        };
        if !disposed {
            tracing::warn!(space = %self.id, "runtime abandoned: disposing took too long");
            self.shared.statistics.update(|s| s.park_dispose_timeouts += 1);
        }
        if let Err(error) = self.lease.release().await {
            // It expires by itself.
            tracing::warn!(space = %self.id, %error, "lease not released");
        }
        Ended {
            reason,
            committed: self.committed,
        }
    }
}

async fn dispose(runtime: &Runtime) {
    end(runtime);
    // What closing told whoever waited runs now.
    tokio::task::yield_now().await;
}

fn end(runtime: &Runtime) {
    runtime.serving_yield_observer(None);
    runtime.clear_seal_destination();
    ServingRuntime::dispose(runtime);
    runtime.storage().close();
}

/// Ends a runtime with whatever holds this: an activation that does not come to its end, a loop that parks, a loop
/// that panics. Ending it twice is ending it once.
pub(crate) struct RuntimeGuard(Runtime);

impl RuntimeGuard {
    pub(crate) fn new(runtime: Runtime) -> RuntimeGuard {
        RuntimeGuard(runtime)
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        if !self.0.scheduler().is_disposed() {
            end(&self.0);
        }
    }
}

/// Counts a space as active for as long as it lives.
pub(crate) struct ActiveSpace {
    space: SpaceId,
    statistics: Statistics,
}

impl ActiveSpace {
    pub(crate) fn new(space: SpaceId, statistics: Statistics) -> ActiveSpace {
        statistics.update(|s| s.active_spaces += 1);
        ActiveSpace { space, statistics }
    }
}

impl Drop for ActiveSpace {
    fn drop(&mut self) {
        self.statistics.update(|s| {
            s.active_spaces = s.active_spaces.saturating_sub(1);
            s.note_lag(&self.space, None);
        });
    }
}

/// The timer that renews the lease; it ends with the loop.
pub(crate) struct Renewer(JoinHandle<()>);

impl Renewer {
    pub(crate) fn new(task: JoinHandle<()>) -> Renewer {
        Renewer(task)
    }

    fn abort(&self) {
        self.0.abort();
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        self.abort();
    }
}
