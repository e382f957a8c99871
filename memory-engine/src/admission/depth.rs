//! Keeping documents writable (ENG-1039): patches can nest a document deeper than its text may be, although each patch
//! has a text of its own. Such a state is refused when it arises; nobody could be told about it. Before step 16, whose scan relies on it.

use memory_wire::codec;
use memory_wire::message::Operation;
use memory_wire::patch::{PatchAction, PatchOp};
use memory_wire::value::Value;

use super::Admission;
use super::operations::Written;
use crate::error::EngineError;

/// Nesting that a patch may bring without being looked at: half of what the codec accepts, so that documents made of such
/// patches stay far from its limit.
const UNSUSPICIOUS: usize = codec::MAX_DEPTH / 2;

impl Admission<'_, '_> {
    /// Makes sure that every document a patch of this commit may have deepened still has a text.
    pub(super) fn check_depths(&self, written: &Written<'_>) -> Result<(), EngineError> {
        for (index, operation) in self.apply.commit.operations.iter().enumerate() {
            if let Operation::Patch { patches, .. } = operation
                && patches.iter().any(may_deepen)
                && let Some(instance) = self.target(index, operation)?
                && let Some(document) = written.state(&instance)?
            {
                codec::encode(&document)?;
            }
        }
        Ok(())
    }
}

/// Everything but a `move` leaves the deepest place at most where it was or at the end of what it writes.
fn may_deepen(patch: &PatchOp) -> bool {
    let at = patch.path().len();
    match patch.action() {
        PatchAction::Move { from, path } => path.len() > from.len(),
        PatchAction::Replace { value, .. } | PatchAction::Add { value, .. } => {
            is_deep(at, std::slice::from_ref(value))
        }
        PatchAction::Append { values, .. } | PatchAction::AddUnique { values, .. } => is_deep(at + 1, values),
        PatchAction::Splice { add, .. } => is_deep(at + 1, add),
        PatchAction::Increment { .. } => is_deep(at, &[]),
        PatchAction::Remove { .. } | PatchAction::RemoveByValue { .. } => false,
    }
}

/// Whether something among `values`, placed `at` levels down, lies deeper than the unsuspicious.
fn is_deep(at: usize, values: &[Value]) -> bool {
    let mut pending: Vec<(&Value, usize)> = values.iter().map(|value| (value, at)).collect();
    if at > UNSUSPICIOUS {
        return true;
    }
    while let Some((value, depth)) = pending.pop() {
        if depth > UNSUSPICIOUS {
            return true;
        }
        match value {
            Value::Object(object) => pending.extend(object.iter().map(|(_, member)| (member, depth + 1))),
            Value::Array(array) => pending.extend(array.elements().map(|(_, element)| (element, depth + 1))),
            _ => {}
        }
    }
    false
}
