//! Dumping a store into one file (ENG-1500). Consistent while a server holds the store, and never a writer of it.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::error::EngineError;

/// Copies the store at `store` into a new file at `destination`, which must not exist.
///
/// # Errors
/// SQLite's: an idle store with a dirty log may refuse to be opened read-only, and is then not opened any other way.
pub fn dump(store: &Path, destination: &Path) -> Result<(), EngineError> {
    let io = |path: &Path, kind, text: &str| EngineError::Io {
        path: path.to_owned(),
        source: std::io::Error::new(kind, text.to_owned()),
    };
    if destination.exists() {
        return Err(io(
            destination,
            std::io::ErrorKind::AlreadyExists,
            "the destination of a dump must not exist",
        ));
    }
    let target = destination.to_str();
    let target = target.ok_or_else(|| {
        io(
            destination,
            std::io::ErrorKind::InvalidInput,
            "the path must be valid text",
        )
    })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(store, flags)?;
    conn.execute("VACUUM main INTO ?1", [target])?;
    Ok(())
}
