//! Taking a stream in: chunk files first; rows and counts only when the whole stream is through.

use std::io::{ErrorKind, Read};

use sha2::{Digest, Sha256};

use super::{BlobStore, CHUNK_BYTES};
use crate::error::StoreError;
use crate::id::{BlobId, Hash, sha256};
use crate::value::BlobMeta;

/// A blob whose files are written and which nobody owns yet. Give it to a [`ReferenceChange`](super::ReferenceChange);
/// dropped, it takes its files with it.
#[must_use = "a staged blob that is not settled is gone when dropped"]
pub struct StagedBlob {
    blobs: BlobStore,
    id: BlobId,
    meta: BlobMeta,
    settled: bool,
}

impl BlobStore {
    /// Writes a stream's chunk files without counting them, so that a stream which fails midway leaves no count behind.
    pub fn stage(&self, mut source: impl Read) -> Result<StagedBlob, StoreError> {
        self.require_writable("put blob")?;
        self.ledger.lock().writers += 1;
        // From here on the guard undoes everything that was begun, on every way out.
        let mut staged = StagedBlob {
            blobs: self.clone(),
            id: BlobId::ZERO,
            meta: BlobMeta {
                size: 0,
                hash: Hash::ZERO,
                links: Vec::new(),
                refs: 0,
            },
            settled: false,
        };
        let mut content = Sha256::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = fill(&mut source, &mut chunk).map_err(StoreError::BlobSource)?;
            if length == 0 {
                break;
            }
            let bytes = &chunk[..length];
            let id = BlobId::new(sha256(&[bytes]));
            content.update(bytes);
            // Known as in flight before the file is there, so that no sweep or deletion takes it away in between.
            *self.ledger.lock().chunks.entry(id).or_insert(0) += 1;
            staged.meta.links.push(id);
            staged.meta.size += length as u64;
            self.files.write(id, bytes)?;
        }
        self.files.sync()?;
        staged.meta.hash = Hash::new(content.finalize().into());
        staged.id = root_id(&staged.meta.links);
        Ok(staged)
    }
}

/// The id of a node: the hash of its parts' ids, one after the other.
pub(super) fn root_id(links: &[BlobId]) -> BlobId {
    let mut hasher = Sha256::new();
    links.iter().for_each(|link| hasher.update(link.as_bytes()));
    BlobId::new(hasher.finalize().into())
}

fn fill(source: &mut impl Read, chunk: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match source.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl StagedBlob {
    /// The id it will have.
    pub fn id(&self) -> BlobId {
        self.id
    }

    /// Bytes of content.
    pub fn size(&self) -> u64 {
        self.meta.size
    }

    pub(super) fn meta(&self) -> &BlobMeta {
        &self.meta
    }

    /// Called under the ledger's lock once the rows are written: the files belong to the rows now.
    pub(super) fn mark_settled(mut self, ledger: &mut super::InFlight) {
        self.settled = true;
        land(ledger, &self.meta.links);
    }
}

fn land(ledger: &mut super::InFlight, links: &[BlobId]) {
    ledger.writers -= 1;
    for link in links {
        if let std::collections::btree_map::Entry::Occupied(mut count) = ledger.chunks.entry(*link) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Drop for StagedBlob {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let mut ledger = self.blobs.ledger.lock();
        land(&mut ledger, &self.meta.links);
        for link in &self.meta.links {
            // Best effort: what cannot be removed or asked about now is an orphan that the sweep finds.
            if !ledger.chunks.contains_key(link) && matches!(self.blobs.has(*link), Ok(false)) {
                let _ = self.blobs.files.remove(*link);
            }
        }
    }
}

impl std::fmt::Debug for StagedBlob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagedBlob")
            .field("id", &self.id)
            .field("size", &self.meta.size)
            .finish_non_exhaustive()
    }
}
