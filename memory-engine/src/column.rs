//! What the columns of a row hold (ENG §1.4), read and written: seqs, ids, operation words, classes and canonical
//! text. The only place that turns SQL values into the engine's types and back.

use memory_wire::codec;
use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::Seq;
use memory_wire::{ScopeKey, Value};
use rusqlite::Row;
use rusqlite::types::ValueRef;

use crate::error::{EngineError, StoredDataError};

/// What a revision did (`revision.op`, `head.op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevisionOp {
    /// Replaced the whole document.
    Set,
    /// Patched it.
    Patch,
    /// Left a tombstone.
    Delete,
}

impl RevisionOp {
    /// The stored and wire word.
    pub fn as_str(self) -> &'static str {
        match self {
            RevisionOp::Set => "set",
            RevisionOp::Patch => "patch",
            RevisionOp::Delete => "delete",
        }
    }
}

/// A seq as SQL stores it. Seqs stay below 2⁵³ (ENG-124), so the cast is exact.
pub(crate) fn sql(seq: Seq) -> i64 {
    i64::try_from(seq.0).unwrap_or(i64::MAX)
}

pub(crate) fn text<'r>(row: &'r Row<'_>, index: usize) -> Result<&'r str, EngineError> {
    Ok(row.get_ref(index)?.as_str().map_err(rusqlite::Error::from)?)
}

pub(crate) fn optional_text<'r>(row: &'r Row<'_>, index: usize) -> Result<Option<&'r str>, EngineError> {
    Ok(row
        .get_ref(index)?
        .as_str_or_null()
        .map_err(rusqlite::Error::from)?)
}

pub(crate) fn seq(row: &Row<'_>, index: usize) -> Result<Seq, EngineError> {
    Ok(Seq(count(row, index)?))
}

pub(crate) fn optional_seq(row: &Row<'_>, index: usize) -> Result<Option<Seq>, EngineError> {
    match row.get_ref(index)? {
        ValueRef::Null => Ok(None),
        _ => seq(row, index).map(Some),
    }
}

/// A non-negative integer column; a negative one is not something the engine wrote.
pub(crate) fn count(row: &Row<'_>, index: usize) -> Result<u64, EngineError> {
    let stored: i64 = row.get(index)?;
    u64::try_from(stored).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, stored).into())
}

pub(crate) fn op(row: &Row<'_>, index: usize) -> Result<RevisionOp, EngineError> {
    match text(row, index)? {
        "set" => Ok(RevisionOp::Set),
        "patch" => Ok(RevisionOp::Patch),
        "delete" => Ok(RevisionOp::Delete),
        other => Err(StoredDataError::Op(other.to_owned()).into()),
    }
}

pub(crate) fn class(row: &Row<'_>, index: usize) -> Result<CommitClass, EngineError> {
    let word = text(row, index)?;
    Ok(CommitClass::from_name(word).ok_or_else(|| StoredDataError::Class(word.to_owned()))?)
}

pub(crate) fn scope_key(row: &Row<'_>, index: usize) -> Result<ScopeKey, EngineError> {
    let key = text(row, index)?;
    Ok(ScopeKey::parse(key).map_err(|_| StoredDataError::ScopeKey(key.to_owned()))?)
}

/// Decodes the canonical text of a JSON column (ENG-120).
pub(crate) fn decode(stored: &str) -> Result<Value, EngineError> {
    if !stored.starts_with(codec::PREFIX) {
        return Err(StoredDataError::NotEncoded(stored.to_owned()).into());
    }
    Ok(codec::decode(stored).map_err(StoredDataError::Text)?)
}
