//! Liveness and statistics (SRV §11.1).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderName;
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json_, json};

use crate::server::Server;

/// `GET /_health`.
pub(crate) async fn liveness(State(server): State<Arc<Server>>) -> Response {
    let sha = server.config().git_sha.clone();
    let body = Json(json!({
        "status": "OK",
        "timestamp": server.config().clock.wall_ms(),
        "gitSha": sha,
    }));
    match sha {
        Some(sha) => ([(HeaderName::from_static("x-cf-git-sha"), sha)], body).into_response(),
        None => body.into_response(),
    }
}

/// `GET /api/health/stats`.
pub(crate) async fn stats(State(server): State<Arc<Server>>) -> Json<Json_> {
    Json(server.stats_report())
}
