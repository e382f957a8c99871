//! Where each rule of the server's page is shown (`rules.tsv`), and the rules that no transcript tells apart from their
//! neighbours, each by a small exchange of its own.

#[path = "../support/mod.rs"]
mod support;

mod absurd_knobs;
mod acting_owner;
mod bounds;
mod failing_flush;
mod large_lists;
mod other_process;
mod reads;
mod sessions;
mod shared_work;
mod table;
mod unflushed;

use memory_server::{AclConfig, AclMode, ServerConfig, ServingPlane};
use serde_json::Value as Json;
use support::{Client, Injected, Running};

fn manual() -> ServerConfig {
    Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config
}

fn enforcing() -> ServerConfig {
    let mut config = manual();
    config.acl = AclConfig {
        mode: AclMode::Enforce,
        ..AclConfig::default()
    };
    config
}

async fn flush(running: &Running) {
    running.server.flush(None).await.expect("flushes");
}

async fn effect(client: &mut Client) -> Json {
    let message = support::json(&client.recv().await);
    assert_eq!(message["type"], "session/effect", "{message}");
    message["effect"].clone()
}

/// Ids of a sync's upserts, in order.
fn ids(sync: &Json) -> Vec<&str> {
    let mut ids: Vec<&str> = sync["upserts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|upsert| upsert["id"].as_str().expect("an id"))
        .collect();
    ids.sort_unstable();
    ids
}
