//! What a serving loop asks of the server (F37; F36 is told over HTTP and stands with the metrics).

use std::path::Path;
use std::sync::Arc;

use memory_engine::StoreRoot;
use memory_server::{Appended, DelegatedAppend, Server, ServingPlane, Stores};
use memory_wire::well_known::stream_sidecar_id;
use memory_wire::{Did, EntityId, LocalSeq, Scope, SpaceId, value};
use serde_json::json;

use crate::support::SPACE;
use crate::support::peer::{Peer, Wire, commit, watching};
use crate::{opened, server, stored};

const ACTOR: &str = "did:key:actor";

/// A server whose derived state is made on it, on the stores of a directory.
fn serving(directory: &Path) -> Arc<Server> {
    let root = StoreRoot::direct(directory).expect("a directory");
    let (server, _) = server(|config| {
        config.stores = Stores::Files(root);
        config.server_execution = true;
    });
    server
}

/// Delivers one event to a stream of the space, by a process that counts its commits anew.
async fn deliver(server: &Arc<Server>, process: &str, event: &str, local_seq: u64) -> Appended {
    let appended = server.commit_delegated_append(DelegatedAppend {
        target_space: SPACE.into(),
        target_stream: stream(),
        target_stream_link: Some(value!({ "id": "of:piece", "path": ["said"] })),
        event_id: event.into(),
        payload: value!({}),
        acting_principal: Some(ACTOR.into()),
        acting_session: None,
        sessionless_space_scope: false,
        capability_ref: "stream-append:x".into(),
        session_id: process.into(),
        local_seq: LocalSeq(local_seq),
    });
    appended.await.expect("delivered")
}

fn stream() -> EntityId {
    stream_sidecar_id(&EntityId::from("of:piece"), &["said"], Scope::Space)
}

/// How many events the stream holds, as `reader` is told.
async fn entries(reader: &mut Peer) -> usize {
    let sidecar = stored(reader, "reader", stream().as_str()).await;
    sidecar["document"]["value"]["entries"]
        .as_array()
        .map_or(0, Vec::len)
}

/// A server that is gone without a word: nothing of its end is run.
async fn crashed(directory: &Path) -> (Peer, Arc<Server>) {
    let server = serving(directory);
    let mut client = opened(&server, Wire::AsSocket, "live", ACTOR).await;
    client
        .request(watching("session.watch.set", "live", "w", &["of:derived"]))
        .await;
    client
        .request(commit("live", 1, &[("of:input", json!("typed"))]))
        .await;
    assert_eq!(
        deliver(&server, "first", "event", 1).await,
        Appended::Fresh {
            seq: memory_wire::Seq(2)
        }
    );
    (client, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37_after_a_crash_an_event_delivered_again_is_there_once_and_nobody_who_was_there_still_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let before = crashed(directory.path()).await;
    let space = SpaceId::from(SPACE);
    assert!(before.1.has_live_sessions(&space, None));
    // Beside the one that is gone, as far as the store can tell.
    let server = serving(directory.path());
    let mut reader = opened(&server, Wire::InProcess, "reader", "did:key:reader").await;
    for (process, local_seq) in [("second", 1), ("second", 2), ("first", 9)] {
        assert_eq!(
            deliver(&server, process, "event", local_seq).await,
            Appended::Deduped,
            "delivered again by {process}"
        );
    }
    assert_eq!(entries(&mut reader).await, 1);
    assert!(matches!(
        deliver(&server, "second", "another", 3).await,
        Appended::Fresh { .. }
    ));
    assert_eq!(entries(&mut reader).await, 2);
    let reading = Did::from("did:key:reader");
    assert!(!server.has_live_session_for(&space, &ACTOR.into(), &"live".into()));
    assert!(!server.has_live_sessions(&space, Some(&reading)));
    assert!(
        server.demanded_instances(&space, Some(&reading)).is_empty(),
        "whoever was there asks for nothing any more"
    );
    drop(before);
}
