//! The stamps of appended entries (ENG-530): which entries get them, and writing them into a copy of the operation. The
//! commit as received stays unstamped, so that a retry compares equal.

use memory_wire::ids::Seq;
use memory_wire::patch::PatchOp;
use memory_wire::value::{Array, Value};

use crate::error::EngineError;

/// One entry to stamp when its operation is written.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    /// Index of the patch in the operation; `None` in a `set`.
    pub(super) patch: Option<usize>,
    /// Index among the entries there.
    pub(super) entry: usize,
    /// The actor; `None` keeps what the entry brought (ENG-522).
    pub(super) fired_at: Option<Value>,
}

/// The stamps of a commit, by operation.
#[derive(Debug, Default)]
pub(crate) struct Stamps(std::collections::BTreeMap<usize, Vec<Stamp>>);

impl Stamps {
    pub(super) fn add(&mut self, operation: usize, stamp: Stamp) {
        self.0.entry(operation).or_default().push(stamp);
    }

    pub(crate) fn of(&self, operation: usize) -> Option<&[Stamp]> {
        self.0.get(&operation).map(Vec::as_slice)
    }
}

/// A copy of a `set` document with its new entries stamped (ENG-530).
pub(crate) fn stamp_document(document: &Value, stamps: &[Stamp], seq: Seq) -> Value {
    let mut stamped = document.clone();
    if let Value::Object(root) = &mut stamped
        && let Some(Value::Object(value)) = root.get_mut("value")
        && let Some(Value::Array(entries)) = value.get_mut("entries")
    {
        stamp_entries(entries, stamps.iter(), seq);
    }
    stamped
}

/// A copy of a patch list with its new entries stamped (ENG-530).
pub(crate) fn stamp_patches(
    patches: &[PatchOp],
    stamps: &[Stamp],
    seq: Seq,
) -> Result<Vec<PatchOp>, EngineError> {
    let stamp_one = |(index, patch): (usize, &PatchOp)| {
        let mut source = patch.source().clone();
        if let Value::Object(operation) = &mut source {
            for field in ["value", "values"] {
                if let Some(Value::Array(entries)) = operation.get_mut(field) {
                    stamp_entries(
                        entries,
                        stamps.iter().filter(|stamp| stamp.patch == Some(index)),
                        seq,
                    );
                }
            }
        }
        Ok(PatchOp::from_value(&source)?)
    };
    patches.iter().enumerate().map(stamp_one).collect()
}

fn stamp_entries<'t>(entries: &mut Array, stamps: impl Iterator<Item = &'t Stamp>, seq: Seq) {
    for stamp in stamps {
        if let Some(Value::Object(entry)) = entries.get_mut(stamp.entry) {
            entry.insert("seq", seq);
            if let Some(fired_at) = &stamp.fired_at {
                entry.insert("firedAt", fired_at.clone());
            }
        }
    }
}
