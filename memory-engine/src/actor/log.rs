//! The write-ahead log of a space's store: how long it is, and what keeps it bounded (field fault F39). SQLite starts a
//! log over only when no reader uses it, so readers that follow each other without a gap, or one that stays, would let
//! it grow for ever. The writer therefore empties it at a size, waiting a little for readers to leave, and beyond its
//! bound ends the reads that do not.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::store_file;
use crate::store_path::StoreLocation;

/// How long writes wait for readers to leave a log that is to be emptied.
const PATIENCE: Duration = Duration::from_millis(200);

/// What the log has been through. Sizes in bytes; the rest counts since the handle was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogCounters {
    /// Length of the log after the last write.
    pub bytes: u64,
    /// Longest it ever was.
    pub peak_bytes: u64,
    /// Times it was emptied.
    pub emptied: u64,
    /// Times a reader kept it from being emptied.
    pub pinned: u64,
    /// Times all running reads were asked to end.
    pub overtaken: u64,
}

/// Shared by the writer, which measures, the readers, which obey, and the handle, which tells.
#[derive(Debug, Default)]
pub(crate) struct Log {
    bytes: AtomicU64,
    peak_bytes: AtomicU64,
    emptied: AtomicU64,
    pinned: AtomicU64,
    /// How often running reads were asked to end; each read knows the number it began with.
    overtaken: Arc<AtomicU64>,
}

impl Log {
    pub(super) fn counters(&self) -> LogCounters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogCounters {
            bytes: of(&self.bytes),
            peak_bytes: of(&self.peak_bytes),
            emptied: of(&self.emptied),
            pinned: of(&self.pinned),
            overtaken: of(&self.overtaken),
        }
    }

    /// The count by which a read knows that it was asked to end.
    pub(super) fn overtaken(&self) -> Arc<AtomicU64> {
        self.overtaken.clone()
    }
}

/// The length at which an empty log is to be emptied again. Beyond the one at which SQLite starts the log over by itself as
/// long as no reader keeps it from that ([`crate::open::LOG_PAGES`]): a log that is overwritten keeps its room on the disk,
/// where one that is cut off has to be given it anew with every page.
fn due(limit: u64) -> u64 {
    limit / 4 * 3
}

/// The writer's part.
pub(super) struct LogKeeper {
    path: Option<PathBuf>,
    limit: u64,
    /// The length at which emptying is tried next.
    due: u64,
    log: Arc<Log>,
}

impl LogKeeper {
    pub(super) fn new(location: &StoreLocation, limit: u64, log: Arc<Log>) -> LogKeeper {
        let path = match location {
            StoreLocation::Memory => None,
            StoreLocation::File(path) => Some(store_file::log_path(path)),
        };
        LogKeeper {
            path,
            limit,
            due: due(limit),
            log,
        }
    }

    pub(super) fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// After each write: measures, and empties the log when it is due.
    pub(super) fn tend(&mut self, engine: &mut Engine) {
        let length = self.measure();
        if length < self.due.max(1) {
            return;
        }
        if length >= self.limit {
            self.log.overtaken.fetch_add(1, Ordering::Release);
            tracing::warn!(
                bytes = length,
                limit = self.limit,
                "running reads are ended: they pin the log"
            );
        }
        match self.empty(engine, PATIENCE) {
            Ok(true) => {}
            // Not again before the log has grown by a good part.
            Ok(false) => self.due = length + self.limit / 8,
            Err(error) => {
                self.due = length + self.limit / 8;
                tracing::warn!(%error, "the log could not be emptied");
            }
        }
    }

    /// Empties the log, unless a reader pins it beyond `patience`. Returns whether it is empty now.
    pub(super) fn empty(&mut self, engine: &mut Engine, patience: Duration) -> Result<bool, EngineError> {
        if self.path.is_none() {
            return Ok(true);
        }
        let emptied = engine.checkpoint(patience)?;
        if emptied {
            self.due = due(self.limit);
            self.log.emptied.fetch_add(1, Ordering::Relaxed);
        } else {
            self.log.pinned.fetch_add(1, Ordering::Relaxed);
        }
        self.measure();
        Ok(emptied)
    }

    pub(super) fn measure(&self) -> u64 {
        let length = self.path.as_deref().map_or(Ok(0), store_file::log_length);
        let length = length.unwrap_or_else(|error| {
            tracing::debug!(%error, "the log could not be measured");
            0
        });
        self.log.bytes.store(length, Ordering::Relaxed);
        self.log.peak_bytes.fetch_max(length, Ordering::Relaxed);
        length
    }
}
