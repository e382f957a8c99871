//! What the statements of one request may use up. A SELECT can run for ever or answer more than there is memory for, and a
//! write holds up everybody in the space for as long as it runs: both end at a bound and say which.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memory_wire::value::Value;
use rusqlite::Connection;
use rusqlite::limits::Limit;

use super::metered;
use crate::error::EngineError;
use crate::sync::{Deadline, Mutex};

/// Steps of SQLite's machine between two looks at the bounds. A single step may go through a value of megabytes.
const LOOK: i32 = 256;

/// The bounds. Work is counted in steps of SQLite's virtual machine, so that the same statement meets the same end
/// everywhere; some fifty million are a second. Where every step goes through a long value, time ends it first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatementBounds {
    /// Steps of one read.
    pub read_steps: u64,
    /// Time that one read may take.
    pub read_time: Duration,
    /// Steps of all writes of one commit, which hold up the space.
    pub write_steps: u64,
    /// Time that all writes of one commit may take.
    pub write_time: Duration,
    /// Bytes of the values and column names of one answer.
    pub answer_bytes: usize,
    /// Bytes of one text or blob, while it is worked out too.
    pub value_bytes: u32,
}

impl Default for StatementBounds {
    /// Steps for some ten seconds of reading, two of writing, and a few times that on a busy machine; answers as large as a message, values somewhat larger than a blob.
    fn default() -> StatementBounds {
        StatementBounds {
            read_steps: 500_000_000,
            read_time: Duration::from_secs(30),
            write_steps: 100_000_000,
            write_time: Duration::from_secs(10),
            answer_bytes: 64 << 20,
            value_bytes: 16 << 20,
        }
    }
}

/// Ends statements of one connection that have taken more steps, or more time, than they were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    left: Arc<AtomicU64>,
    running: Arc<AtomicBool>,
    time: Arc<Mutex<Time>>,
}

#[derive(Debug, Default)]
struct Time {
    deadline: Option<Deadline>,
    /// The bound that what runs has met.
    met: Option<&'static str>,
}

impl Meter {
    /// A meter for a connection, which counts while [`Meter::run`] does: the work of functions for as long as the connection
    /// lives, that of SQLite's machine while the meter watches.
    pub(super) fn install(conn: &Connection) -> Result<Meter, EngineError> {
        let meter = Meter::default();
        metered::install(conn, &meter)?;
        Ok(meter)
    }

    /// Has SQLite look at the meter from now on.
    pub(super) fn watch(&self, conn: &mut Connection) -> Result<(), EngineError> {
        let meter = self.clone();
        let is_used_up = move || !meter.take(LOOK.unsigned_abs().into());
        Ok(conn.progress_handler(LOOK, Some(is_used_up))?)
    }

    /// SQLite looks at no meter any more.
    pub(super) fn unwatch(conn: &mut Connection) -> Result<(), EngineError> {
        Ok(conn.progress_handler(0, None::<fn() -> bool>)?)
    }

    /// Takes steps from what runs; false when so many are not left. Nothing is taken while nobody counts.
    pub(super) fn take(&self, steps: u64) -> bool {
        if !self.running.load(Ordering::Relaxed) {
            return true;
        }
        let rest = |left: u64| left.checked_sub(steps);
        let is_left = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest)
            .is_ok();
        let mut time = self.time.lock();
        if !is_left {
            time.met = Some("takes too many steps");
        } else if time.deadline.is_some_and(Deadline::has_passed) {
            time.met = Some("takes too long");
        }
        time.met.is_none()
    }

    /// Gives what runs from now on so many steps together, and so much time.
    pub(super) fn grant(&self, steps: u64, time: Duration) {
        self.left.store(steps, Ordering::Relaxed);
        *self.time.lock() = Time {
            deadline: Some(Deadline::after(time)),
            met: None,
        };
    }

    /// Runs statements within what was granted, no value of theirs longer than `value_bytes`.
    pub(super) fn run<R>(
        &self,
        conn: &Connection,
        value_bytes: u32,
        work: impl FnOnce() -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        let longest = i32::try_from(value_bytes).unwrap_or(i32::MAX);
        let running = Running {
            meter: self,
            conn,
            usual: conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, longest)?,
        };
        self.running.store(true, Ordering::Relaxed);
        let done = work();
        drop(running);
        // Whatever it is called: an interrupted statement, or a function that failed.
        match (done, self.time.lock().met) {
            (Err(_), Some(bound)) => Err(EngineError::SqliteExceeded { bound }),
            (done, _) => done,
        }
    }
}

/// While statements run on a connection; what it is otherwise comes back however they end.
struct Running<'a> {
    meter: &'a Meter,
    conn: &'a Connection,
    usual: i32,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.meter.running.store(false, Ordering::Relaxed);
        if let Err(error) = self.conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, self.usual) {
            tracing::error!(%error, "the length of values stays bounded");
        }
    }
}

/// Room for the rest of an answer, in bytes.
#[derive(Debug)]
pub(super) struct Room(pub(super) usize);

impl Room {
    /// Takes the room of one value under its column's name.
    pub(super) fn take(&mut self, column: &str, value: &Value) -> Result<(), EngineError> {
        let bytes = match value {
            Value::String(text) => text.len_utf16() * 2,
            Value::Bytes(bytes) => bytes.len(),
            _ => 8,
        };
        self.0 =
            self.0
                .checked_sub(bytes.saturating_add(column.len()))
                .ok_or(EngineError::SqliteExceeded {
                    bound: "answers too much at once",
                })?;
        Ok(())
    }
}
