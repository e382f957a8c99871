//! Read connections: kept for reuse, lent for one read or for a view of one moment.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::cursor::PagedCursor;
use super::statements::SQL;
use super::{BUSY_TIMEOUT, failed};
use crate::backend::ReadView;
use crate::column::{Column, ColumnSet};
use crate::cursor::RowCursor;
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};

/// Idle connections of one file. More are opened as needed; a few are kept.
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    sessions: AtomicUsize,
}

const KEPT: usize = 8;

impl Readers {
    pub(super) fn new(path: &Path) -> Arc<Self> {
        Arc::new(Readers {
            path: path.to_owned(),
            idle: Mutex::new(Vec::new()),
            sessions: AtomicUsize::new(0),
        })
    }

    /// How many views are open.
    pub(super) fn open_sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    /// One read on a connection of the pool.
    pub(super) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let connection = self.take()?;
        let result = read(&connection);
        self.give_back(connection);
        result
    }

    fn take(&self) -> Result<Connection, StoreError> {
        if let Some(connection) = self.idle.lock().pop() {
            return Ok(connection);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(&self.path, flags).map_err(failed("open for reading"))?;
        connection
            .busy_timeout(BUSY_TIMEOUT)
            .map_err(failed("open for reading"))?;
        connection.set_prepared_statement_cache_capacity(8 * Column::COUNT);
        Ok(connection)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(connection);
        }
    }
}

pub(super) fn has(connection: &Connection, column: Column, key: &[u8]) -> Result<bool, StoreError> {
    connection
        .prepare_cached(&SQL[column.index()].has)
        .and_then(|mut statement| statement.exists([key]))
        .map_err(failed("has"))
}

pub(super) fn get(
    connection: &Connection,
    column: Column,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    connection
        .prepare_cached(&SQL[column.index()].get)
        .and_then(|mut statement| statement.query_row([key], |row| row.get(0)).optional())
        .map_err(failed("get"))
}

/// A read transaction: everything read through it is of the moment it began.
pub(super) struct ReadSession {
    /// Present until the session ends.
    connection: Mutex<Option<Connection>>,
    readers: Arc<Readers>,
    columns: ColumnSet,
}

impl ReadSession {
    pub(super) fn begin(readers: &Arc<Readers>, columns: ColumnSet) -> Result<Arc<Self>, StoreError> {
        let connection = readers.take()?;
        // BEGIN alone pins nothing: the first read does.
        connection
            .execute_batch("BEGIN; SELECT rootpage FROM sqlite_schema LIMIT 1")
            .map_err(failed("begin reading"))?;
        readers.sessions.fetch_add(1, Ordering::Relaxed);
        let connection = Mutex::new(Some(connection));
        Ok(Arc::new(ReadSession {
            connection,
            readers: readers.clone(),
            columns,
        }))
    }

    pub(super) fn cursor(
        self: Arc<Self>,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'static>, StoreError> {
        self.columns.require([column])?;
        Ok(Box::new(PagedCursor::new(self, column, range, direction)))
    }

    pub(super) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let guard: MutexGuard<'_, Option<Connection>> = self.connection.lock();
        read(
            guard
                .as_ref()
                .expect("the connection is given back only when the session is dropped"),
        )
    }
}

impl Drop for ReadSession {
    fn drop(&mut self) {
        self.readers.sessions.fetch_sub(1, Ordering::Relaxed);
        if let Some(connection) = self.connection.get_mut().take()
            && connection.execute_batch("COMMIT").is_ok()
        {
            self.readers.give_back(connection);
        }
    }
}

/// A view of one moment; its cursors share the session and may outlive it.
pub(super) struct SessionView(pub(super) Arc<ReadSession>);

impl ReadView for SessionView {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.0.columns.require([column])?;
        self.0.with(|connection| has(connection, column, key))
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.columns.require([column])?;
        self.0.with(|connection| get(connection, column, key))
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        ReadSession::cursor(self.0.clone(), column, range, direction)
    }
}
