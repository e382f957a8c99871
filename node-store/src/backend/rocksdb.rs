//! RocksDB in the reference layout, so that a reference node's data directory opens. Rule: NODE-22; facts: §7, §8.

use std::path::{Path, PathBuf};

use ::rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBRawIterator, ErrorKind, Options,
    Range, ReadOptions, SnapshotWithThreadMode, WriteBatch, WriteOptions,
};

use super::{Database, Durability, ReadView};
use crate::column::{Column, ColumnSet};
use crate::cursor::{Row, RowCursor};
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};
use crate::transaction::{Op, Transaction};

const NAME: &str = "rocksdb";
const MAX_OPEN_FILES: i32 = 256;
/// A rarely written family would otherwise keep every log file alive.
const MAX_LOG_BYTES: u64 = 256 << 20;
/// One cache, shared by all families.
const CACHE_BYTES: usize = 128 << 20;

/// A store in a RocksDB directory.
pub struct RocksBackend {
    db: DB,
    columns: ColumnSet,
    unknown: Vec<String>,
    durability: Durability,
    read_only: bool,
}

/// What an operator may want to watch, of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocksStatistics {
    /// How much the cache that the column reads through may hold, bytes; all columns share it.
    pub block_cache_capacity: u64,
    /// Rows that are only in memory and in the log.
    pub unwritten_rows: u64,
}

impl RocksBackend {
    /// Size of the cache, and what a flush would write out.
    pub fn statistics(&self, column: Column) -> Result<RocksStatistics, StoreError> {
        let family = self.family(column)?;
        let number = |property: &str| {
            let value = self.db.property_int_value_cf(family, property);
            value.map(Option::unwrap_or_default).map_err(failed("statistics"))
        };
        Ok(RocksStatistics {
            block_cache_capacity: number("rocksdb.block-cache-capacity")?,
            unwritten_rows: number("rocksdb.num-entries-active-mem-table")?
                + number("rocksdb.num-entries-imm-mem-tables")?,
        })
    }

    /// Opens a directory for writing, with everything missing created. Families of no known column are kept and reported.
    /// One process at a time.
    pub fn open(path: impl AsRef<Path>, durability: Durability) -> Result<Self, StoreError> {
        let path = path.as_ref();
        std::fs::create_dir_all(path).map_err(|cause| StoreError::file(path, "create directory", cause))?;
        let (options, family_options) = options();
        let mut names: Vec<String> = if path.join("CURRENT").is_file() {
            DB::list_cf(&options, path).map_err(|error| opening(path, error))?
        } else {
            vec!["default".into()]
        };
        let unknown = unknown(&names);
        for column in Column::ALL {
            if !names.iter().any(|name| name == column.name()) {
                names.push(column.name().into());
            }
        }
        let families = names
            .iter()
            .map(|name| ColumnFamilyDescriptor::new(name, family_options.clone()));
        let db = DB::open_cf_descriptors(&options, path, families).map_err(|error| opening(path, error))?;
        if !unknown.is_empty() {
            tracing::warn!(
                ?unknown,
                "the store holds column families of no known column; they are kept as they are"
            );
        }
        Ok(RocksBackend {
            db,
            columns: ColumnSet::ALL,
            unknown,
            durability,
            read_only: false,
        })
    }

    /// Opens a directory for reading only: without its lock, also while a node runs on it, and without writing anything.
    /// Families of no known column are reported and left out; columns newer than the directory are missing.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        if !path.join("CURRENT").is_file() {
            let reason = "no RocksDB directory".into();
            return Err(StoreError::NotAStore {
                path: path.to_owned(),
                reason,
            });
        }
        let (mut options, family_options) = options();
        options.create_if_missing(false);
        options.create_missing_column_families(false);
        let names = DB::list_cf(&options, path).map_err(|error| opening(path, error))?;
        let columns: ColumnSet = names.iter().filter_map(|name| Column::from_name(name)).collect();
        let families = columns
            .iter()
            .map(Column::name)
            .chain(["default"])
            .map(|name| ColumnFamilyDescriptor::new(name, family_options.clone()));
        let db = DB::open_cf_descriptors_read_only(&options, path, families, false)
            .map_err(|error| opening(path, error))?;
        let unknown = unknown(&names);
        Ok(RocksBackend {
            db,
            columns,
            unknown,
            durability: Durability::Process,
            read_only: true,
        })
    }

    fn family(&self, column: Column) -> Result<&ColumnFamily, StoreError> {
        self.db
            .cf_handle(column.name())
            .ok_or_else(|| StoreError::UnknownColumns {
                columns: vec![column],
            })
    }

    fn write_options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.set_sync(self.durability == Durability::Full);
        options
    }

    fn require_writable(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.read_only {
            Err(StoreError::ReadOnly { operation })
        } else {
            Ok(())
        }
    }
}

fn options() -> (Options, Options) {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_open_files(MAX_OPEN_FILES);
    options.set_max_total_wal_size(MAX_LOG_BYTES);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
    options.set_block_based_table_factory(&table);
    // Table options count a family at a time: those of the database alone reach no named family.
    let mut family = Options::default();
    family.set_block_based_table_factory(&table);
    (options, family)
}

fn unknown(names: &[String]) -> Vec<String> {
    names
        .iter()
        .filter(|name| *name != "default" && Column::from_name(name).is_none())
        .cloned()
        .collect()
}

fn opening(path: &Path, error: ::rocksdb::Error) -> StoreError {
    // Held by this process, or by another one; the error has no kind of its own.
    let text = error.to_string();
    if text.contains("lock hold by") || text.contains("While lock file") {
        return StoreError::Locked {
            path: PathBuf::from(path),
        };
    }
    failed("open")(error)
}

fn failed(operation: &'static str) -> impl Fn(::rocksdb::Error) -> StoreError {
    move |error| {
        let full = error.kind() == ErrorKind::IOError && error.to_string().contains("No space left");
        if full {
            StoreError::Full {
                backend: NAME,
                operation,
            }
        } else {
            StoreError::backend(NAME, operation, error)
        }
    }
}

impl Drop for RocksBackend {
    fn drop(&mut self) {
        if !self.read_only
            && let Err(error) = self.flush()
        {
            tracing::warn!(%error, "flush at close failed; what was written is in the log");
        }
    }
}

impl ReadView for RocksBackend {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        let family = self.family(column)?;
        if !self.db.key_may_exist_cf(family, key) {
            return Ok(false);
        }
        self.db
            .get_pinned_cf(family, key)
            .map(|value| value.is_some())
            .map_err(failed("has"))
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self
            .db
            .get_pinned_cf(self.family(column)?, key)
            .map_err(failed("get"))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        let rows = self
            .db
            .raw_iterator_cf_opt(self.family(column)?, ReadOptions::default());
        Ok(Box::new(RocksCursor {
            rows,
            range: range.clone(),
            direction,
            position: Position::Before,
        }))
    }
}

impl Database for RocksBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn columns(&self) -> ColumnSet {
        self.columns
    }

    fn unknown_columns(&self) -> &[String] {
        &self.unknown
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn put(&self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.require_writable("put")?;
        self.db
            .put_cf_opt(self.family(column)?, key, value, &self.write_options())
            .map_err(failed("put"))
    }

    fn delete(&self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        self.require_writable("delete")?;
        self.db
            .delete_cf_opt(self.family(column)?, key, &self.write_options())
            .map_err(failed("delete"))
    }

    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError> {
        self.require_writable("apply")?;
        self.columns.require(transaction.columns())?;
        let mut batch = WriteBatch::default();
        for (column, key, op) in transaction.iter() {
            match op {
                Op::Put(value) => batch.put_cf(self.family(column)?, key, value),
                Op::Delete => batch.delete_cf(self.family(column)?, key),
            }
        }
        self.db
            .write_opt(batch, &self.write_options())
            .map_err(failed("apply"))
    }

    /// Syncs the log, then writes out every family: the default one alone would hold nothing.
    fn flush(&self) -> Result<(), StoreError> {
        self.require_writable("flush")?;
        self.db.flush_wal(true).map_err(failed("flush"))?;
        for column in self.columns.iter() {
            self.db.flush_cf(self.family(column)?).map_err(failed("flush"))?;
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn ReadView + '_>, StoreError> {
        Ok(Box::new(RocksSnapshot {
            moment: self.db.snapshot(),
            backend: self,
        }))
    }

    fn delete_range(&self, column: Column, range: &KeyRange) -> Result<(), StoreError> {
        self.require_writable("delete range")?;
        // An inverted range would stop every later write until the next open.
        if range.is_empty() {
            return Ok(());
        }
        let family = self.family(column)?;
        let end = match range.end() {
            Some(end) => end.to_vec(),
            None => match self.last_in_range(column, range)? {
                Some((mut last, _)) => {
                    last.push(0);
                    last
                }
                None => return Ok(()),
            },
        };
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(family, range.start(), end.as_slice());
        self.db
            .write_opt(batch, &self.write_options())
            .map_err(failed("delete range"))
    }

    /// From table metadata: 0 until rows are written out.
    fn approximate_size(&self, column: Column, range: &KeyRange) -> Result<u64, StoreError> {
        let family = self.family(column)?;
        let end = match range.end() {
            Some(end) => end.to_vec(),
            None => match self.last_in_range(column, range)? {
                Some((last, _)) => [last.as_slice(), &[0]].concat(),
                None => return Ok(0),
            },
        };
        Ok(self
            .db
            .get_approximate_sizes_cf(family, &[Range::new(range.start(), &end)])
            .iter()
            .sum())
    }
}

struct RocksSnapshot<'b> {
    moment: SnapshotWithThreadMode<'b, DB>,
    backend: &'b RocksBackend,
}

impl ReadView for RocksSnapshot<'_> {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        let value = self.moment.get_pinned_cf(self.backend.family(column)?, key);
        value.map(|value| value.is_some()).map_err(failed("has"))
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.moment
            .get_cf(self.backend.family(column)?, key)
            .map_err(failed("get"))
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        let rows = self
            .moment
            .raw_iterator_cf_opt(self.backend.family(column)?, ReadOptions::default());
        Ok(Box::new(RocksCursor {
            rows,
            range: range.clone(),
            direction,
            position: Position::Before,
        }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Before,
    At,
    After,
}

struct RocksCursor<'d> {
    rows: DBRawIterator<'d>,
    range: KeyRange,
    direction: Direction,
    position: Position,
}

impl RocksCursor<'_> {
    fn seek_first(&mut self) {
        match (self.direction, self.range.end()) {
            (Direction::Ascending, _) => self.rows.seek(self.range.start()),
            (Direction::Descending, None) => self.rows.seek_to_last(),
            (Direction::Descending, Some(end)) => {
                self.rows.seek_for_prev(end);
                if self.rows.key() == Some(end) {
                    self.rows.prev();
                }
            }
        }
    }

    /// Checks where the iterator came to. An iterator that stopped because of an error says so in its status alone.
    fn settle(&mut self) -> Result<bool, StoreError> {
        let inside = self.rows.key().is_some_and(|key| self.range.contains(key));
        if !self.rows.valid() {
            self.rows.status().map_err(failed("scan"))?;
        }
        self.position = if inside { Position::At } else { Position::After };
        Ok(inside)
    }
}

impl RowCursor for RocksCursor<'_> {
    fn advance(&mut self) -> Result<bool, StoreError> {
        match (self.position, self.direction) {
            (Position::Before, _) => self.seek_first(),
            (Position::At, Direction::Ascending) => self.rows.next(),
            (Position::At, Direction::Descending) => self.rows.prev(),
            (Position::After, _) => return Ok(false),
        }
        self.settle()
    }

    fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        match self.direction {
            Direction::Ascending => self.rows.seek(target.max(self.range.start())),
            Direction::Descending if self.range.end().is_some_and(|end| end <= target) => self.seek_first(),
            Direction::Descending => self.rows.seek_for_prev(target),
        }
        self.settle()
    }

    fn row(&self) -> Option<Row<'_>> {
        if self.position != Position::At {
            return None;
        }
        self.rows.item().map(|(key, value)| Row { key, value })
    }
}
