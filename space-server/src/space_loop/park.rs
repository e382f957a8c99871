//! The end of a tenure (SS-503): everything of the old runtime is gone before the lease is given back, so that
//! nothing of it can commit under a successor.

use std::rc::Rc;

use runner::runtime::Runtime;
use runner::serving_runtime::ServingRuntime;

use super::SpaceLoop;

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
        self.runtime.serving_yield_observer(None);
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
        self.shared.statistics.update(|s| {
            s.active_spaces = s.active_spaces.saturating_sub(1);
            s.note_lag(&self.id, None);
        });
        Ended {
            reason,
            committed: self.committed,
        }
    }
}

/// Ends a runtime and its lines to the server.
pub(crate) async fn dispose(runtime: &Runtime) {
    runtime.clear_seal_destination();
    ServingRuntime::dispose(runtime);
    runtime.storage().close();
    // What closing told whoever waited runs now.
    tokio::task::yield_now().await;
}

/// A runtime that is disposed of when an activation does not come to its end.
pub(crate) struct DisposeOnDrop(Option<Rc<Runtime>>);

impl DisposeOnDrop {
    pub(crate) fn new(runtime: Runtime) -> DisposeOnDrop {
        DisposeOnDrop(Some(Rc::new(runtime)))
    }

    /// The activation succeeded.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for DisposeOnDrop {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.clear_seal_destination();
            ServingRuntime::dispose(&*runtime);
            runtime.storage().close();
        }
    }
}
