//! The server's HTTP routes beside the socket (SRV §1.5): health, statistics, meta, blobs, dumps. Mounted
//! by
//! [`crate::Server::router`].

pub(crate) mod blobs;
pub(crate) mod dump;
pub(crate) mod health;
pub(crate) mod meta;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::routing::{any, get, post};

use crate::server::Server;
use crate::transport::{Mount, upgrade};

/// The production routes.
pub(crate) fn production(server: Arc<Server>) -> Router {
    Router::new()
        .route(
            "/api/storage/memory",
            get(
                |State(server): State<Arc<Server>>,
                 request: Result<WebSocketUpgrade, WebSocketUpgradeRejection>| async move {
                    upgrade(server, Mount::Production, request)
                },
            ),
        )
        .route("/api/storage/memory/dump", get(dump::list))
        .route("/api/storage/memory/dump/{space}", get(dump::space))
        .route("/_health", get(health::liveness))
        .route("/api/health/stats", get(health::stats))
        .route("/api/meta", get(meta::meta))
        .route("/{space}/blobs", post(blobs::upload))
        .route(
            "/{space}/blobs/{name}",
            get(blobs::download).post(blobs::upload_named),
        )
        .with_state(server)
}

/// A socket on every path and nothing else (SRV-109).
pub(crate) fn standalone(server: Arc<Server>) -> Router {
    Router::new()
        .fallback(any(
            |State(server): State<Arc<Server>>,
             request: Result<WebSocketUpgrade, WebSocketUpgradeRejection>| async move {
                upgrade(server, Mount::Standalone, request)
            },
        ))
        .with_state(server)
}
