//! `sqlite.query` and `sqlite.register-disk-source` (SRV §5.6, 5.7). SQLite operations of commits are `transact`'s, which
//! has the engine judge them (SRV-522) and attach their database for the length of the commit (SRV-523). Files are named by
//! the engine (SRV-519), which also keeps at most 32 of them open for reading (SRV-520).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memory_engine::EngineError;
use memory_engine::sqlite_builtin::{QueryTarget, Rows, cell_file};
use memory_wire::error::ErrorName;
use memory_wire::message::{SqliteQuery, SqliteQueryOk, SqliteRegisterDiskSource};
use memory_wire::{Object, ScopeKey, Value, WireError, value};

use crate::acl::Capability;
use crate::config::Stores;
use crate::dispatch::{Answer, Requester};
use crate::error::ServerError;
use crate::server::Server;

/// A read of one database of the space.
pub(crate) async fn query(
    server: &Arc<Server>,
    requester: &Requester,
    request: &SqliteQuery,
) -> Result<Answer, WireError> {
    server.require_capability(requester, Capability::Read).await?;
    let space = &requester.open.space;
    let identity = {
        let registry = space.registry.lock();
        let (_, session) = registry
            .current(&requester.header.session_id, requester.open.incarnation)
            .ok_or_else(|| WireError::session("Unknown session for space"))?;
        session.identity()
    };
    let scope_key = ScopeKey::resolve(request.db.scope.unwrap_or_default(), &identity)
        .map_err(|error| ServerError::from(EngineError::from(error)).to_query())?;
    let target = QueryTarget::of(
        space.engine().location(),
        server.cells().disk_sources(),
        space.id(),
        &request.db.id,
        &scope_key,
        request.db.tables.clone(),
    );
    let (reading, sql, params) = (Arc::clone(server), request.sql.clone(), request.params.clone());
    let place = server.sqlite_read_permit().await;
    let rows = tokio::task::spawn_blocking(move || {
        let answered = reading.cell_readers().query(&target, &sql, params.as_ref());
        // Kept by the thread, which goes on when nobody waits for it any more.
        drop(place);
        answered
    })
    .await
    .map_err(|error| ServerError::from(error).to_query())?
    .map_err(sqlite_error)?;
    // The read took its time: what allowed it may be gone (SRV-406).
    server.require_capability(requester, Capability::Read).await?;
    let columns = columns(request.db.tables.as_ref(), &rows)?;
    Ok(Answer::Body(
        SqliteQueryOk {
            rows: rows.rows,
            columns: Some(columns),
        }
        .to_value(),
    ))
}

fn sqlite_error(error: EngineError) -> WireError {
    let name = match error {
        EngineError::Guard { .. } => ErrorName::Guard,
        _ => ErrorName::Sqlite,
    };
    WireError::new(name, error.told())
}

/// Where each column comes from, for declarations that label what they hold; otherwise undefined (SRV-518). A labelled
/// answer whose columns cannot be traced is refused, never given unlabelled.
fn columns(tables: Option<&Object>, rows: &Rows) -> Result<Value, WireError> {
    if !tables.is_some_and(|tables| tables.iter().any(|(_, schema)| is_labelled(schema))) {
        return Ok(Value::Undefined);
    }
    let traced: Result<Vec<Value>, WireError> = rows
        .columns
        .iter()
        .map(|column| match &column.origin {
            Some((table, origin)) => Ok(value!({
                "name": (column.name.as_str()), "table": (table.as_str()), "column": (origin.as_str())
            })),
            None => Err(WireError::new(
                ErrorName::Sqlite,
                format!(
                    "column {:?} has no origin, so that its label cannot be told",
                    column.name
                ),
            )),
        })
        .collect();
    Ok(traced?.into())
}

/// True when a table's schema has a row label or information-flow part anywhere.
fn is_labelled(schema: &Value) -> bool {
    let mut open = vec![schema.clone()];
    while let Some(value) = open.pop() {
        match &value {
            Value::Object(object) => {
                if object.contains_key("ifc") || object.contains_key("rowLabel") {
                    return true;
                }
                open.extend(object.iter().map(|(_, member)| member.clone()));
            }
            Value::Array(array) => open.extend(array.elements().map(|(_, element)| element.clone())),
            _ => {}
        }
    }
    false
}

/// Registers a file for reading, for this process only (SRV-521). The jail is judged on the path after its symlinks are
/// resolved: judging it before is the classic hole.
pub(crate) async fn register_disk_source(
    server: &Arc<Server>,
    requester: &Requester,
    request: &SqliteRegisterDiskSource,
) -> Result<Answer, WireError> {
    server.require_capability(requester, Capability::Owner).await?;
    let (stores, asked) = (server.config().stores.clone(), request.path.clone());
    let path = tokio::task::spawn_blocking(move || admissible_path(&stores, &asked))
        .await
        .map_err(|error| ServerError::from(error).to_query())??;
    server.require_capability(requester, Capability::Owner).await?;
    server
        .cells()
        .disk_sources()
        .register(&request.header.space, &request.id, path)
        .map_err(|refusal| WireError::protocol(refusal.to_string()))?;
    Ok(Answer::Body(value!({ "registered": true })))
}

fn admissible_path(stores: &Stores, asked: &str) -> Result<PathBuf, WireError> {
    let path = Path::new(asked);
    if !path.is_absolute() {
        return Err(WireError::protocol(format!(
            "disk source path must be absolute: {asked}"
        )));
    }
    let resolved = path
        .canonicalize()
        .ok()
        .filter(|resolved| resolved.is_file())
        .ok_or_else(|| WireError::protocol(format!("disk source path not found: {asked}")))?;
    let inside_store = match stores {
        Stores::Memory => false,
        Stores::Files(root) => root
            .directory()
            .canonicalize()
            .is_ok_and(|root| resolved.starts_with(root)),
    };
    let name = resolved
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    if inside_store || cell_file::is_cell_file_name(name) {
        return Err(WireError::protocol(format!(
            "disk source path may not be a store of this server: {asked}"
        )));
    }
    Ok(resolved)
}
