//! What the statements of one request may use up. A SELECT can run for ever or answer more than there is memory for, and a
//! write holds up everybody in the space for as long as it runs: both end at a bound and say which.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memory_wire::value::Value;
use rusqlite::Connection;
use rusqlite::limits::Limit;

use crate::error::EngineError;

/// Steps of SQLite's machine between two looks at the bound.
const LOOK: i32 = 4_096;

/// The bounds. Work is counted in steps of SQLite's virtual machine, so that the same statement meets the same end
/// everywhere; some fifty million are a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatementBounds {
    /// Steps of one read.
    pub read_steps: u64,
    /// Steps of all writes of one commit, which hold up the space.
    pub write_steps: u64,
    /// Bytes of the values and column names of one answer.
    pub answer_bytes: usize,
    /// Bytes of one text or blob, while it is worked out too.
    pub value_bytes: u32,
}

impl Default for StatementBounds {
    /// Some ten seconds of reading, two of writing; answers as large as a message, values somewhat larger than a blob.
    fn default() -> StatementBounds {
        StatementBounds {
            read_steps: 500_000_000,
            write_steps: 100_000_000,
            answer_bytes: 64 << 20,
            value_bytes: 16 << 20,
        }
    }
}

/// Ends statements of one connection that have taken more steps than they were given.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    left: Arc<AtomicU64>,
    running: Arc<AtomicBool>,
}

impl Meter {
    /// A meter on a connection, which counts while [`Meter::run`] does.
    pub(super) fn install(conn: &mut Connection) -> Result<Meter, EngineError> {
        let meter = Meter::default();
        let (left, running) = (meter.left.clone(), meter.running.clone());
        let is_used_up = move || {
            running.load(Ordering::Relaxed)
                && left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(LOOK.unsigned_abs().into())
                    })
                    .is_err()
        };
        conn.progress_handler(LOOK, Some(is_used_up))?;
        Ok(meter)
    }

    /// Takes the meter off.
    pub(super) fn remove(conn: &mut Connection) -> Result<(), EngineError> {
        Ok(conn.progress_handler(0, None::<fn() -> bool>)?)
    }

    /// Gives what runs from now on so many steps together.
    pub(super) fn grant(&self, steps: u64) {
        self.left.store(steps, Ordering::Relaxed);
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
        match done {
            // The engine's own reason to interrupt a read does not reach these connections.
            Err(EngineError::ReadOvertaken) => Err(EngineError::SqliteExceeded {
                bound: "takes too many steps",
            }),
            done => done,
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
