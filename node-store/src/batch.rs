//! Typed rows that move together: every value is encoded when it is staged, all are written by one `apply`.
//! Rule: NODE-4.

use crate::error::StoreError;
use crate::handle::{Value, encode};
use crate::key::Key;
use crate::layer::WriteLayer;
use crate::transaction::Transaction;

/// Staged rows over a layer. Dropped without [`commit`](StoreBatch::commit), nothing happens.
#[must_use = "a batch that is not committed writes nothing"]
#[derive(Debug)]
pub struct StoreBatch<L> {
    layer: L,
    staged: Transaction,
    calls: usize,
}

impl<L: WriteLayer> StoreBatch<L> {
    /// An empty batch over any layer.
    pub fn over(layer: L) -> Self {
        StoreBatch {
            layer,
            staged: Transaction::new(),
            calls: 0,
        }
    }

    /// Stages a row. A value that its family does not allow is an error here, with nothing written.
    pub fn put<K: Key>(&mut self, key: &K, value: &Value<K>) -> Result<&mut Self, StoreError> {
        let value = encode::<K>(value)?;
        self.staged.put(K::COLUMN, key.to_bytes().as_slice(), value);
        self.calls += 1;
        Ok(self)
    }

    /// Stages a removal.
    pub fn delete<K: Key>(&mut self, key: &K) -> &mut Self {
        self.staged.delete(K::COLUMN, key.to_bytes().as_slice());
        self.calls += 1;
        self
    }

    /// How many calls were staged; two for one key count twice.
    pub fn len(&self) -> usize {
        self.calls
    }

    /// Whether nothing was staged.
    pub fn is_empty(&self) -> bool {
        self.calls == 0
    }

    /// Writes everything, or nothing.
    pub fn commit(mut self) -> Result<(), StoreError> {
        self.layer.apply(&self.staged)
    }
}
