//! The server's HTTP routes beside the socket (SRV §1.5): health, statistics, metrics, meta, blobs, dumps. Mounted by
//! [`crate::Server::router`]. Every answer is counted by the pattern of its route.

pub(crate) mod blobs;
pub(crate) mod dump;
pub(crate) mod health;
pub(crate) mod meta;

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Extension, Router};

use crate::listener::Line;
use crate::server::Server;
use crate::transport::{Mount, upgrade};

/// The production routes.
pub(crate) fn production(server: Arc<Server>) -> Router {
    Router::new()
        .route(
            "/api/storage/memory",
            get(
                |State(server): State<Arc<Server>>,
                 line: Option<Extension<Line>>,
                 request: Result<WebSocketUpgrade, WebSocketUpgradeRejection>| async move {
                    upgrade(server, Mount::Production, line, request)
                },
            ),
        )
        .route("/api/storage/memory/dump", get(dump::list))
        .route("/api/storage/memory/dump/{space}", get(dump::space))
        .route("/_health", get(health::liveness))
        .route("/api/health/stats", get(health::stats))
        .route("/api/health/ready", get(health::readiness))
        .route("/metrics", get(health::metrics))
        .route("/api/meta", get(meta::meta))
        .route("/{space}/blobs", post(blobs::upload))
        .route(
            "/{space}/blobs/{name}",
            get(blobs::download).post(blobs::upload_named),
        )
        // On the routes alone: what the host mounts beside them is its own.
        .route_layer(middleware::from_fn_with_state(Arc::clone(&server), count))
        .with_state(server)
}

/// Counts the answer of a route.
async fn count(
    State(server): State<Arc<Server>>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    if let Some(route) = route {
        server
            .statistics()
            .count_http(route.as_str(), response.status().as_u16());
    }
    response
}

/// A socket on every path and nothing else (SRV-109).
pub(crate) fn standalone(server: Arc<Server>) -> Router {
    Router::new()
        .fallback(any(
            |State(server): State<Arc<Server>>,
             line: Option<Extension<Line>>,
             request: Result<WebSocketUpgrade, WebSocketUpgradeRejection>| async move {
                upgrade(server, Mount::Standalone, line, request)
            },
        ))
        .with_state(server)
}
