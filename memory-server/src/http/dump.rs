//! Copies of whole stores for operators (SRV-123, decision 15): only where the host enabled them, and only for peers on
//! the loopback interface. Everybody else finds nothing there.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path as RoutePath, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use memory_engine::{EngineError, dump};
use memory_wire::SpaceId;
use serde_json::json;
use tokio::sync::mpsc;

use crate::acl;
use crate::config::Stores;
use crate::server::Server;

/// Bytes of a copy read and sent at a time.
const CHUNK: usize = 256 * 1024;

/// `GET /api/storage/memory/dump`: the stores, newest first.
pub(crate) async fn list(State(server): State<Arc<Server>>, request: Request) -> Response {
    let Some(root) = admitted(&server, &request) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let listed = tokio::task::spawn_blocking(move || root.list()).await;
    let Ok(Ok(mut stores)) = listed else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // The lister reports whatever lies there; databases beside stores are not spaces (ENG-106).
    stores.retain(|store| acl::is_did(store.space.as_str()));
    stores.sort_by(|a, b| (b.modified_ms, &a.space).cmp(&(a.modified_ms, &b.space)));
    let spaces: Vec<_> = stores
        .into_iter()
        .map(|store| {
            json!({ "space": store.space.as_str(), "sizeBytes": store.size_bytes, "mtimeMs": store.modified_ms })
        })
        .collect();
    Json(json!({ "spaces": spaces })).into_response()
}

/// `GET /api/storage/memory/dump/{space}`: one consistent copy.
pub(crate) async fn space(
    State(server): State<Arc<Server>>,
    RoutePath(space): RoutePath<String>,
    request: Request,
) -> Response {
    let Some(root) = admitted(&server, &request) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let id = SpaceId::from(space.as_str());
    let Some(store) = root.store_path(&id).ok().filter(|store| store.exists()) else {
        return (StatusCode::NOT_FOUND, Json(json!({ "error": "space not found" }))).into_response();
    };
    let copy = std::env::temp_dir().join(format!(
        "memory-dump-{}.sqlite",
        server.config().identifiers.uuid()
    ));
    let opened = tokio::task::spawn_blocking(move || snapshot(&store, &copy)).await;
    match opened {
        Ok(Ok(file)) => (
            [
                (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
                (
                    header::CONTENT_DISPOSITION,
                    format!(
                        "attachment; filename=\"{}.sqlite\"",
                        space.replace(['"', '\\'], "_")
                    ),
                ),
            ],
            Body::from_stream(chunks(file)),
        )
            .into_response(),
        failed => {
            tracing::warn!(space, failed = ?failed.map(|copied| copied.err()), "store could not be copied");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                Json(json!({ "error": "snapshot failed" })),
            )
                .into_response()
        }
    }
}

/// The store root, when dumps are enabled and the peer is on this machine. A server that was not told its peers'
/// addresses answers nobody.
fn admitted(server: &Server, request: &Request) -> Option<memory_engine::StoreRoot> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>()?.0;
    match &server.config().stores {
        Stores::Files(root) if server.config().dumps && peer.ip().is_loopback() => Some(root.clone()),
        Stores::Files(_) | Stores::Memory => None,
    }
}

/// Copies a store and opens the copy, which then has no name any more and goes with its handle.
fn snapshot(store: &Path, copy: &PathBuf) -> Result<std::fs::File, EngineError> {
    let io = |source| EngineError::Io {
        path: copy.clone(),
        source,
    };
    let opened = dump::dump(store, copy).and_then(|()| std::fs::File::open(copy).map_err(io));
    let removed = std::fs::remove_file(copy);
    let file = opened?;
    removed.map_err(io)?;
    Ok(file)
}

/// The file's bytes, read off the network threads.
fn chunks(mut file: std::fs::File) -> impl futures_util::Stream<Item = std::io::Result<Bytes>> {
    let (send, receive) = mpsc::channel(2);
    tokio::task::spawn_blocking(move || {
        loop {
            let mut chunk = vec![0; CHUNK];
            let read = match file.read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => {
                    chunk.truncate(read);
                    Ok(Bytes::from(chunk))
                }
                Err(error) => Err(error),
            };
            let failed = read.is_err();
            // The peer may have left.
            if send.blocking_send(read).is_err() || failed {
                return;
            }
        }
    });
    futures_util::stream::unfold(receive, |mut receive| async move {
        receive.recv().await.map(|chunk| (chunk, receive))
    })
}
