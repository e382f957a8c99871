//! Streaming a blob out: one chunk in memory, every chunk and the whole checked.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::CHUNK_BYTES;
use super::files::ChunkFiles;
use super::put::root_id;
use crate::error::StoreError;
use crate::id::{BlobId, sha256};
use crate::key;
use crate::layer::LayerExt;
use crate::store::Store;
use crate::value::BlobMeta;

const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 1 << 20;

/// A blob's bytes, in order. The end is reported only after the whole has been checked, so a reader that saw the end saw
/// the true content.
pub struct BlobReader {
    store: Store,
    files: Arc<ChunkFiles>,
    blob: BlobId,
    size: u64,
    hash: [u8; 32],
    /// Parts still to come, one entry a level: the links of a node and the next one to take.
    path: Vec<(Vec<BlobId>, usize)>,
    nodes: BTreeSet<BlobId>,
    content: Option<Sha256>,
    read: u64,
    chunk: Vec<u8>,
    at: usize,
    failed: bool,
}

impl BlobReader {
    pub(super) fn open(store: Store, files: Arc<ChunkFiles>, blob: BlobId) -> Result<Self, StoreError> {
        let mut reader = BlobReader {
            store,
            files,
            blob,
            size: 0,
            hash: [0; 32],
            path: Vec::new(),
            nodes: BTreeSet::new(),
            content: Some(Sha256::new()),
            read: 0,
            chunk: Vec::new(),
            at: 0,
            failed: false,
        };
        let meta = reader.meta(blob)?.ok_or(StoreError::UnknownBlob { id: blob })?;
        (reader.size, reader.hash) = (meta.size, *meta.hash.as_bytes());
        if meta.links.is_empty() && meta.size > 0 {
            // A chunk asked for by its own id.
            reader.path.push((vec![blob], 0));
        } else {
            reader.enter(blob, meta.links)?;
        }
        Ok(reader)
    }

    /// Bytes of the whole blob.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn meta(&self, blob_id: BlobId) -> Result<Option<BlobMeta>, StoreError> {
        self.store.view().get(&key::BlobMeta { blob_id })
    }

    fn corrupt<T>(&self, id: BlobId, reason: String) -> Result<T, StoreError> {
        Err(StoreError::CorruptBlob { id, reason })
    }

    fn enter(&mut self, node: BlobId, links: Vec<BlobId>) -> Result<(), StoreError> {
        if root_id(&links) != node {
            return self.corrupt(node, "its links do not hash to its id".into());
        }
        if self.path.len() >= MAX_DEPTH {
            return self.corrupt(self.blob, format!("more than {MAX_DEPTH} levels"));
        }
        if !self.nodes.insert(node) {
            return self.corrupt(node, "a node is part of itself or occurs twice".into());
        }
        if self.nodes.len() > MAX_NODES {
            return self.corrupt(self.blob, format!("more than {MAX_NODES} nodes"));
        }
        self.path.push((links, 0));
        Ok(())
    }

    /// The next chunk, checked; none at the end, when the whole is checked too. A reader that failed once stays failed:
    /// whoever asks again gets no bytes and no end.
    pub fn next_chunk(&mut self) -> Result<Option<&[u8]>, StoreError> {
        let found = self.advance()?;
        // Given out whole; a `read` after it goes on behind it.
        self.at = self.chunk.len();
        Ok(found.then_some(self.chunk.as_slice()))
    }

    fn advance(&mut self) -> Result<bool, StoreError> {
        if self.failed {
            return self.corrupt(self.blob, "reading it failed before; open it anew".into());
        }
        let moved = self.step();
        if !matches!(moved, Ok(true)) {
            self.chunk.clear();
        }
        self.at = 0;
        self.failed = moved.is_err();
        moved
    }

    /// Loads the next chunk; false at the end.
    fn step(&mut self) -> Result<bool, StoreError> {
        while let Some((links, next)) = self.path.last_mut() {
            let Some(link) = links.get(*next).copied() else {
                self.path.pop();
                continue;
            };
            *next += 1;
            let Some(meta) = self.meta(link)? else {
                return self.corrupt(link, "a part has no row".into());
            };
            if !meta.links.is_empty() {
                self.enter(link, meta.links)?;
                continue;
            }
            if meta.size == 0 {
                continue;
            }
            self.load(link, meta.size)?;
            return Ok(true);
        }
        if let Some(content) = self.content.take() {
            let found: [u8; 32] = content.finalize().into();
            if (self.read, found) != (self.size, self.hash) {
                let reason = format!("{} bytes came, or other ones; {} expected", self.read, self.size);
                return self.corrupt(self.blob, reason);
            }
        }
        Ok(false)
    }

    fn load(&mut self, link: BlobId, size: u64) -> Result<(), StoreError> {
        if size > CHUNK_BYTES as u64 {
            return self.corrupt(link, format!("a chunk of {size} bytes; at most {CHUNK_BYTES}"));
        }
        if self.files.read(link, size as usize, &mut self.chunk)?.is_none() {
            return self.corrupt(link, "its file is missing".into());
        }
        if sha256(&[&self.chunk]) != *link.as_bytes() {
            return self.corrupt(link, "the file's bytes do not hash to its id".into());
        }
        if self.chunk.len() as u64 != size {
            let reason = format!("its file has {} bytes; its row says {size}", self.chunk.len());
            return self.corrupt(link, reason);
        }
        self.read += size;
        if let Some(content) = &mut self.content {
            content.update(&self.chunk);
        }
        Ok(())
    }
}

impl Read for BlobReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        if self.at == self.chunk.len() && !self.advance().map_err(io::Error::other)? {
            return Ok(0);
        }
        let length = out.len().min(self.chunk.len() - self.at);
        out[..length].copy_from_slice(&self.chunk[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

impl std::fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobReader")
            .field("blob", &self.blob)
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}
