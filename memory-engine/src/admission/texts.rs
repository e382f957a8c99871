//! The texts a commit will be stored as (ENG-120, 122). They depend on the commit alone, so whoever hands it to the writer
//! can work them out before, on a thread of its own ([`CommitTexts::of`]): the writer is the one thread that all commits
//! of a space wait for. Admission makes what it is not given.

use std::borrow::Cow;

use memory_wire::codec;
use memory_wire::message::{ClientCommit, Operation};
use memory_wire::patch::{PatchOp, patches_to_value};
use memory_wire::value::Value;

use crate::error::EngineError;

/// Texts of one commit's value and of its operations, as far as they were worked out. What has no text is left out, and
/// refused by admission in its turn.
#[derive(Clone, Debug, Default)]
pub struct CommitTexts {
    /// Column `original`.
    original: Option<String>,
    /// Column `data` of each operation, as it is before it is stamped.
    data: Vec<Option<String>>,
}

impl CommitTexts {
    /// Works out the texts of `commit`. To be given to the admission of this very commit ([`super::ApplyCommit::texts`]).
    pub fn of(commit: &ClientCommit) -> CommitTexts {
        let data = |operation: &Operation| match operation {
            Operation::Set { value, .. } => codec::encode(value).ok(),
            Operation::Patch { patches, .. } => codec::encode(&patches_to_value(patches)).ok(),
            Operation::Delete { .. } | Operation::Sqlite { .. } => None,
        };
        CommitTexts {
            original: codec::encode(&commit.value).ok(),
            data: commit.operations.iter().map(data).collect(),
        }
    }

    pub(super) fn original(&self, commit: &ClientCommit) -> Result<Cow<'_, str>, EngineError> {
        match &self.original {
            Some(text) => Ok(Cow::Borrowed(text)),
            None => Ok(Cow::Owned(codec::encode(&commit.value)?)),
        }
    }

    /// The text of operation `index`, which was not stamped.
    pub(super) fn data(&self, index: usize) -> Option<&str> {
        self.data.get(index)?.as_deref()
    }
}

/// A document or a patch list on its way into column `data`.
pub(super) struct Stored<'t, T> {
    pub(super) content: T,
    /// Its text, if that is there already.
    pub(super) text: Option<&'t str>,
}

impl<'t> Stored<'t, Value> {
    pub(super) fn encode(&self) -> Result<Cow<'t, str>, EngineError> {
        encoded(self.text, &self.content)
    }
}

impl<'t> Stored<'t, Vec<PatchOp>> {
    /// The list as a value, and its text.
    pub(super) fn encode(&self) -> Result<(Value, Cow<'t, str>), EngineError> {
        let list = patches_to_value(&self.content);
        let text = encoded(self.text, &list)?;
        Ok((list, text))
    }
}

fn encoded<'t>(known: Option<&'t str>, value: &Value) -> Result<Cow<'t, str>, EngineError> {
    match known {
        Some(text) => Ok(Cow::Borrowed(text)),
        None => Ok(Cow::Owned(codec::encode(value)?)),
    }
}
