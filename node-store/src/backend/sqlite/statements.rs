//! The SQL of each column, written out once.

use std::sync::LazyLock;

use crate::column::Column;
use crate::key::Direction;

/// Statements of one column's table.
pub(super) struct Statements {
    pub(super) create: String,
    pub(super) has: String,
    pub(super) get: String,
    pub(super) put: String,
    pub(super) delete: String,
    pub(super) delete_from: String,
    pub(super) delete_between: String,
    pub(super) size_from: String,
    pub(super) size_between: String,
    ascending_from: String,
    ascending_between: String,
    descending_from: String,
    descending_between: String,
}

impl Statements {
    /// A page of rows: `?1 <= key` and, where bounded, `key < ?2`; the last parameter is the number of rows.
    pub(super) fn page(&self, direction: Direction, bounded: bool) -> &str {
        match (direction, bounded) {
            (Direction::Ascending, false) => &self.ascending_from,
            (Direction::Ascending, true) => &self.ascending_between,
            (Direction::Descending, false) => &self.descending_from,
            (Direction::Descending, true) => &self.descending_between,
        }
    }
}

pub(super) static SQL: LazyLock<Vec<Statements>> = LazyLock::new(|| {
    Column::ALL
        .iter()
        .map(|column| {
            let table = format!("\"{column}\"");
            let page = |condition: &str, order: &str| {
                format!("SELECT key, value FROM {table} WHERE {condition} ORDER BY key {order} LIMIT ?3")
            };
            let size = |condition: &str| {
                format!("SELECT coalesce(sum(length(key) + length(value)), 0) FROM {table} WHERE {condition}")
            };
            let (from, between) = ("key >= ?1", "key >= ?1 AND key < ?2");
            Statements {
                create: format!(
                    "CREATE TABLE IF NOT EXISTS {table} (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) \
                     STRICT, WITHOUT ROWID"
                ),
                has: format!("SELECT 1 FROM {table} WHERE key = ?1"),
                get: format!("SELECT value FROM {table} WHERE key = ?1"),
                put: format!("INSERT OR REPLACE INTO {table} (key, value) VALUES (?1, ?2)"),
                delete: format!("DELETE FROM {table} WHERE key = ?1"),
                delete_from: format!("DELETE FROM {table} WHERE {from}"),
                delete_between: format!("DELETE FROM {table} WHERE {between}"),
                size_from: size(from),
                size_between: size(between),
                ascending_from: page(from, "ASC").replace("?3", "?2"),
                ascending_between: page(between, "ASC"),
                descending_from: page(from, "DESC").replace("?3", "?2"),
                descending_between: page(between, "DESC"),
            }
        })
        .collect()
});
