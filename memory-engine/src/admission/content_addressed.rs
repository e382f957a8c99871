//! Content-addressed documents (ENG-360, 361): written once, at space scope, never changed. A `set` of what is
//! stored already is elided. Step 9, first part.

use std::collections::BTreeSet;

use memory_wire::equality::value_equal;
use memory_wire::ids::EntityId;
use memory_wire::message::Operation;
use memory_wire::scope_key::{InstanceId, Scope};
use memory_wire::value::Value;
use rustc_hash::FxHashMap;

use super::Admission;
use crate::error::EngineError;
use crate::refusal::Refusal;

/// Indexes of operations that change nothing and are skipped.
pub(super) type Elided = BTreeSet<usize>;

impl Admission<'_, '_> {
    pub(super) fn check_content_addressed(&self) -> Result<Elided, EngineError> {
        let mut elided = Elided::new();
        let mut sets: FxHashMap<&EntityId, &Value> = FxHashMap::default();
        for (index, operation) in self.apply.commit.operations.iter().enumerate() {
            let Some((id, scope)) = operation.target().filter(|(id, _)| id.is_content_addressed()) else {
                continue;
            };
            let Operation::Set { value, .. } = operation else {
                return Err(Refusal::ContentAddressedOp {
                    op: operation.kind(),
                    id: id.clone(),
                }
                .into());
            };
            if scope != Scope::Space {
                return Err(Refusal::ContentAddressedScope {
                    id: id.clone(),
                    scope,
                }
                .into());
            }
            match sets.insert(id, value) {
                Some(earlier) if !value_equal(earlier, value) => {
                    return Err(Refusal::ContentAddressedConflict { id: id.clone() }.into());
                }
                Some(_) | None => {}
            }
            if let Some(stored) = self
                .engine
                .current(&InstanceId::space(id.clone()), self.branch())?
            {
                if !value_equal(&stored, value) {
                    return Err(Refusal::ContentAddressedChange { id: id.clone() }.into());
                }
                elided.insert(index);
            }
        }
        Ok(elided)
    }
}
