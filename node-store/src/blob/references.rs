//! Who counts on what: every change of counts, and whatever rows go with it, is one batch under one lock.

use std::collections::BTreeMap;

use super::{BlobStore, StagedBlob};
use crate::error::StoreError;
use crate::id::BlobId;
use crate::key::{self, Key};
use crate::layer::LayerExt;
use crate::transaction::Transaction;
use crate::value::{BlobMeta, Borsh, Codec};

/// Owners that come and go, and the rows that name them.
#[must_use = "a change that is not settled changes nothing"]
#[derive(Debug, Default)]
pub struct ReferenceChange {
    added: Vec<StagedBlob>,
    released: Vec<BlobId>,
    rows: Transaction,
}

impl ReferenceChange {
    /// No change.
    pub fn new() -> Self {
        ReferenceChange::default()
    }

    /// One owner for a staged blob.
    pub fn adding(mut self, staged: StagedBlob) -> Self {
        self.added.push(staged);
        self
    }

    /// One owner less for a blob.
    pub fn releasing(mut self, blob: BlobId) -> Self {
        self.released.push(blob);
        self
    }

    /// Rows that are written in the same batch.
    pub fn with(mut self, rows: &Transaction) -> Self {
        self.rows.merge(rows);
        self
    }
}

struct Count {
    stored: Option<BlobMeta>,
    offered: Option<BlobMeta>,
    change: i64,
}

impl BlobStore {
    /// Makes the change, with its rows, in one batch. Files that nobody needs any more are removed after it.
    pub fn settle(&self, change: ReferenceChange) -> Result<(), StoreError> {
        let mut ledger = self.ledger.lock();
        let mut counts: BTreeMap<BlobId, Count> = BTreeMap::new();
        for staged in &change.added {
            let meta = staged.meta();
            self.count(&mut counts, staged.id(), 1)?.offered = Some(meta.clone());
            let mut left = meta.size;
            for link in &meta.links {
                let size = left.min(super::CHUNK_BYTES as u64);
                left -= size;
                let leaf = BlobMeta {
                    size,
                    hash: (*link.as_bytes()).into(),
                    links: Vec::new(),
                    refs: 0,
                };
                self.count(&mut counts, *link, 1)?.offered = Some(leaf);
            }
        }
        for released in &change.released {
            let root = self.count(&mut counts, *released, -1)?;
            let Some(meta) = root.stored.clone().or(root.offered.clone()) else {
                return Err(StoreError::UnknownBlob { id: *released });
            };
            for link in &meta.links {
                self.count(&mut counts, *link, -1)?;
            }
        }

        let mut rows = change.rows;
        let mut unowned = Vec::new();
        for (id, count) in &counts {
            let mut meta = match (&count.stored, &count.offered) {
                (Some(stored), Some(offered))
                    if (&stored.links, stored.size) != (&offered.links, offered.size) =>
                {
                    let reason = "another content has this id".to_owned();
                    return Err(StoreError::CorruptBlob { id: *id, reason });
                }
                (Some(meta), _) | (None, Some(meta)) => meta.clone(),
                (None, None) => return Err(StoreError::UnknownBlob { id: *id }),
            };
            let refused = StoreError::BlobReferences {
                id: *id,
                refs: meta.refs,
                change: count.change,
            };
            meta.refs = u32::try_from(i64::from(meta.refs) + count.change).map_err(|_| refused)?;
            let key = key::BlobMeta { blob_id: *id }.to_bytes();
            if meta.refs == 0 {
                rows.delete(key::BlobMeta::COLUMN, key.as_slice());
                unowned.push(*id);
            } else {
                let value =
                    Borsh::<BlobMeta>::encode(&meta).map_err(|cause| StoreError::UnencodableValue {
                        family: key::BlobMeta::NAME,
                        cause,
                    })?;
                rows.put(key::BlobMeta::COLUMN, key.as_slice(), value);
            }
        }
        self.store.write(&rows)?;

        for staged in change.added {
            staged.mark_settled(&mut ledger);
        }
        unowned.retain(|id| !ledger.chunks.contains_key(id));
        // The change itself is made; a file that cannot go now is an orphan, which the sweep removes.
        if !unowned.is_empty()
            && let Err(error) = self.make_removals_durable()
        {
            tracing::warn!(%error, "chunk files stay until the next sweep");
            return Ok(());
        }
        for id in unowned {
            if let Err(error) = self.files.remove(id) {
                tracing::warn!(%id, %error, "a chunk file stays until the next sweep");
            }
        }
        Ok(())
    }

    fn count<'c>(
        &self,
        counts: &'c mut BTreeMap<BlobId, Count>,
        blob_id: BlobId,
        change: i64,
    ) -> Result<&'c mut Count, StoreError> {
        let count = match counts.entry(blob_id) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let stored = self.store.view().get(&key::BlobMeta { blob_id })?;
                entry.insert(Count {
                    stored,
                    offered: None,
                    change: 0,
                })
            }
        };
        count.change += change;
        Ok(count)
    }
}
