//! Programs and their safe upgrade. Every step is one batch, so that a crash between any two leaves a state which the
//! next start resolves without an operator. Rules: NODE-30…35; facts: §11.

mod install;
mod migration;
mod recover;
mod resync;
mod rollback;
mod upgrade;

pub use install::{Bundle, InstallOutcome, ServiceCode};
pub use migration::{ContextRows, Migration, MigrationError};
pub use recover::Recovered;
pub use resync::ReceivedState;
pub use upgrade::UpgradeOutcome;

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::blob::BlobStore;
use crate::error::StoreError;
use crate::id::{ApplicationId, BlobId, ContextId, sha256};
use crate::key::{self, Fragment, GenericScope, Key};
use crate::layer::{LayerExt, ReadLayer};
use crate::markers::Markers;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::value::{ApplicationMeta, Borsh, Codec};

/// The programs installed on this node. Clones share them, and take steps one at a time: make one and clone it.
#[derive(Clone, Debug)]
pub struct Programs {
    store: Store,
    blobs: BlobStore,
    /// Held for a whole step, so that what a step has read still holds when it writes.
    steps: Arc<Mutex<()>>,
}

impl Programs {
    /// The programs of a store and its blobs.
    pub fn new(store: Store, blobs: BlobStore) -> Self {
        Programs {
            store,
            blobs,
            steps: Arc::default(),
        }
    }

    /// The blobs that code is kept in.
    pub fn blobs(&self) -> &BlobStore {
        &self.blobs
    }

    /// An installed program.
    pub fn get(&self, application_id: ApplicationId) -> Result<Option<ApplicationMeta>, StoreError> {
        self.store.view().get(&key::ApplicationMeta { application_id })
    }

    /// The facts about a context's code.
    pub fn markers(&self, context_id: ContextId) -> Result<Markers, StoreError> {
        Markers::read(&self.store, context_id)
    }

    /// The contexts that run a program, with the facts about each.
    fn contexts_of(&self, application: ApplicationId) -> Result<Vec<(ContextId, Markers)>, StoreError> {
        let handle = self.store.view();
        let mut contexts = Vec::new();
        for row in handle.scan_family::<key::ContextMeta>()? {
            let (key, meta) = row?;
            if meta.application == application {
                contexts.push((key.context_id, Markers::of(&self.store, key.context_id, &meta)?));
            }
        }
        Ok(contexts)
    }

    /// The whole row of superseded code of a program, kept so that a pinned context still finds its services and a rollback
    /// brings back everything.
    pub fn superseded(
        &self,
        application_id: ApplicationId,
        code: BlobId,
    ) -> Result<Option<ApplicationMeta>, StoreError> {
        archived(&self.store, &archive_key(application_id, code))
    }
}

fn archived<L: ReadLayer>(layer: &L, key: &key::Generic) -> Result<Option<ApplicationMeta>, StoreError> {
    let Some(bytes) = layer.view().get(key)? else {
        return Ok(None);
    };
    crate::handle::decode::<key::ApplicationMeta>(&key.to_bytes(), &bytes).map(Some)
}

/// Of the program and its code: two programs may well have had the same code, each with a row of its own.
fn archive_key(application_id: ApplicationId, code: BlobId) -> key::Generic {
    key::Generic {
        scope: GenericScope::SUPERSEDED_PROGRAM,
        fragment: Fragment::new(sha256(&[application_id.as_bytes(), code.as_bytes()])),
    }
}

/// Every blob that a program's row owns: its code and its services' code, each once.
fn owned_blobs(meta: &ApplicationMeta) -> BTreeSet<BlobId> {
    std::iter::once(meta.bytecode)
        .chain(meta.services.iter().map(|service| service.bytecode))
        .collect()
}

/// Stages typed rows of markers and programs.
struct Rows(Transaction);

impl Rows {
    fn new() -> Self {
        Rows(Transaction::new())
    }

    fn put<K: Key>(&mut self, key: &K, value: &crate::handle::Value<K>) -> Result<(), StoreError> {
        let value = crate::handle::encode::<K>(value)?;
        self.0.put(K::COLUMN, key.to_bytes().as_slice(), value);
        Ok(())
    }

    fn delete<K: Key>(&mut self, key: &K) {
        self.0.delete(K::COLUMN, key.to_bytes().as_slice());
    }

    fn archive(&mut self, application_id: ApplicationId, meta: &ApplicationMeta) -> Result<(), StoreError> {
        let bytes = Borsh::<ApplicationMeta>::encode(meta).map_err(|cause| StoreError::UnencodableValue {
            family: key::ApplicationMeta::NAME,
            cause,
        })?;
        self.put(&archive_key(application_id, meta.bytecode), &bytes)
    }
}
