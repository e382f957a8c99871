//! `sqlite.query`, `sqlite.register-disk-source` and SQLite operations in commits (SRV §5.6–5.8).

use std::sync::Arc;

use memory_wire::WireError;
use memory_wire::message::{ClientCommit, SqliteQuery, SqliteRegisterDiskSource};

use crate::acl::Capability;
use crate::dispatch::{Answer, Requester};
use crate::server::Server;

/// A read of a document's database.
pub(crate) async fn query(
    server: &Arc<Server>,
    requester: &Requester,
    _request: &SqliteQuery,
) -> Result<Answer, WireError> {
    server.require_capability(requester, Capability::Read).await?;
    Err(WireError::protocol(
        "sqlite.query is not available on this server",
    ))
}

/// Registration of a read-only file (SRV-521): the jail is judged on the path after its symlinks are resolved.
pub(crate) async fn register_disk_source(
    server: &Arc<Server>,
    requester: &Requester,
    request: &SqliteRegisterDiskSource,
) -> Result<Answer, WireError> {
    server.require_capability(requester, Capability::Owner).await?;
    let path = std::path::Path::new(&request.path);
    if !path.is_absolute() {
        return Err(WireError::protocol(format!(
            "disk source path must be absolute: {}",
            request.path
        )));
    }
    let resolved = {
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || path.canonicalize()).await
    };
    if !matches!(resolved, Ok(Ok(_))) {
        return Err(WireError::protocol(format!(
            "disk source path not found: {}",
            request.path
        )));
    }
    Err(WireError::protocol(
        "sqlite.register-disk-source is not available on this server",
    ))
}

/// A commit with SQLite operations, which no database is attached for.
pub(crate) fn refuse_operations(_commit: &ClientCommit) -> WireError {
    WireError::protocol("sqlite operations are not available on this server")
}
