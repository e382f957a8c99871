//! Reading values through a schema (RUN-225…227, RUN-300): the ways in, and schemas along paths.
//!
//! The walk itself is `memory_wire::traverse`; its source is the open transaction (`crate::walk`), its results are
//! [`View`]s. Called by cells and the pattern layer.

use memory_wire::traverse::{self, ReadRequest, SchemaPool, ScopeCap, hop_cap, narrow};
use memory_wire::{JsString, Value};
use smol_str::SmolStr;

use crate::error::RunnerError;
use crate::link::Link;
use crate::link_resolution::{LastNode, constrains, resolve};
use crate::replica::Selector;
use crate::storage_manager::StorageManager;
use crate::transaction::{RunTx, tree};
use crate::view::require_open;
pub use crate::view::{CellHandle, LazyView, View, ViewKind};
use crate::walk::{TxSource, caps_of, to_walk};

/// The schema one segment below (TRV-701).
pub(crate) fn narrow_step(pool: &mut SchemaPool, schema: &Value, segment: &str) -> Value {
    let schema = pool.intern(schema);
    narrow(pool, &schema, &[JsString::from(segment)]).value().clone()
}

/// The link one segment below: child schema, and the cap of the slot walked past (RUN-213).
pub fn child_link(storage: &StorageManager, link: &Link, segment: &str) -> Link {
    let mut child = link.clone();
    if let Some(schema) = &link.schema {
        let (cap, below) = storage.with_schemas(|pool| {
            let interned = pool.intern(schema);
            (hop_cap(pool, &interned), narrow_step(pool, schema, segment))
        });
        if let Some(ScopeCap::At(scope)) = cap {
            child.stamps.scope_caps.push((link.path.len(), scope));
        }
        child.schema = Some(below);
    }
    child.path.push(SmolStr::new(segment));
    child.redirect = false;
    child.stamps.pending_hop_doc = false;
    child
}

/// What an inline link holds at its path; absent is `undefined`.
pub fn inline_value(link: &Link) -> Result<Value, RunnerError> {
    let root = link.id.inline_value().map_err(|e| RunnerError::InvalidValue {
        operation: "read inline document",
        reason: e.to_string(),
    })?;
    Ok(tree::get(&root, &link.path).unwrap_or(Value::Undefined))
}

/// TRV-1201: the value `link` selects; absence and failure are both `undefined`. In lazily reading transactions, a
/// place behind a hop that is not here yet and has no default is refused instead of read as absent (RUN-216).
pub fn read(tx: &RunTx, link: &Link) -> Result<View, RunnerError> {
    ask_for(tx, link);
    refuse_unresolved(tx, link)?;
    let (identity, start, caps) = (
        tx.effective_identity(),
        to_walk(link, tx.storage()),
        caps_of(link),
    );
    let request = ReadRequest {
        caps: &caps,
        ..ReadRequest::new(&start, &identity)
    };
    let mut source = TxSource::new(tx);
    match tx
        .storage()
        .with_schemas(|pool| traverse::read(&mut source, pool, &request))
    {
        Ok(reading) => Ok(View::of(tx, reading)),
        Err(error) => Err(source.error(error, link)),
    }
}

/// RUN-227: the value `link` selects, read as it is touched.
pub fn read_lazily(tx: &RunTx, link: &Link) -> Result<LazyView, RunnerError> {
    require_open(tx)?;
    ask_for(tx, link);
    let (identity, start, caps) = (
        tx.effective_identity(),
        to_walk(link, tx.storage()),
        caps_of(link),
    );
    let request = ReadRequest {
        caps: &caps,
        ..ReadRequest::new(&start, &identity)
    };
    let mut source = TxSource::new(tx);
    match tx
        .storage()
        .with_schemas(|pool| traverse::read_lazily(&mut source, pool, &request))
    {
        Ok(read) => Ok(LazyView::of(tx, read)),
        Err(error) => Err(source.error(error, link)),
    }
}

/// The reader's own document is asked for once, through its lens.
fn ask_for(tx: &RunTx, link: &Link) {
    if !link.is_inline() {
        tx.storage().kick_through(
            &link.address(),
            Selector::of_link(link),
            tx.scope_identity().as_ref(),
        );
    }
}

/// RUN-216.
fn refuse_unresolved(tx: &RunTx, link: &Link) -> Result<(), RunnerError> {
    if !tx.lazy_reads() || !link.schema.as_ref().is_some_and(constrains) {
        return Ok(());
    }
    let resolved = resolve(tx, link, LastNode::Value)?.link;
    let has_default = |schema: &Option<Value>| schema.as_ref().is_some_and(|s| s.member("default").is_some());
    if resolved.stamps.pending_hop_doc && !has_default(&link.schema) && !has_default(&resolved.schema) {
        return Err(RunnerError::UnresolvedInput {
            at: format!("{}/{}", resolved.id, resolved.path.join("/")),
        });
    }
    Ok(())
}
