//! How many store files this process holds open. A file costs descriptors and memory, and a process may serve thousands of
//! spaces of which few are in use: where there are many open ones, those without work close soon, and a further one waits
//! a little for that before it opens.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Stores open in this process, by writers.
static OPEN: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// How long an idle store stays open where there are too many.
pub(super) const SOON: Duration = Duration::from_millis(100);

/// How long a store waits for others to close.
const PATIENCE: Duration = Duration::from_secs(2);

/// One open store; dropped with it.
pub(super) struct Resident(());

impl Resident {
    /// To be made before a store is opened. Waits while twice as many as the `crowd` are open, but not for ever: if all of
    /// them are in use, this one is too.
    pub(super) fn enter(crowd: usize) -> Resident {
        let mut open = OPEN.lock();
        let full = |open: &mut usize| *open >= crowd.saturating_mul(2);
        CLOSED.wait_while_for(&mut open, full, PATIENCE);
        *open += 1;
        Resident(())
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        *OPEN.lock() -= 1;
        CLOSED.notify_one();
    }
}

/// Whether more stores are open than may stay so without work.
pub(super) fn is_crowded(crowd: usize) -> bool {
    *OPEN.lock() > crowd
}
