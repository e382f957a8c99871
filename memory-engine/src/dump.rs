//! Copies of a store in one file (ENG-1500): made while the store is served, and never writing it; and a store made of
//! such a copy again. A copy appears under its name when it is whole, or not at all.

use std::io::{Error, ErrorKind};
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::error::EngineError;
use crate::integrity::{self, Finding};
use crate::open::finish;
use crate::reader::Reader;
use crate::store_file::{self, Draft};

/// Copies the store at `store` into a new file at `destination`, which must not exist.
///
/// # Errors
/// SQLite's: an idle store with a dirty log may refuse to be opened read-only, and is then not opened any other way.
/// [`EngineError::Io`] when there is something at `destination`.
pub fn dump(store: &Path, destination: &Path) -> Result<(), EngineError> {
    copy(&open(store)?, destination)
}

impl Reader {
    /// Copies the store into a new file at `destination`, which must not exist: one committed state of it, while others
    /// read and write on. Unlike [`dump`] it needs no read-only open, so it works on a store with a dirty log. Not to be
    /// called inside [`Reader::snapshot`].
    ///
    /// # Errors
    /// SQLite's; [`EngineError::Io`] when there is something at `destination`.
    pub fn back_up(&self, destination: &Path) -> Result<(), EngineError> {
        copy(&self.conn, destination)
    }
}

/// Makes the store at `store`, which must not exist, of a copy: one that [`dump`] or [`Reader::back_up`] made here or the
/// reference implementation made there. The copy is read and not changed; an old one is migrated on the way.
///
/// # Errors
/// [`EngineError::DamagedCopy`] with what is wrong with the copy; [`EngineError::BadStore`] when it is none of a store;
/// [`EngineError::Io`] when there is something at `store`.
pub fn restore(copy_of_store: &Path, store: &Path) -> Result<(), EngineError> {
    let conn = open(copy_of_store)?;
    store_file::identify(&conn, copy_of_store)?;
    let draft = begin(store)?;
    into(&conn, &draft)?;
    drop(conn);
    finish(&draft.path)?;
    let findings = integrity::check(&Reader::open(&draft.path)?)?;
    if !findings.is_empty() {
        return Err(damaged(copy_of_store, findings));
    }
    publish(draft, store)
}

fn damaged(copy: &Path, findings: Vec<Finding>) -> EngineError {
    EngineError::DamagedCopy {
        path: copy.to_owned(),
        findings,
    }
}

fn open(store: &Path) -> Result<Connection, EngineError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(store, flags).map_err(|error| store_file::refusal(store, error.into()))
}

fn copy(conn: &Connection, destination: &Path) -> Result<(), EngineError> {
    let draft = begin(destination)?;
    into(conn, &draft)?;
    publish(draft, destination)
}

fn taken(path: &Path) -> EngineError {
    EngineError::Io {
        path: path.to_owned(),
        source: Error::new(ErrorKind::AlreadyExists, "what is to be made must not exist"),
    }
}

fn begin(destination: &Path) -> Result<Draft, EngineError> {
    if destination.symlink_metadata().is_ok() {
        return Err(taken(destination));
    }
    Draft::begin(destination)
}

fn into(conn: &Connection, draft: &Draft) -> Result<(), EngineError> {
    let Some(target) = draft.path.to_str() else {
        return Err(EngineError::Io {
            path: draft.path.clone(),
            source: Error::new(ErrorKind::InvalidInput, "the path must be valid text"),
        });
    };
    conn.execute("VACUUM main INTO ?1", [target])?;
    Ok(())
}

fn publish(draft: Draft, destination: &Path) -> Result<(), EngineError> {
    if draft.publish(destination)? {
        Ok(())
    } else {
        Err(taken(destination))
    }
}
