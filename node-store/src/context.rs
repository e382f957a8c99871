//! Spaces in the node's store: naming a context again, and removing one whole. Facts: §11; page §1.

use crate::column::Column;
use crate::error::{Hex, Malformed, StoreError};
use crate::id::{ApplicationId, ContextId, Hash};
use crate::key::{self, Direction, Fragment, GenericScope, Key, KeyRange};
use crate::layer::{LayerExt, ReadLayer, WriteLayer};
use crate::transaction::Transaction;
use crate::value;

fn did_row(context: ContextId) -> key::Generic {
    key::Generic {
        scope: GenericScope::SPACE_DID,
        fragment: Fragment::from(context),
    }
}

/// Notes a space: its metadata, its counters and its DID, in one batch. One that is noted already keeps its rows.
pub fn register_space<L: WriteLayer>(
    layer: &mut L,
    did: &str,
    application: ApplicationId,
) -> Result<ContextId, StoreError> {
    let context_id = ContextId::of_space(did);
    if layer.has(
        key::ContextMeta::COLUMN,
        &key::ContextMeta { context_id }.to_bytes(),
    )? {
        return Ok(context_id);
    }
    let meta = value::ContextMeta {
        application,
        root_hash: Hash::ZERO,
        dag_heads: Vec::new(),
        service_name: None,
    };
    let counters = value::ContextConfig {
        application_revision: 0,
        members_revision: 0,
    };
    let mut batch = crate::batch::StoreBatch::over(layer);
    batch.put(&key::ContextMeta { context_id }, &meta)?;
    batch.put(&key::ContextConfig { context_id }, &counters)?;
    batch.put(&did_row(context_id), &did.as_bytes().to_vec())?;
    batch.commit()?;
    Ok(context_id)
}

/// The DID of a context, if it was noted here.
pub fn space_did<L: ReadLayer>(layer: &L, context_id: ContextId) -> Result<Option<String>, StoreError> {
    let row = did_row(context_id);
    let Some(bytes) = layer.view().get(&row)? else {
        return Ok(None);
    };
    let length = bytes.len();
    let did = String::from_utf8(bytes)
        .ok()
        .filter(|did| ContextId::of_space(did) == context_id);
    did.map(Some).ok_or_else(|| StoreError::UndecodableValue {
        column: Column::Generic,
        family: key::Generic::NAME,
        key: Hex(row.to_bytes().to_vec()),
        length,
        cause: Malformed::new("expected the DID that the key is the hash of"),
    })
}

/// Records an applied delta: its row, the context's heads and the new root, in one batch, so that heads never name a delta
/// that is not there and no applied delta is missing from them. One that is recorded as applied already changes nothing.
pub fn record_delta<L: WriteLayer>(
    layer: &mut L,
    context_id: ContextId,
    delta: &value::ContextDagDelta,
) -> Result<(), StoreError> {
    let row = key::ContextDagDelta {
        context_id,
        delta_id: delta.delta_id,
    };
    let view = layer.view();
    if view.get(&row)?.is_some_and(|stored| stored.is_applied()) {
        return Ok(());
    }
    let meta = view.get(&key::ContextMeta { context_id })?;
    let mut meta = meta.ok_or(StoreError::UnknownContext(context_id))?;
    meta.dag_heads
        .retain(|head| !delta.parents.contains(head) && *head != delta.delta_id);
    meta.dag_heads.push(delta.delta_id);
    meta.root_hash = delta.expected_root_hash;
    let applied = value::ContextDagDelta {
        applied: true,
        ..delta.clone()
    };
    let mut batch = crate::batch::StoreBatch::over(layer);
    batch.put(&row, &applied)?;
    batch.put(&key::ContextMeta { context_id }, &meta)?;
    batch.commit()
}

/// The reference's note that a context's state is being replaced; at a start it means that the replacement was cut off.
pub(crate) fn replacement_under_way(context: ContextId) -> key::Generic {
    key::Generic {
        scope: GenericScope::SYNC_IN_PROGRESS,
        fragment: Fragment::from(context),
    }
}

/// Columns whose rows begin with the context that they belong to. Deltas and operations are history and stay.
const OWNED: &[Column] = &[
    Column::Meta,
    Column::Config,
    Column::Identity,
    Column::State,
    Column::PrivateState,
    Column::ContextLocal,
    Column::SortedIndex,
    Column::SortedIndexMeta,
    Column::ContextMigrationFailed,
    Column::ContextExecutingBlob,
    Column::ContextActivatedBlob,
    Column::ContextActivatedStateVersion,
    Column::ContextResyncRequested,
];

/// Removes a context with everything that is only of use with it, private rows, index and markers included, in one batch.
/// Its history of deltas and operations stays, and so does what its group says of it. Superseded code that it alone was pinned
/// to goes at the next start ([`Programs::recover`](crate::Programs::recover)).
pub fn delete_context<L: WriteLayer>(layer: &mut L, context_id: ContextId) -> Result<(), StoreError> {
    let mut removals = Transaction::new();
    let own = KeyRange::prefix(context_id.as_bytes());
    let buffered = key::AbsorbBuffer::owner_range(&context_id);
    for (column, range) in OWNED
        .iter()
        .map(|column| (*column, &own))
        .chain([(Column::AbsorbBuffer, &buffered)])
    {
        let mut rows = layer.range(column, range, Direction::Ascending)?;
        while let Some(row) = rows.next()? {
            removals.delete(column, row.key);
        }
    }
    for row in [did_row(context_id), replacement_under_way(context_id)] {
        removals.delete(Column::Generic, row.to_bytes().as_slice());
    }
    layer.apply(&removals)
}
