//! Content-addressed binaries: rows in `Blobs`, bytes in files beside the store. Rule: NODE-16; facts: §10.
//!
//! A file is always on disk before the row that counts on it, and a row is gone before its file is: a crash leaves an
//! orphan file, which [`BlobStore::sweep`] finds, never a row without its file.

mod files;
mod put;
mod reader;
mod references;
mod sweep;

pub use files::application_blob_path;
pub use put::StagedBlob;
pub use reader::BlobReader;
pub use references::ReferenceChange;
pub use sweep::Swept;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use self::files::ChunkFiles;
use crate::backend::Durability;
use crate::error::StoreError;
use crate::id::BlobId;
use crate::key;
use crate::layer::LayerExt;
use crate::store::Store;
use crate::value::BlobMeta;

/// Bytes of a chunk; the last one of a blob may be shorter.
pub const CHUNK_BYTES: usize = 1 << 20;

/// The blobs of a store. Clones share it.
#[derive(Clone)]
pub struct BlobStore {
    store: Store,
    files: Arc<ChunkFiles>,
    /// Serialises every change of a reference count, and knows which files are not counted yet.
    ledger: Arc<Mutex<InFlight>>,
}

/// Chunks whose files are written and whose rows are not.
#[derive(Default)]
struct InFlight {
    chunks: BTreeMap<BlobId, usize>,
    writers: usize,
}

impl BlobStore {
    /// The blobs of a store, with their files in a directory of its own; created if absent. Open it once and clone it: only
    /// clones know which files of the others are not counted yet. Over a store that is opened read-only nothing in the
    /// directory is changed, because the process that writes the store may be at work there.
    pub fn open(store: Store, directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let files = Arc::new(ChunkFiles::open(directory.into(), !store.is_read_only())?);
        Ok(BlobStore {
            store,
            files,
            ledger: Arc::default(),
        })
    }

    /// Takes in a stream of any length, holding one chunk at a time. The same content again counts one owner more.
    pub fn put(&self, source: impl Read) -> Result<BlobId, StoreError> {
        let staged = self.stage(source)?;
        let id = staged.id();
        self.settle(ReferenceChange::new().adding(staged))?;
        Ok(id)
    }

    /// The blob's metadata.
    pub fn meta(&self, blob_id: BlobId) -> Result<Option<BlobMeta>, StoreError> {
        self.store.view().get(&key::BlobMeta { blob_id })
    }

    /// Whether the blob is known.
    pub fn has(&self, blob_id: BlobId) -> Result<bool, StoreError> {
        self.store.view().has(&key::BlobMeta { blob_id })
    }

    /// Streams a blob out, holding one chunk at a time; every chunk and the whole are checked on the way.
    pub fn reader(&self, blob_id: BlobId) -> Result<BlobReader, StoreError> {
        BlobReader::open(self.store.clone(), self.files.clone(), blob_id)
    }

    /// Takes one owner off a blob and its chunks. What nobody owns any more goes, row first and file then. An unknown
    /// blob takes its orphan file, if there is one, with it.
    pub fn delete(&self, blob_id: BlobId) -> Result<(), StoreError> {
        self.require_writable("delete blob")?;
        if !self.has(blob_id)? {
            let ledger = self.ledger.lock();
            if !ledger.chunks.contains_key(&blob_id) && !self.has(blob_id)? {
                self.files.remove(blob_id)?;
            }
            return Ok(());
        }
        self.settle(ReferenceChange::new().releasing(blob_id))
    }

    fn require_writable(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.store.is_read_only() {
            Err(StoreError::ReadOnly { operation })
        } else {
            Ok(())
        }
    }

    /// Makes rows that were removed stay removed, also after a power cut: a file may go only then.
    fn make_removals_durable(&self) -> Result<(), StoreError> {
        match self.store.database().durability() {
            Durability::Full => Ok(()),
            Durability::Process => self.store.flush(),
        }
    }
}

impl std::fmt::Debug for BlobStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobStore")
            .field("directory", &self.files.directory())
            .finish_non_exhaustive()
    }
}
