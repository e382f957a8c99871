//! Stores without work: open, but without a thread of their own, so that a process can have thousands of them. One thread
//! looks after all that there are in the process: it brings them to rest, closes those that have rested long enough or are
//! too many (field fault F39), and ends when none is left.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::ActorOptions;
use super::queue::Queue;
use super::residency::{SOON, is_crowded};
use super::writer::{REST, Writer};

/// A store at rest.
struct Resting {
    queue: Weak<Queue>,
    waited: Duration,
    rested: bool,
    options: ActorOptions,
}

/// All of them, the longest at rest first, and whether the thread runs.
struct Stores {
    resting: Vec<Resting>,
    watched: bool,
}

static STORES: Mutex<Stores> = Mutex::new(Stores {
    resting: Vec::new(),
    watched: false,
});

/// Nobody rings it: it makes the thread wait for a while.
static BELL: Condvar = Condvar::new();

/// Looks after a store whose writer was parked open after it had `waited` for work.
pub(super) fn look_after(queue: &Arc<Queue>, waited: Duration, options: ActorOptions) {
    let mut stores = STORES.lock();
    stores.resting.push(Resting {
        queue: Arc::downgrade(queue),
        waited,
        rested: false,
        options,
    });
    if !stores.watched {
        let spawned = std::thread::Builder::new()
            .name("spaces-at-rest".to_owned())
            .spawn(watch);
        match spawned {
            Ok(_) => stores.watched = true,
            // They stay open until they are used again, or another one comes to rest.
            Err(error) => tracing::warn!(%error, "no thread for the stores at rest"),
        }
    }
}

fn watch() {
    let mut stores = STORES.lock();
    loop {
        BELL.wait_for(&mut stores, SOON);
        let mut here: Vec<(Arc<Queue>, Resting)> = std::mem::take(&mut stores.resting)
            .into_iter()
            .filter_map(|resting| Some((resting.queue.upgrade()?, resting)))
            .collect();
        // Closing takes a while, in which others come to rest.
        parking_lot::MutexGuard::unlocked(&mut stores, || {
            here.retain_mut(|(queue, resting)| {
                resting.waited += SOON;
                // One with work again comes back when it rests again.
                if !queue.is_parked() {
                    return false;
                }
                let due = resting.waited >= resting.options.idle_close || is_crowded(resting.options.crowd);
                if due {
                    queue.tend_parked(Writer::close);
                } else if resting.waited >= REST && !resting.rested {
                    resting.rested = true;
                    queue.tend_parked(Writer::rest);
                }
                !due
            });
        });
        let later = std::mem::take(&mut stores.resting);
        stores.resting = here
            .into_iter()
            .map(|(_, resting)| resting)
            .chain(later)
            .collect();
        if stores.resting.is_empty() {
            stores.watched = false;
            return;
        }
    }
}
