//! Liveness, readiness, statistics and metrics (SRV §11.1).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json_, json};

use crate::metrics::{self, Census};
use crate::server::Server;

/// `GET /_health`: the process answers.
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

/// `GET /api/health/ready`: it also does its work. 503 while derived state is behind where somebody waits for it, by more
/// than [`crate::Limits::serving_lag_alarm`] (field fault F36), and while the server is ending. Names no space.
pub(crate) async fn readiness(State(server): State<Arc<Server>>) -> Response {
    let lag = server.serving_lag().await;
    let alarm = server.config().limits.serving_lag_alarm;
    let (status, word) = if server.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "ENDING")
    } else if lag > alarm {
        (StatusCode::SERVICE_UNAVAILABLE, "LAGGING")
    } else {
        (StatusCode::OK, "OK")
    };
    let body = json!({
        "status": word,
        "timestamp": server.config().clock.wall_ms(),
        "servingLagMs": u64::try_from(lag.as_millis()).unwrap_or(u64::MAX),
        "servingLagAlarmMs": u64::try_from(alarm.as_millis()).unwrap_or(u64::MAX),
    });
    (status, Json(body)).into_response()
}

/// `GET /api/health/stats`.
pub(crate) async fn stats(State(server): State<Arc<Server>>) -> Json<Json_> {
    Json(server.stats_report())
}

/// `GET /metrics`: everything of the metrics table, in Prometheus' text format.
pub(crate) async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let serving_lag = server.serving_lag().await;
    let shared = Arc::clone(&server);
    // Sizes of stores are asked of the file system.
    let taken = tokio::task::spawn_blocking(move || {
        let census = Census {
            serving_lag,
            ..Census::take(&shared)
        };
        let serving_loop = shared.serving_loop_block();
        shared.statistics().render(&census, serving_loop.as_ref())
    })
    .await;
    match taken {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics could not be taken");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
