//! Finding what a crash left behind: files that no row counts on.

use super::files::{self, Found};
use super::{BlobStore, InFlight};
use crate::error::StoreError;
use crate::id::BlobId;
use crate::key;
use crate::layer::LayerExt;

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Files.
    pub files: usize,
    /// Bytes in them.
    pub bytes: u64,
}

impl BlobStore {
    /// Removes files without a row, except those of streams that are coming in now. Files that are no blob's are left
    /// alone.
    pub fn sweep(&self) -> Result<Swept, StoreError> {
        self.require_writable("sweep blobs")?;
        let mut swept = Swept::default();
        for (path, size, found) in self.files.list()? {
            // Locked a file at a time: a long sweep holds up nobody.
            let ledger = self.ledger.lock();
            if self.is_orphan(&ledger, &found)? {
                if swept.files == 0
                    && let Err(error) = self.make_removals_durable()
                {
                    // A full disk, say. Orphans harm nobody until the next sweep.
                    tracing::warn!(%error, "orphaned blob files stay until the next sweep");
                    return Ok(swept);
                }
                files::remove(&path)?;
                swept.files += 1;
                swept.bytes += size;
            }
        }
        if swept.files > 0 {
            tracing::info!(
                files = swept.files,
                bytes = swept.bytes,
                "orphaned blob files removed"
            );
        }
        Ok(swept)
    }

    fn is_orphan(&self, ledger: &InFlight, found: &Found) -> Result<bool, StoreError> {
        match found {
            Found::Chunk(id) => Ok(!ledger.chunks.contains_key(id) && !self.has(*id)?),
            Found::Unfinished => Ok(ledger.writers == 0),
            Found::Foreign => Ok(false),
        }
    }

    /// Chunks that have a row and no file. Empty unless somebody removed files by hand.
    pub fn dangling(&self) -> Result<Vec<BlobId>, StoreError> {
        let handle = self.store.view();
        let mut dangling = Vec::new();
        for row in handle.scan_family::<key::BlobMeta>()? {
            let (key, meta) = row?;
            if meta.links.is_empty() && meta.size > 0 && !self.files.exists(key.blob_id) {
                dangling.push(key.blob_id);
            }
        }
        Ok(dangling)
    }
}
