//! Full replacement of a context's state, on an operator's word. Rule: NODE-33.

use std::collections::{BTreeMap, BTreeSet};

use super::{Programs, Rows};
use crate::blob::ReferenceChange;
use crate::column::Column;
use crate::error::{Hex, Malformed, StoreError};
use crate::id::{BlobId, ContextId, DeltaId, EntityId, Hash, StateKey};
use crate::key::Direction;
use crate::key::{self, Key, KeyRange, StateRow};
use crate::layer::{LayerExt, ReadLayer, WriteLayer};
use crate::markers::Markers;
use crate::value::{self, ChildInfo, EntityIndex};

/// A whole state, as received from another node.
#[derive(Clone, Debug)]
pub struct ReceivedState {
    /// All rows of shared state.
    pub rows: Vec<(StateKey, Vec<u8>)>,
    /// The root that the sender claims for them.
    pub root_hash: Hash,
    /// The deltas that the state includes.
    pub dag_heads: Vec<DeltaId>,
    /// The code whose layout the rows have, where the sender says so.
    pub code: Option<BlobId>,
}

impl Programs {
    /// Admits a full replacement. A context with history of its own is refused unless forced, because its history would be
    /// lost.
    pub fn request_resync(&self, context_id: ContextId, force: bool) -> Result<(), StoreError> {
        let _one = self.steps.lock();
        let meta = self
            .store
            .view()
            .get(&key::ContextMeta { context_id })?
            .ok_or(StoreError::UnknownContext(context_id))?;
        if !meta.dag_heads.is_empty() && !force {
            let reason = "it has history of its own; force to give that up";
            return Err(StoreError::ResyncRefused {
                context: context_id,
                reason,
            });
        }
        let mut rows = Rows::new();
        rows.put(&key::ContextResyncRequested { context_id }, &())?;
        self.store.clone().apply(&rows.0)
    }

    /// Withdraws a request that cannot be served.
    pub fn cancel_resync(&self, context_id: ContextId) -> Result<(), StoreError> {
        let _one = self.steps.lock();
        let mut rows = Rows::new();
        rows.delete(&key::ContextResyncRequested { context_id });
        self.store.clone().apply(&rows.0)
    }

    /// Puts a received state in the place of the old one, in one batch: request and failure gone, rows replaced, index
    /// rows dropped, root and heads set, and the code activated that the rows are of. False, with nothing done, if nobody
    /// asked for it. A state that does not hash to its claimed root is refused, all the way down the tree of its index rows,
    /// and so is one of code that this node does not have: the request stays, and settling works once the code is
    /// installed.
    pub fn settle_resync(&self, context_id: ContextId, received: ReceivedState) -> Result<bool, StoreError> {
        let _one = self.steps.lock();
        let handle = self.store.view();
        if !handle.has(&key::ContextResyncRequested { context_id })? {
            return Ok(false);
        }
        let meta = handle
            .get(&key::ContextMeta { context_id })?
            .ok_or(StoreError::UnknownContext(context_id))?;
        let state = received_rows(context_id, received.rows)?;
        let found = root_of(context_id, &state)?;
        if found != received.root_hash {
            return Err(StoreError::SnapshotRoot {
                context: context_id,
                found,
                claimed: received.root_hash,
            });
        }
        let markers = Markers::read(&self.store, context_id)?;
        let code = received.code.or(markers.target());
        let here = match code {
            Some(code) => self
                .state_version_of(meta.application, code)?
                .map(|version| (code, version)),
            None => None,
        };
        let (code, state_version) = here.ok_or(StoreError::ResyncRefused {
            context: context_id,
            reason: "the received state is of code that this node does not have",
        })?;
        let mut rows = Rows::new();
        rows.delete(&key::ContextResyncRequested { context_id });
        rows.delete(&key::ContextMigrationFailed { context_id });
        rows.delete(&crate::context::replacement_under_way(context_id));
        for column in [Column::State, Column::SortedIndex, Column::SortedIndexMeta] {
            let mut old = self.store.range(
                column,
                &KeyRange::prefix(context_id.as_bytes()),
                Direction::Ascending,
            )?;
            while let Some(row) = old.next()? {
                rows.0.delete(column, row.key);
            }
        }
        for (state_key, value) in state {
            rows.put(
                &key::ContextState {
                    context_id,
                    state_key,
                },
                &value,
            )?;
        }
        let meta = value::ContextMeta {
            root_hash: received.root_hash,
            dag_heads: received.dag_heads,
            ..meta
        };
        rows.put(&key::ContextMeta { context_id }, &meta)?;
        rows.put(
            &key::ContextActivatedBlob { context_id },
            &value::ContextActivatedBlob { blob: code },
        )?;
        rows.put(
            &key::ContextActivatedStateVersion { context_id },
            &value::ContextActivatedStateVersion { state_version },
        )?;
        // The state is of that code now, so that code must run on it.
        let mut after = self.named_besides(meta.application, context_id)?;
        after.insert(code);
        let pin = key::ContextExecutingBlob { context_id };
        if markers.installed == Some(code) {
            rows.delete(&pin);
        } else {
            rows.put(&pin, &value::ContextExecutingBlob { blob: code })?;
        }
        let before = markers.executing.into_iter().collect();
        let change = self.forget_unnamed(
            &mut rows,
            ReferenceChange::new(),
            meta.application,
            before,
            &after,
        )?;
        self.blobs.settle(change.with(&rows.0))?;
        self.store.flush()?;
        tracing::info!(context = %context_id, "state replaced");
        Ok(true)
    }

    fn state_version_of(
        &self,
        application: crate::id::ApplicationId,
        code: BlobId,
    ) -> Result<Option<u32>, StoreError> {
        let installed = self.get(application)?.filter(|meta| meta.bytecode == code);
        let meta = match installed {
            Some(meta) => Some(meta),
            None => self.superseded(application, code)?,
        };
        Ok(meta.map(|meta| meta.state_version))
    }
}

type StateRows = BTreeMap<StateKey, Vec<u8>>;

/// The received rows by key. One that comes twice could be checked in one form and stored in the other.
fn received_rows(context_id: ContextId, rows: Vec<(StateKey, Vec<u8>)>) -> Result<StateRows, StoreError> {
    let mut state = StateRows::new();
    for (state_key, value) in rows {
        if state.insert(state_key, value).is_some() {
            return Err(not_a_state(context_id, format!("row {state_key} comes twice")));
        }
    }
    Ok(state)
}

fn not_a_state(context_id: ContextId, reason: String) -> StoreError {
    StoreError::Malformed {
        what: "received state",
        cause: Malformed::new(format!("context {context_id}: {reason}")),
    }
}

/// The root that received rows really have: the full hash of the root entity's index row, zero if there is none. Every row
/// below it is there and hashes to what its parent says. What `own_hash` is computed over is the program's matter.
fn root_of(context_id: ContextId, state: &StateRows) -> Result<Hash, StoreError> {
    let root = EntityId::from(context_id);
    let Some(mut found) = index_of(context_id, state, root)? else {
        return Ok(Hash::ZERO);
    };
    let root_hash = found.full_hash;
    let mut seen = BTreeSet::from([root]);
    let mut below: Vec<ChildInfo> = found.children.take().unwrap_or_default();
    while let Some(child) = below.pop() {
        let refuse = |reason: &str| Err(not_a_state(context_id, format!("entity {} {reason}", child.id)));
        if !seen.insert(child.id) {
            return refuse("stands in two places");
        }
        let Some(index) = index_of(context_id, state, child.id)? else {
            return refuse("has no index row");
        };
        if index.full_hash != child.merkle_hash {
            return refuse("does not hash to what its parent says");
        }
        below.extend(index.children.into_iter().flatten());
    }
    Ok(root_hash)
}

/// The index row of an entity, which must be of that entity and hash to what it says.
fn index_of(
    context_id: ContextId,
    state: &StateRows,
    entity: EntityId,
) -> Result<Option<EntityIndex>, StoreError> {
    let state_key = StateRow::Index.key(entity);
    let Some(bytes) = state.get(&state_key) else {
        return Ok(None);
    };
    let undecodable = |cause| {
        let row = key::ContextState {
            context_id,
            state_key,
        };
        StoreError::UndecodableValue {
            column: Column::State,
            family: "EntityIndex",
            key: Hex(row.to_bytes().to_vec()),
            length: bytes.len(),
            cause,
        }
    };
    let index = EntityIndex::decode(bytes).map_err(undecodable)?;
    let full_hash = index.compute_full_hash().map_err(undecodable)?;
    if index.id != entity {
        return Err(undecodable(Malformed::new(format!(
            "it is of entity {}",
            index.id
        ))));
    }
    if index.full_hash != full_hash {
        let reason = format!("it says {} and hashes to {full_hash}", index.full_hash);
        return Err(undecodable(Malformed::new(reason)));
    }
    Ok(Some(index))
}
