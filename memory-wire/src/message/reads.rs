//! The read set of a commit (WIRE-731, ENG-330…337): what a transaction saw, of confirmed state and through the
//! session's own pending commits.

use super::field::{
    describe, elements, entity_id, expected, flag, insert_scope, list, named_branch, path, scope_named,
};
use crate::error::WireError;
use crate::ids::{BranchName, EntityId, LocalSeq, Seq};
use crate::pointer::{DocPath, path_to_value};
use crate::scope_key::Scope;
use crate::value::{Object, Value};

/// A read of a document as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmedRead {
    /// The document.
    pub id: EntityId,
    /// Its scope; the instance is the reader's own.
    pub scope: Scope,
    /// Branch, when it is not the commit's.
    pub branch: Option<BranchName>,
    /// What of it was read, from the document root.
    pub path: DocPath,
    /// The seq it was read at.
    pub seq: Seq,
    /// True when only the shape at `path` was read, not what is below.
    pub non_recursive: bool,
}

/// A read through the session's own unconfirmed commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRead {
    /// The document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// What of it was read, from the document root.
    pub path: DocPath,
    /// The session's commits the read looked through. Never empty, in the order given.
    pub local_seqs: Vec<LocalSeq>,
    /// The seq below those layers; 0 for never seen. Absent from old clients.
    pub basis_seq: Option<Seq>,
    /// True when only the shape at `path` was read.
    pub non_recursive: bool,
}

/// The read set of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Reads of confirmed state.
    pub confirmed: Vec<ConfirmedRead>,
    /// Reads of pending state.
    pub pending: Vec<PendingRead>,
}

impl ConfirmedRead {
    pub(super) fn from_value(index: usize, value: &Value) -> Result<ConfirmedRead, WireError> {
        let place = |field: &str| format!("commit.reads.confirmed[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                &place(""),
                "an object",
                Some(value),
            )));
        }
        let seq = value.member("seq");
        Ok(ConfirmedRead {
            id: entity_id(&place(".id"), value)?,
            scope: scope_named(&place(".scope"), value)?,
            branch: named_branch(&place(".branch"), value.member("branch"))?,
            path: path(&place(".path"), value)?,
            seq: seq.and_then(Seq::from_value).ok_or_else(|| {
                WireError::protocol(expected(&place(".seq"), "a non-negative safe integer", seq))
            })?,
            non_recursive: flag(&place(".nonRecursive"), value.member("nonRecursive"))?,
        })
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        insert_scope(&mut object, self.scope);
        if let Some(branch) = &self.branch {
            object.insert("branch", branch);
        }
        object.insert("path", path_to_value(&self.path));
        object.insert("seq", self.seq);
        if self.non_recursive {
            object.insert("nonRecursive", true);
        }
        object.into()
    }
}

impl PendingRead {
    pub(super) fn from_value(index: usize, value: &Value) -> Result<PendingRead, WireError> {
        let place = |field: &str| format!("commit.reads.pending[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                &place(""),
                "an object",
                Some(value),
            )));
        }
        let id = entity_id(&place(".id"), value)?;
        let layers = match value.member("localSeq") {
            Some(Value::Array(layers)) => elements(layers),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        };
        if layers.is_empty() {
            return Err(WireError::protocol(format!(
                "pending read on {id} names no localSeq"
            )));
        }
        let local_seqs = layers
            .iter()
            .map(LocalSeq::from_value)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| {
                WireError::protocol(format!("pending read on {id} names a non-integer localSeq"))
            })?;
        let basis_seq = match value.member("basisSeq") {
            None => None,
            Some(basis) => Some(Seq::from_value(basis).ok_or_else(|| {
                let spelled = describe(Some(basis));
                WireError::protocol(format!(
                    "pending read on {id} names a malformed basisSeq: {spelled}"
                ))
            })?),
        };
        Ok(PendingRead {
            scope: scope_named(&place(".scope"), value)?,
            path: path(&place(".path"), value)?,
            non_recursive: flag(&place(".nonRecursive"), value.member("nonRecursive"))?,
            id,
            local_seqs,
            basis_seq,
        })
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        insert_scope(&mut object, self.scope);
        object.insert("path", path_to_value(&self.path));
        // One layer is a plain number, which every server understands; several need `pendingReadStacks`.
        match self.local_seqs.as_slice() {
            [one] => object.insert("localSeq", *one),
            several => object.insert(
                "localSeq",
                several.iter().map(|n| Value::from(*n)).collect::<Vec<_>>(),
            ),
        };
        if let Some(basis) = self.basis_seq {
            object.insert("basisSeq", basis);
        }
        if self.non_recursive {
            object.insert("nonRecursive", true);
        }
        object.into()
    }
}

impl Reads {
    pub(super) fn from_value(value: Option<&Value>) -> Result<Reads, WireError> {
        // Missing `reads` is one of the reference's typed answers (SRV-116).
        let Some(reads @ Value::Object(_)) = value else {
            return Err(WireError::transaction(expected(
                "commit.reads",
                "an object",
                value,
            )));
        };
        Ok(Reads {
            confirmed: list("commit.reads.confirmed", reads.member("confirmed"), false)?
                .iter()
                .enumerate()
                .map(|(index, read)| ConfirmedRead::from_value(index, read))
                .collect::<Result<_, _>>()?,
            pending: list("commit.reads.pending", reads.member("pending"), false)?
                .iter()
                .enumerate()
                .map(|(index, read)| PendingRead::from_value(index, read))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert(
            "confirmed",
            self.confirmed
                .iter()
                .map(ConfirmedRead::to_value)
                .collect::<Vec<_>>(),
        );
        object.insert(
            "pending",
            self.pending.iter().map(PendingRead::to_value).collect::<Vec<_>>(),
        );
        object.into()
    }
}
