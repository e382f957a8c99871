//! Operations on disk: `scope ‖ op_id`, the value verbatim. Rows are added and never changed or removed. Rule: NODE-14.

use super::op::Op;
use crate::column::Column;
use crate::error::StoreError;
use crate::id::{OpId, ScopeId};
use crate::key::{Key, ScopeUnifiedOp};
use crate::layer::{LayerExt, ReadLayer, WriteLayer};

/// What appending did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The operation is new here.
    New,
    /// It was stored before, and stays as it was stored then.
    AlreadyPresent,
}

/// One scope's operations in a layer: the store itself, or a staging layer over it.
#[derive(Debug)]
pub struct OpStore<L> {
    layer: L,
    scope: ScopeId,
}

impl<L: ReadLayer> OpStore<L> {
    /// The operations of a scope in a layer.
    pub fn new(layer: L, scope: ScopeId) -> Self {
        OpStore { layer, scope }
    }

    /// An operation by id. A row that holds another one is an error.
    pub fn get(&self, op_id: OpId) -> Result<Option<Op>, StoreError> {
        let key = ScopeUnifiedOp {
            scope: self.scope,
            op_id,
        };
        self.layer
            .get(Column::UnifiedOp, &key.to_bytes())?
            .map(|bytes| self.decode(op_id, &bytes))
            .transpose()
    }

    /// The operation of a row, which must be the one that the row's key names.
    fn decode(&self, op_id: OpId, bytes: &[u8]) -> Result<Op, StoreError> {
        let op = Op::decode(bytes)?;
        if op.id != op_id {
            return Err(StoreError::OpId {
                found: op.id,
                expected: op_id,
            });
        }
        if op.scope != self.scope {
            return Err(StoreError::OpScope {
                id: op.id,
                found: op.scope,
                expected: self.scope,
            });
        }
        Ok(op)
    }

    /// All operations of the scope, in order of their ids, which is no causal order; [`OpDag`](super::OpDag) makes one.
    pub fn for_each(&self, mut visit: impl FnMut(Op) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let handle = self.layer.view();
        let mut rows = handle.scan::<ScopeUnifiedOp>(&self.scope)?;
        while let Some((key, bytes)) = rows.next_raw()? {
            visit(self.decode(key.op_id, bytes)?)?;
        }
        Ok(())
    }
}

impl<L: WriteLayer> OpStore<L> {
    /// Adds an operation after checking that it is of this scope, that its id is its content's hash and that its device
    /// signed it. Adding it again changes nothing.
    pub fn append(&mut self, op: &Op) -> Result<Appended, StoreError> {
        op.verify()?;
        self.append_unverified(op)
    }

    /// Adds an operation as it is: for import of mirrored governance operations, whose ids are no content hashes.
    pub fn append_unverified(&mut self, op: &Op) -> Result<Appended, StoreError> {
        if op.scope != self.scope {
            return Err(StoreError::OpScope {
                id: op.id,
                found: op.scope,
                expected: self.scope,
            });
        }
        let key = ScopeUnifiedOp {
            scope: self.scope,
            op_id: op.id,
        }
        .to_bytes();
        if self.layer.has(Column::UnifiedOp, &key)? {
            return Ok(Appended::AlreadyPresent);
        }
        self.layer.put(Column::UnifiedOp, &key, &op.encode()?)?;
        Ok(Appended::New)
    }
}
