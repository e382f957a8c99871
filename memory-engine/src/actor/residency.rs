//! How many store files this process holds open. A file costs descriptors and memory, and a process may serve thousands of
//! spaces of which few are in use: where there are many open ones, those without work close soon, and a further one waits
//! a little for that before it opens.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Stores open in this process, by writers.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// How long an idle store stays open where there are too many.
pub(super) const SOON: Duration = Duration::from_millis(100);

/// How long a store waits for others to close, and how long between looks.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// One open store; dropped with it.
pub(super) struct Resident(());

impl Resident {
    /// To be made before a store is opened. Waits while twice as many as the `crowd` are open, but not for ever: if all of
    /// them are in use, this one is too.
    pub(super) fn enter(crowd: usize) -> Resident {
        let mut waited = Duration::ZERO;
        while OPEN.load(Ordering::Relaxed) >= crowd.saturating_mul(2) && waited < PATIENCE {
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
        OPEN.fetch_add(1, Ordering::Relaxed);
        Resident(())
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether more stores are open than may stay so without work.
pub(super) fn is_crowded(crowd: usize) -> bool {
    OPEN.load(Ordering::Relaxed) > crowd
}
