//! A connection on a store that counts what it asks SQLite for. Everything the engine reads or writes goes through one.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{CachedStatement, Connection, Params, Row};

/// A connection and the count of its store.
#[derive(Debug)]
pub(crate) struct StoreConnection {
    conn: Connection,
    statements: Arc<AtomicU64>,
}

impl Deref for StoreConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.conn
    }
}

impl DerefMut for StoreConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.conn
    }
}

impl StoreConnection {
    pub(crate) fn new(conn: Connection, statements: Arc<AtomicU64>) -> StoreConnection {
        StoreConnection { conn, statements }
    }

    /// For what is set on the connection itself.
    pub(crate) fn get_mut(&mut self) -> &mut Connection {
        &mut self.conn
    }

    fn count(&self) -> &Connection {
        self.statements.fetch_add(1, Ordering::Relaxed);
        &self.conn
    }

    /// As rusqlite's; counted when it is made ready, since whoever does that runs it.
    pub(crate) fn prepare_cached(&self, sql: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.count().prepare_cached(sql)
    }

    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.count().execute(sql, params)
    }

    pub(crate) fn execute_batch(&self, sql: &str) -> rusqlite::Result<()> {
        self.count().execute_batch(sql)
    }

    pub(crate) fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        map: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.count().query_row(sql, params, map)
    }
}
