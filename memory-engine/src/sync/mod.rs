//! The primitives by which threads of one process wait for each other: locks, condition variables, atomics and threads of
//! the actor, and of whoever builds on it. With the feature `schedules` they are the ones of a scheduler that plays a
//! test's interleavings through, so that the very code that serves is what such a test runs.

use std::time::{Duration, Instant};

#[cfg(feature = "schedules")]
mod scheduled;

#[cfg(not(feature = "schedules"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(feature = "schedules")]
pub use scheduled::{Condvar, Mutex, MutexGuard, RwLock};

/// Whether a wait with a time limit is cut short by time. A schedule has none, so nobody can be waited for in it who need
/// not come.
pub const TIME_PASSES: bool = !cfg!(feature = "schedules");

#[cfg(feature = "schedules")]
pub use shuttle::{sync::atomic, thread};
#[cfg(not(feature = "schedules"))]
pub use std::{sync::atomic, thread};

/// A while that a thread stays awake for others, since to be woken by them would take longer. Over at once in a schedule.
pub(crate) struct Vigil {
    ends: Instant,
}

impl Vigil {
    /// One that begins now.
    pub(crate) fn of(length: Duration) -> Vigil {
        Vigil {
            ends: Instant::now() + length,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        !TIME_PASSES || Instant::now() >= self.ends
    }
}

/// When something is given up. Never in a schedule, where no time passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// Nothing when it is farther away than clocks go.
    at: Option<Instant>,
}

impl Deadline {
    /// One so far from now.
    pub(crate) fn after(length: Duration) -> Deadline {
        Deadline {
            at: Instant::now().checked_add(length),
        }
    }

    pub(crate) fn has_passed(self) -> bool {
        TIME_PASSES && self.at.is_some_and(|at| Instant::now() >= at)
    }
}
