//! A store in memory, for tests and tools: the same contract as on disk. Rule: NODE-21.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::RwLock;

use super::{Database, Durability, ReadView};
use crate::column::{Column, ColumnSet};
use crate::cursor::{Row, RowCursor};
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};
use crate::transaction::{Op, Transaction};

/// One column. Rows are shared, so a view holds the whole column without copying it; a write copies the tree (not the
/// rows) only while a view holds it.
type Table = Arc<BTreeMap<Arc<[u8]>, Arc<[u8]>>>;

/// The in-memory backend.
#[derive(Debug)]
pub struct MemoryBackend {
    columns: ColumnSet,
    tables: RwLock<Tables>,
}

#[derive(Clone, Debug, Default)]
struct Tables([Table; Column::COUNT]);

impl MemoryBackend {
    /// Empty, with all columns.
    pub fn new() -> Self {
        MemoryBackend::with_columns(ColumnSet::ALL)
    }

    /// Empty, with some columns; the others are unknown to it.
    pub fn with_columns(columns: ColumnSet) -> Self {
        MemoryBackend {
            columns,
            tables: RwLock::default(),
        }
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        MemoryBackend::new()
    }
}

impl Tables {
    fn table(&self, column: Column) -> &Table {
        &self.0[column.index()]
    }

    fn write(&mut self, column: Column, key: &[u8], op: &Op) {
        let table = Arc::make_mut(&mut self.0[column.index()]);
        match op {
            Op::Put(value) => drop(table.insert(key.into(), value.as_slice().into())),
            Op::Delete => drop(table.remove(key)),
        }
    }
}

struct MemoryView {
    columns: ColumnSet,
    tables: Tables,
}

impl ReadView for MemoryView {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.columns.require([column])?;
        Ok(self.tables.table(column).contains_key(key))
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.columns.require([column])?;
        Ok(self.tables.table(column).get(key).map(|value| value.to_vec()))
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        self.columns.require([column])?;
        Ok(Box::new(MemoryCursor::new(
            self.tables.table(column).clone(),
            range,
            direction,
        )))
    }
}

impl ReadView for MemoryBackend {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.columns.require([column])?;
        Ok(self.tables.read().table(column).contains_key(key))
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.columns.require([column])?;
        Ok(self
            .tables
            .read()
            .table(column)
            .get(key)
            .map(|value| value.to_vec()))
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        self.columns.require([column])?;
        let table = self.tables.read().table(column).clone();
        Ok(Box::new(MemoryCursor::new(table, range, direction)))
    }
}

impl Database for MemoryBackend {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn columns(&self) -> ColumnSet {
        self.columns
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn durability(&self) -> Durability {
        // It outlives nothing, so that nothing lags behind anything.
        Durability::Full
    }

    fn put(&self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.columns.require([column])?;
        self.tables.write().write(column, key, &Op::Put(value.to_vec()));
        Ok(())
    }

    fn delete(&self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        self.columns.require([column])?;
        self.tables.write().write(column, key, &Op::Delete);
        Ok(())
    }

    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError> {
        self.columns.require(transaction.columns())?;
        // Nothing below can fail, so readers see all of it or, behind the lock, none.
        let mut tables = self.tables.write();
        for (column, key, op) in transaction.iter() {
            tables.write(column, key, op);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn ReadView + '_>, StoreError> {
        Ok(Box::new(MemoryView {
            columns: self.columns,
            tables: self.tables.read().clone(),
        }))
    }
}

enum Position {
    Before,
    At(Arc<[u8]>, Arc<[u8]>),
    After,
}

struct MemoryCursor {
    table: Table,
    range: KeyRange,
    direction: Direction,
    position: Position,
}

impl MemoryCursor {
    fn new(table: Table, range: &KeyRange, direction: Direction) -> Self {
        MemoryCursor {
            table,
            range: range.clone(),
            direction,
            position: Position::Before,
        }
    }

    /// Stands on the first row, in the cursor's direction, of the range further bounded by `bound`.
    fn settle(&mut self, bound: Bound<&[u8]>) -> bool {
        let lower = Bound::Included(self.range.start());
        let upper = self.range.end().map_or(Bound::Unbounded, Bound::Excluded);
        let found = match self.direction {
            Direction::Ascending => {
                let lower = match bound {
                    Bound::Included(key) if key >= self.range.start() => bound,
                    Bound::Excluded(key) if key >= self.range.start() => bound,
                    _ => lower,
                };
                first(lower, upper).then(|| self.table.range::<[u8], _>((lower, upper)).next())
            }
            Direction::Descending => {
                let inside = |key: &[u8]| self.range.end().is_none_or(|end| key < end);
                let upper = match bound {
                    Bound::Included(key) | Bound::Excluded(key) if inside(key) => bound,
                    _ => upper,
                };
                first(lower, upper).then(|| self.table.range::<[u8], _>((lower, upper)).next_back())
            }
        };
        self.position = match found.flatten() {
            Some((key, value)) => Position::At(key.clone(), value.clone()),
            None => Position::After,
        };
        matches!(self.position, Position::At(..))
    }
}

/// Whether a range can be asked for at all: the map refuses inverted bounds and `(k, k)`.
fn first(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(l), Bound::Included(u)) => l <= u,
        (Bound::Included(l) | Bound::Excluded(l), Bound::Excluded(u))
        | (Bound::Excluded(l), Bound::Included(u)) => l < u,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
    }
}

impl RowCursor for MemoryCursor {
    fn advance(&mut self) -> Result<bool, StoreError> {
        match std::mem::replace(&mut self.position, Position::After) {
            Position::Before => Ok(self.settle(Bound::Unbounded)),
            Position::At(key, _) => Ok(self.settle(Bound::Excluded(&key))),
            Position::After => Ok(false),
        }
    }

    fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        Ok(self.settle(Bound::Included(target)))
    }

    fn row(&self) -> Option<Row<'_>> {
        match &self.position {
            Position::At(key, value) => Some(Row { key, value }),
            Position::Before | Position::After => None,
        }
    }
}
