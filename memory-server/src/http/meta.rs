//! `GET /api/meta`: who this server is.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value as Json_, json};

use crate::server::Server;

/// `did` is the audience of session opens; the execution switch is what a shell compiles its default from.
pub(crate) async fn meta(State(server): State<Arc<Server>>) -> Json<Json_> {
    let config = server.config();
    Json(json!({
        "did": config.audience.as_str(),
        "gitSha": config.git_sha,
        "shellServerExecutionDefine": config.server_execution,
        "limits": config.advertised_limits(),
    }))
}
