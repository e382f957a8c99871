//! What lies at a store's path, looked at before SQLite may change it; and the draft a new store is made in. Used by
//! [`crate::open`] only. Existing files are never read here but through SQLite: closing a descriptor of our own would
//! drop the locks that SQLite holds on the file in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

use crate::error::{BadStore, EngineError};
use crate::{migration, schema};

const A_STORE: &str = "a space's store (a SQLite database)";

/// Bytes of the smallest page a database can have, and so of the smallest database.
const SMALLEST_PAGE: u64 = 512;

/// What the file system says is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No file: a new space.
    Nothing,
    /// A file with content.
    File,
}

fn bad(path: &Path, found: impl Into<String>, expected: &'static str) -> EngineError {
    EngineError::BadStore(Box::new(BadStore {
        path: path.to_owned(),
        found: found.into(),
        expected,
    }))
}

fn io_error(path: &Path, source: io::Error) -> EngineError {
    if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        return EngineError::StoreFull(format!("{}: {source}", path.display()));
    }
    EngineError::Io {
        path: path.to_owned(),
        source,
    }
}

fn metadata(path: &Path) -> Result<Option<Metadata>, EngineError> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(path, error)),
    }
}

/// Looks at the file and its directory. Opens nothing.
///
/// # Errors
/// [`EngineError::BadStore`] for anything that can neither be opened as a store nor be created as one.
pub(crate) fn look(path: &Path) -> Result<Found, EngineError> {
    let directory = directory_of(path);
    match metadata(directory)? {
        None => {
            return Err(bad(
                path,
                "no directory to hold it",
                "the store's directory to exist",
            ));
        }
        Some(found) if !found.is_dir() => {
            return Err(bad(path, "a file where its directory should be", "a directory"));
        }
        // Whoever marked it so does not want a log beside the store, even if our privileges would allow one.
        Some(found) if found.permissions().readonly() => {
            return Err(bad(
                path,
                "a read-only directory",
                "a directory that the store's log can be written in",
            ));
        }
        Some(_) => {}
    }
    let Some(found) = metadata(path)? else {
        // A link to nowhere is not an invitation to create its target.
        return match fs::symlink_metadata(path) {
            Ok(_) => Err(bad(path, "a symbolic link to nothing", A_STORE)),
            Err(_) => Ok(Found::Nothing),
        };
    };
    if found.is_dir() {
        return Err(bad(path, "a directory", A_STORE));
    }
    if !found.is_file() {
        return Err(bad(path, "something that is not a regular file", A_STORE));
    }
    if found.len() == 0 {
        return Err(bad(path, "an empty file", A_STORE));
    }
    if found.len() < SMALLEST_PAGE {
        // SQLite would take it for a new database.
        let found = format!("a file of {} bytes, too short for a database", found.len());
        return Err(bad(path, found, A_STORE));
    }
    if found.permissions().readonly() {
        return Err(bad(path, "a read-only file", "a store that may be written"));
    }
    Ok(Found::File)
}

/// Looks into the opened file, before anything is written to it.
///
/// # Errors
/// [`EngineError::BadStore`] for another format, another application's or a newer engine's database, or a file that was
/// cut short.
pub(crate) fn check(conn: &Connection, path: &Path) -> Result<(), EngineError> {
    let log = log_path(path);
    let had_log = log_length(&log)? > 0;
    let checked = read_only(conn, path)
        .and_then(|()| identity(conn, path))
        .and_then(|()| shape(conn, path))
        .and_then(|()| length(conn, path, &log));
    checked.map_err(|error| {
        // Closing must not move what the log holds into a file that we refuse.
        if had_log && let Err(error) = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
            tracing::warn!(%error, "the log of a refused store may be moved into it");
        }
        match error {
            // A format that this SQLite does not read.
            EngineError::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => {
                bad(path, EngineError::from(error).to_string(), A_STORE)
            }
            error => refusal(path, error),
        }
    })
}

/// Whether an opened file is a store at all, and one of this version or an older one; for files that are only read.
///
/// # Errors
/// [`EngineError::BadStore`].
pub(crate) fn identify(conn: &Connection, path: &Path) -> Result<(), EngineError> {
    let identified = identity(conn, path)
        .and_then(|()| shape(conn, path))
        .and_then(|()| {
            let commits = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'commit'";
            match conn.query_row(commits, [], |row| row.get::<_, i64>(0))? {
                0 => Err(bad(path, "a database without commits", A_STORE)),
                _ => Ok(()),
            }
        });
    identified.map_err(|error| refusal(path, error))
}

fn read_only(conn: &Connection, path: &Path) -> Result<(), EngineError> {
    if conn.is_readonly("main")? {
        return Err(bad(
            path,
            "a file that may not be written",
            "a store that may be written",
        ));
    }
    Ok(())
}

/// The two marks in the header that the engine never sets (ENG-112).
fn identity(conn: &Connection, path: &Path) -> Result<(), EngineError> {
    let mark = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = mark("application_id")?;
    if application != 0 {
        return Err(bad(
            path,
            format!("a database of another application (application_id {application})"),
            "application_id 0",
        ));
    }
    let version = mark("user_version")?;
    if version != 0 {
        return Err(bad(
            path,
            format!("a store of a newer version (user_version {version})"),
            "user_version 0",
        ));
    }
    Ok(())
}

/// Tables of ours, if there are any; and no column that our rows could not fill.
fn shape(conn: &Connection, path: &Path) -> Result<(), EngineError> {
    let mut tables = conn.prepare("SELECT name FROM sqlite_master WHERE type = 'table'")?;
    let tables: Vec<String> = tables
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let ours = our_columns()?;
    if !tables.is_empty()
        && !tables
            .iter()
            .any(|table| ours.contains_key(&table.to_ascii_lowercase()))
    {
        return Err(bad(
            path,
            format!("a database of something else (its tables: {})", tables.join(", ")),
            A_STORE,
        ));
    }
    let mut columns = conn.prepare(&format!(
        "{ALL_COLUMNS} AND c.\"notnull\" AND c.dflt_value IS NULL"
    ))?;
    let mut columns = columns.query([])?;
    while let Some(row) = columns.next()? {
        let (table, column): (String, String) = (row.get(0)?, row.get(1)?);
        let (table, column) = (table.to_ascii_lowercase(), column.to_ascii_lowercase());
        if ours.get(&table).is_some_and(|known| !known.contains(&column)) {
            return Err(bad(
                path,
                format!("a store of a newer version (column {table}.{column} needs a value we do not know)"),
                "the columns of this version, and others only with a default",
            ));
        }
    }
    Ok(())
}

const ALL_COLUMNS: &str =
    "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'";

/// The tables of a store and their columns, as this version makes them.
type Columns = BTreeMap<String, BTreeSet<String>>;

/// Read once from a store made for the purpose.
fn our_columns() -> Result<&'static Columns, EngineError> {
    static OURS: OnceLock<Columns> = OnceLock::new();
    if let Some(known) = OURS.get() {
        return Ok(known);
    }
    let made = Connection::open_in_memory()?;
    made.execute_batch(schema::CREATE)?;
    migration::migrate(&made)?;
    let mut columns = made.prepare(ALL_COLUMNS)?;
    let mut columns = columns.query([])?;
    let mut known = Columns::new();
    while let Some(row) = columns.next()? {
        known.entry(row.get(0)?).or_default().insert(row.get(1)?);
    }
    Ok(OURS.get_or_init(|| known))
}

/// Whether the file holds the pages it says it has. With a log, the log may hold the rest.
fn length(conn: &Connection, path: &Path, log: &Path) -> Result<(), EngineError> {
    let number = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (pages, page) = (number("page_count")?, number("page_size")?);
    // In this order: what is not in the log any more is in the file by now.
    let in_log = log_length(log)?;
    let length = metadata(path)?.map_or(0, |found| found.len());
    if in_log == 0 && i128::from(length) < i128::from(pages) * i128::from(page) {
        return Err(bad(
            path,
            format!("a file cut short: {length} bytes of {pages} pages of {page}"),
            "a whole store",
        ));
    }
    Ok(())
}

/// What it means for a store that opening it failed like this.
pub(crate) fn refusal(path: &Path, error: EngineError) -> EngineError {
    match error {
        EngineError::StoreDamaged(text) => bad(path, text, A_STORE),
        EngineError::StoreReadOnly(text) => bad(path, text, "a store that may be written"),
        EngineError::StoreIo(text) => {
            let expected = "a store that can be read and written, in a directory that can hold its log";
            bad(path, text, expected)
        }
        other => other,
    }
}

/// The log beside a store.
pub(crate) fn log_path(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

/// Bytes of the log; none if there is no log.
pub(crate) fn log_length(log: &Path) -> Result<u64, EngineError> {
    Ok(metadata(log)?.map_or(0, |found| found.len()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// A store in the making, under a name of its own beside the store's. Removed when it is done with.
pub(crate) struct Draft {
    pub(crate) path: PathBuf,
}

impl Draft {
    /// Takes the first free name. One that is taken belongs to another process, or to one that was stopped.
    pub(crate) fn begin(store: &Path) -> Result<Draft, EngineError> {
        let mut number = 0;
        loop {
            let path = draft_path(store, number);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => return Ok(Draft { path }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(io_error(&path, error)),
            }
        }
    }

    /// Gives the finished draft the store's name unless there is a store by now, durably; then clears away what stopped
    /// processes left. Returns whether the store is this draft.
    pub(crate) fn publish(self, store: &Path) -> Result<bool, EngineError> {
        let synced = |path: &Path| fs::File::open(path)?.sync_all();
        synced(&self.path).map_err(|error| io_error(&self.path, error))?;
        let ours = match fs::hard_link(&self.path, store) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(io_error(store, error)),
        };
        let directory = directory_of(store);
        synced(directory).map_err(|error| io_error(directory, error))?;
        drop(self);
        // There is a store now, so nobody can want a draft of it any more.
        (0..)
            .map(|number| draft_path(store, number))
            .take_while(|path| path.exists())
            .for_each(remove);
        Ok(ours)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            remove(beside(&self.path, suffix));
        }
    }
}

fn draft_path(store: &Path, number: u64) -> PathBuf {
    beside(store, &format!("-new-{number}"))
}

fn remove(path: PathBuf) {
    match fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "a draft of a store could not be removed")
        }
    }
}
