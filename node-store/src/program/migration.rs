//! What a migration may touch: the rows of its own context, staged. Rules: NODE-31, NODE-33.

use crate::error::StoreError;
use crate::id::{BlobId, ContextId, Hash, StateKey};
use crate::key;
use crate::layer::{LayerExt, Temporal};
use crate::store::Store;
use crate::value::ContextMeta;

/// The way from one version of a program's state to the next. Written by whoever can run the program.
pub trait Migration {
    /// Whether there is a way at all.
    fn leads(&self, from: BlobId, to: BlobId) -> bool;

    /// Makes the new code ready to run, without touching state.
    fn compile(&mut self, to: BlobId) -> Result<(), MigrationError>;

    /// Moves the rows. Called twice: once on a view that is thrown away, once on the one that is committed.
    fn migrate(
        &mut self,
        from: BlobId,
        to: BlobId,
        rows: &mut ContextRows<'_, '_>,
    ) -> Result<(), MigrationError>;
}

/// Why a migration did not do its work.
#[derive(Debug)]
pub enum MigrationError {
    /// The program or the data say no; recorded as a failure of the attempt.
    Refused(String),
    /// The store failed; nothing is recorded and the next start tries again.
    Store(StoreError),
}

impl From<StoreError> for MigrationError {
    fn from(error: StoreError) -> Self {
        MigrationError::Store(error)
    }
}

/// The rows of one context in a staging layer. Rows of another context cannot be named.
pub struct ContextRows<'r, 'l> {
    layer: &'r mut Temporal<'l, Store>,
    context_id: ContextId,
    meta: ContextMeta,
}

impl<'r, 'l> ContextRows<'r, 'l> {
    pub(super) fn new(layer: &'r mut Temporal<'l, Store>, context_id: ContextId, meta: ContextMeta) -> Self {
        ContextRows {
            layer,
            context_id,
            meta,
        }
    }

    /// The context.
    pub fn context(&self) -> ContextId {
        self.context_id
    }

    /// A row of shared state.
    pub fn state(&self, state_key: StateKey) -> Result<Option<Vec<u8>>, StoreError> {
        self.layer.view().get(&key::ContextState {
            context_id: self.context_id,
            state_key,
        })
    }

    /// Stages a row of shared state.
    pub fn put_state(&mut self, state_key: StateKey, value: &[u8]) -> Result<(), StoreError> {
        let key = key::ContextState {
            context_id: self.context_id,
            state_key,
        };
        self.layer.handle().put(&key, &value.to_vec())
    }

    /// Stages the removal of a row of shared state.
    pub fn delete_state(&mut self, state_key: StateKey) -> Result<(), StoreError> {
        let key = key::ContextState {
            context_id: self.context_id,
            state_key,
        };
        self.layer.handle().delete(&key)
    }

    /// The keys of all rows of shared state, ascending, staged ones included.
    pub fn state_keys(&self) -> Result<Vec<StateKey>, StoreError> {
        let handle = self.layer.view();
        let mut rows = handle.scan::<key::ContextState>(&self.context_id)?;
        let mut keys = Vec::new();
        while let Some((key, _)) = rows.next_raw()? {
            keys.push(key.state_key);
        }
        Ok(keys)
    }

    /// A row of private state.
    pub fn private_state(&self, state_key: StateKey) -> Result<Option<Vec<u8>>, StoreError> {
        self.layer.view().get(&key::ContextPrivateState {
            context_id: self.context_id,
            state_key,
        })
    }

    /// Stages a row of private state.
    pub fn put_private_state(&mut self, state_key: StateKey, value: &[u8]) -> Result<(), StoreError> {
        let key = key::ContextPrivateState {
            context_id: self.context_id,
            state_key,
        };
        self.layer.handle().put(&key, &value.to_vec())
    }

    /// Stages the removal of a row of private state.
    pub fn delete_private_state(&mut self, state_key: StateKey) -> Result<(), StoreError> {
        let key = key::ContextPrivateState {
            context_id: self.context_id,
            state_key,
        };
        self.layer.handle().delete(&key)
    }

    /// Stages the root that the migrated state hashes to.
    pub fn set_root_hash(&mut self, root_hash: Hash) -> Result<(), StoreError> {
        self.meta.root_hash = root_hash;
        let key = key::ContextMeta {
            context_id: self.context_id,
        };
        self.layer.handle().put(&key, &self.meta)
    }
}
