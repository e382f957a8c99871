//! The default backend: one SQLite file, one `WITHOUT ROWID` table a column, one transaction an `apply`.
//! Rules: NODE-20, NODE-25; F39 for the log's bound and the rollback guard.

mod cursor;
mod lock;
mod readers;
mod statements;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use self::lock::WriterLock;
use self::readers::{ReadSession, Readers, SessionView};
use self::statements::SQL;
use super::{Database, Durability, ReadView};
use crate::column::{Column, ColumnSet};
use crate::cursor::RowCursor;
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};
use crate::transaction::{Op, Transaction};

const NAME: &str = "sqlite";
/// Marks the file as ours, so that another program's database is never taken for a store.
const APPLICATION_ID: i32 = 0x4e4f_4445;
const FORMAT_VERSION: i32 = 1;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Files of SQLite are whole pages, and no page is smaller.
const SMALLEST_PAGE: u64 = 512;
/// The log is cut back to this size once no reader needs more of it.
const LOG_LIMIT_BYTES: i64 = 64 << 20;

/// How to open a store file.
#[derive(Clone, Copy, Debug, Default)]
pub struct SqliteOptions {
    /// What survives what.
    pub durability: Durability,
    /// Most 4096-byte pages that the file may grow to; a write that needs more fails whole with
    /// [`StoreError::Full`]. No limit if absent.
    pub max_pages: Option<u32>,
}

/// A store in a SQLite file.
pub struct SqliteBackend {
    /// Absent when opened read-only.
    writer: Option<Mutex<Connection>>,
    readers: Arc<Readers>,
    columns: ColumnSet,
    unknown: Vec<String>,
    durability: Durability,
    path: PathBuf,
    _lock: Option<WriterLock>,
}

/// What an operator may want to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqliteStatistics {
    /// Size of the write-ahead log, bytes.
    pub log_bytes: u64,
    /// Views and cursors open now; the oldest one keeps the log from being cut back.
    pub open_views: usize,
}

impl SqliteBackend {
    /// Opens a file for writing, with missing parent directories, file and columns created. One process at a time.
    pub fn open(path: impl AsRef<Path>, options: &SqliteOptions) -> Result<Self, StoreError> {
        let path = path.as_ref();
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent)
                .map_err(|cause| StoreError::file(parent, "create directory", cause))?;
        }
        let path = &resolved(path)?;
        let lock = WriterLock::take(path)?;
        require_whole(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags).map_err(failed("open"))?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed("open"))?;
        identify(&connection, path, true)?;
        prepare(&mut connection, options).map_err(failed("prepare"))?;
        let (columns, unknown) = families(&connection).map_err(failed("list columns"))?;
        if !unknown.is_empty() {
            tracing::warn!(
                ?unknown,
                "the store holds column families of no known column; they are kept as they are"
            );
        }
        Ok(SqliteBackend {
            writer: Some(Mutex::new(connection)),
            readers: Readers::new(path),
            columns,
            unknown,
            durability: options.durability,
            path: path.to_owned(),
            _lock: Some(lock),
        })
    }

    /// Opens a file for reading only, also while another process writes it. Columns newer than the file are missing.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let refuse = |reason: String| StoreError::NotAStore {
            path: path.to_owned(),
            reason,
        };
        if !path.is_file() {
            return Err(refuse("no such file".into()));
        }
        let path = &resolved(path)?;
        require_whole(path)?;
        let readers = Readers::new(path);
        let (columns, unknown) = readers.with(|connection| {
            identify(connection, path, false)?;
            families(connection).map_err(failed("list columns"))
        })?;
        Ok(SqliteBackend {
            writer: None,
            readers,
            columns,
            unknown,
            durability: Durability::Process,
            path: path.to_owned(),
            _lock: None,
        })
    }

    /// Size of the log and number of views.
    pub fn statistics(&self) -> SqliteStatistics {
        SqliteStatistics {
            log_bytes: size_of(&self.path, "-wal"),
            open_views: self.readers.open_sessions(),
        }
    }

    fn writer(&self, operation: &'static str) -> Result<&Mutex<Connection>, StoreError> {
        self.writer.as_ref().ok_or(StoreError::ReadOnly { operation })
    }
}

/// Where the file really lies: lock and log stand beside it, so two names of one file must not have two of them.
fn resolved(path: &Path) -> Result<PathBuf, StoreError> {
    let failed = |cause| StoreError::file(path, "resolve path", cause);
    if path.is_dir() {
        return Err(StoreError::NotAStore {
            path: path.to_owned(),
            reason: "a directory".into(),
        });
    }
    if path.exists() {
        return path.canonicalize().map_err(failed);
    }
    let Some(name) = path.file_name() else {
        return Ok(path.to_owned());
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    Ok(parent.canonicalize().map_err(failed)?.join(name))
}

/// Refuses what SQLite would take for an empty database and write anew, log and all, and what ends within a page although no
/// log or journal holds the rest of it. Asks for sizes only: to open and close the file here would take away the locks that
/// this process has on it.
fn require_whole(path: &Path) -> Result<(), StoreError> {
    let (size, log) = (size_of(path, ""), size_of(path, "-wal"));
    let reason = if size < SMALLEST_PAGE && log > 0 {
        format!("{size} bytes, beside a log with rows")
    } else if size % SMALLEST_PAGE != 0 && log == 0 && size_of(path, "-journal") == 0 {
        format!("{size} bytes; it is cut short")
    } else {
        return Ok(());
    };
    Err(StoreError::NotAStore {
        path: path.to_owned(),
        reason,
    })
}

/// The size of the file or of one that goes with it; none is 0.
fn size_of(path: &Path, suffix: &str) -> u64 {
    let mut name = path.to_owned().into_os_string();
    name.push(suffix);
    std::fs::metadata(name).map_or(0, |file| file.len())
}

/// Refuses a file of another program or of a later format. An empty database is a new store where one may be made.
fn identify(connection: &Connection, path: &Path, may_be_new: bool) -> Result<(), StoreError> {
    let refuse = |reason: String| StoreError::NotAStore {
        path: path.to_owned(),
        reason,
    };
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i32>(0));
    let application = number("PRAGMA application_id").map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => refuse("not a SQLite file".into()),
        _ => failed("identify")(error),
    })?;
    let objects = number("SELECT count(*) FROM sqlite_schema").map_err(failed("identify"))?;
    if application == 0 && objects == 0 && may_be_new {
        return Ok(());
    }
    if application != APPLICATION_ID {
        return Err(refuse(format!("its application id is {application:#010x}")));
    }
    match number("PRAGMA user_version").map_err(failed("identify"))? {
        FORMAT_VERSION => Ok(()),
        version => Err(refuse(format!(
            "format version {version}; this program knows {FORMAT_VERSION}"
        ))),
    }
}

fn prepare(connection: &mut Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(8 * Column::COUNT);
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "journal_size_limit", LOG_LIMIT_BYTES)?;
    let synchronous = match options.durability {
        Durability::Full => "full",
        Durability::Process => "normal",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // A store that lacks nothing is opened without a write, so that it opens on a full disk too.
    let (columns, _) = families(connection)?;
    if columns != ColumnSet::ALL {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for column in Column::ALL {
            transaction.execute(&SQL[column.index()].create, [])?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", FORMAT_VERSION)?;
        transaction.commit()?;
    }
    if let Some(pages) = options.max_pages {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    Ok(())
}

fn families(connection: &Connection) -> rusqlite::Result<(ColumnSet, Vec<String>)> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name";
    let mut statement = connection.prepare(sql)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?;
    let (mut columns, mut unknown) = (ColumnSet::EMPTY, Vec::new());
    for name in names {
        let name = name?;
        match Column::from_name(&name) {
            Some(column) => columns = columns.with(column),
            None => unknown.push(name),
        }
    }
    Ok((columns, unknown))
}

pub(super) fn failed(operation: &'static str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |error| match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full {
            backend: NAME,
            operation,
        },
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly { operation },
        _ => StoreError::backend(NAME, operation, error),
    }
}

impl ReadView for SqliteBackend {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.columns.require([column])?;
        self.readers
            .with(|connection| readers::has(connection, column, key))
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.columns.require([column])?;
        self.readers
            .with(|connection| readers::get(connection, column, key))
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        self.columns.require([column])?;
        ReadSession::begin(&self.readers, self.columns)?.cursor(column, range, direction)
    }
}

impl Database for SqliteBackend {
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
        self.writer.is_none()
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn put(&self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.columns.require([column])?;
        let connection = self.writer("put")?.lock();
        execute(
            &connection,
            &SQL[column.index()].put,
            rusqlite::params![key, value],
        )
        .map_err(failed("put"))
    }

    fn delete(&self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        self.columns.require([column])?;
        let connection = self.writer("delete")?.lock();
        execute(&connection, &SQL[column.index()].delete, [key]).map_err(failed("delete"))
    }

    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError> {
        self.columns.require(transaction.columns())?;
        let mut connection = self.writer("apply")?.lock();
        let result = (|| {
            // Immediate: the write lock is taken at once, where waiting is covered by the busy timeout. Dropped without
            // commit, also by a panic, it rolls back.
            let open = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for (column, key, op) in transaction.iter() {
                let sql = &SQL[column.index()];
                match op {
                    Op::Put(value) => execute(&open, &sql.put, rusqlite::params![key, value])?,
                    Op::Delete => execute(&open, &sql.delete, [key])?,
                }
            }
            open.commit()
        })();
        result.map_err(failed("apply"))
    }

    fn flush(&self) -> Result<(), StoreError> {
        let connection = self.writer("flush")?.lock();
        if self.durability == Durability::Process {
            sync_log(&connection).map_err(failed("flush"))?;
        }
        cut_log_back(&connection).map_err(failed("flush"))
    }

    fn snapshot(&self) -> Result<Box<dyn ReadView + '_>, StoreError> {
        Ok(Box::new(SessionView(ReadSession::begin(
            &self.readers,
            self.columns,
        )?)))
    }

    fn delete_range(&self, column: Column, range: &KeyRange) -> Result<(), StoreError> {
        self.columns.require([column])?;
        let connection = self.writer("delete range")?.lock();
        let sql = &SQL[column.index()];
        match range.end() {
            Some(end) => execute(&connection, &sql.delete_between, [range.start(), end]),
            None => execute(&connection, &sql.delete_from, [range.start()]),
        }
        .map_err(failed("delete range"))
    }

    fn approximate_size(&self, column: Column, range: &KeyRange) -> Result<u64, StoreError> {
        self.columns.require([column])?;
        let sql = &SQL[column.index()];
        self.readers.with(|connection| {
            let size = match range.end() {
                Some(end) => connection
                    .prepare_cached(&sql.size_between)
                    .and_then(|mut statement| {
                        statement.query_row([range.start(), end], |row| row.get::<_, i64>(0))
                    }),
                None => connection
                    .prepare_cached(&sql.size_from)
                    .and_then(|mut statement| {
                        statement.query_row([range.start()], |row| row.get::<_, i64>(0))
                    }),
            };
            size.map(i64::unsigned_abs).map_err(failed("size of range"))
        })
    }
}

/// A commit that is synced takes the whole log before it along. A checkpoint does not always: it syncs the log only as far
/// as the oldest view lets it move rows into the file.
fn sync_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "full")?;
    let synced = connection.pragma_update(None, "user_version", FORMAT_VERSION);
    connection.pragma_update(None, "synchronous", "normal")?;
    synced
}

/// Moves what no view holds up into the file, and cuts the log if that is all of it. Waits for nobody: views of this and of
/// other processes may stay open for long, and the rows are safe in the log.
fn cut_log_back(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    let cut = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    connection.busy_timeout(BUSY_TIMEOUT)?;
    cut
}

fn execute(connection: &Connection, sql: &str, parameters: impl rusqlite::Params) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute(parameters).map(drop)
}
