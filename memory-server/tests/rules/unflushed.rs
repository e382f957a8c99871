//! What a session is told when it changes its watches, writes or moves while something waits to be told.

use std::sync::Arc;

use memory_server::{Server, ServingPlane};
use serde_json::json;

use crate::manual;
use crate::support::link;
use crate::support::peer::{Peer, Told, Wire, commit, commit_of, watching, watching_roots};

async fn opened(server: &Arc<Server>, wire: Wire, session: &str, principal: &str) -> Peer {
    let mut peer = Peer::connect(server, wire).await;
    let answer = peer.open(session, principal, None, 0).await.expect("connected");
    assert_eq!(answer["ok"]["sessionId"], session, "{answer}");
    peer
}

/// SRV-503, SRV-525: what a new watch leads to is told in its newest state although its last change has not been flushed
/// yet, and told once.
#[tokio::test]
async fn srv_503_an_unflushed_change_reaches_who_adds_a_watch_that_leads_to_it() {
    let server = Server::new(manual()).expect("inside a runtime");
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    writer
        .request(commit(
            "w",
            1,
            &[("of:x", json!(1)), ("of:y", json!({ "to": link("of:x") }))],
        ))
        .await;
    let mut reader = opened(&server, Wire::InProcess, "r", "did:key:r").await;
    reader
        .request(watching("session.watch.set", "r", "x", &["of:x"]))
        .await;
    writer.request(commit("w", 2, &[("of:x", json!(2))])).await;
    let deep = json!([{ "id": "of:y", "selector": { "path": [], "schema": true } }]);
    reader
        .request(watching_roots("session.watch.add", "r", "y", &deep))
        .await;
    server.flush(None).await.expect("flushes");
    reader.drain("r").await;
    let mut told = Told::new("r");
    told.read(&reader.asked, &reader.heard);
    let (_, held) = told
        .held
        .iter()
        .find(|((_, id, _), _)| id == "of:x")
        .expect("held");
    assert_eq!(*held, (2, Some(json!(2))));
    let times = reader
        .texts
        .iter()
        .filter(|text| text.contains("\"of:x\"") && text.contains("\"value\":2"))
        .count();
    assert_eq!(times, 1, "{:?}", reader.texts);
}

/// SRV-419: a session that writes what it has not seen is not taken to hold what others wrote before.
#[tokio::test]
async fn srv_419_own_writes_beside_others_unflushed_ones_are_told_whole() {
    let server = Server::new(manual()).expect("inside a runtime");
    let mut other = opened(&server, Wire::InProcess, "o", "did:key:o").await;
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    writer
        .request(watching("session.watch.set", "w", "w", &["of:a", "of:b", "of:c"]))
        .await;
    other
        .request(commit(
            "o",
            1,
            &[("of:a", json!("theirs")), ("of:b", json!("theirs"))],
        ))
        .await;
    writer
        .request(commit(
            "w",
            1,
            &[("of:a", json!("mine")), ("of:c", json!("mine"))],
        ))
        .await;
    let patch = json!([{ "op": "patch", "id": "of:b", "patches": [{ "op": "replace", "path": "/value", "value": "patched" }] }]);
    writer.request(commit_of("w", 2, &patch)).await;
    let from = writer.heard.len();
    server.flush(None).await.expect("flushes");
    writer.drain("w").await;
    let told: Vec<String> = writer.heard[from..]
        .iter()
        .filter(|m| m["type"] == "session/effect")
        .flat_map(|m| m["effect"]["upserts"].as_array().cloned().unwrap_or_default())
        .map(|u| format!("{}={}", u["id"].as_str().unwrap_or_default(), u["doc"]["value"]))
        .collect();
    assert_eq!(
        told,
        ["of:a=\"mine\"", "of:b=\"patched\""],
        "its own whole head alone is left out"
    );
}

/// SRV-403: whatever becomes of a session, each of its requests has an answer.
#[tokio::test]
async fn srv_403_what_is_asked_before_a_session_moves_is_answered_on_the_connection_that_asked() {
    let server = Server::new(manual()).expect("inside a runtime");
    let mut old = opened(&server, Wire::AsSocket, "a", "did:key:a").await;
    let mut told = Told::new("a");
    told.read(&old.asked, &old.heard);
    for (n, kind) in ["session.watch.set", "session.watch.add", "session.watch.add"]
        .iter()
        .enumerate()
    {
        let watch = format!("w{n}");
        old.ask(watching(kind, "a", &watch, &["of:x", &format!("of:{n}")]))
            .await
            .expect("connected");
    }
    // Nothing of that has been read yet.
    let mut new = Peer::connect(&server, Wire::AsSocket).await;
    let answer = new
        .open("a", "did:key:a", told.token.as_deref(), 0)
        .await
        .expect("connected");
    assert_eq!(answer["ok"]["resumed"], true, "{answer}");
    while old.hear().await.expect("open")["type"] != "session/revoked" {}
    assert_eq!(old.unanswered(old.heard.len()), [] as [serde_json::Value; 0]);
}

/// SRV-417: after a conflict everything the commit read comes to its writer too, what it wrote itself before included: the
/// conflict may have been about that.
#[tokio::test]
async fn srv_417_what_a_conflicting_commit_has_read_is_told_although_its_writer_wrote_it() {
    for kind in ["confirmed", "pending"] {
        let server = Server::new(manual()).expect("inside a runtime");
        let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
        let ids = ["of:read", "of:stale", "of:written"];
        writer
            .request(watching("session.watch.set", "w", "w", &ids))
            .await;
        writer
            .request(commit("w", 1, &[("of:read", json!("mine"))]))
            .await;
        let mut other = opened(&server, Wire::InProcess, "o", "did:key:o").await;
        other
            .request(commit("o", 1, &[("of:stale", json!("theirs"))]))
            .await;
        let mut conflicting = commit("w", 2, &[("of:written", json!("lost"))]);
        let own = match kind {
            "confirmed" => json!({ "id": "of:read", "path": ["value"], "seq": 1 }),
            _ => json!({ "id": "of:read", "path": ["value"], "localSeq": 1 }),
        };
        let reads = &mut conflicting["commit"]["reads"];
        reads["confirmed"] = json!([{ "id": "of:stale", "path": ["value"], "seq": 0 }]);
        reads[kind].as_array_mut().expect("a list").push(own);
        let from = writer.heard.len();
        let refused = writer.request(conflicting).await.expect("connected");
        assert_eq!(refused["error"]["name"], "ConflictError", "{kind}: {refused}");
        server.flush(None).await.expect("flushes");
        writer.drain("w").await;
        let effects: Vec<_> = writer.heard[from..]
            .iter()
            .filter(|message| message["type"] == "session/effect")
            .collect();
        assert_eq!(effects.len(), 1, "{kind}: {effects:?}");
        let effect = &effects[0]["effect"];
        assert_eq!(effect["caughtUpLocalSeq"], 2, "{kind}: {effect}");
        let told: Vec<_> = effect["upserts"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|upsert| (upsert["id"].clone(), upsert["doc"]["value"].clone()))
            .collect();
        assert_eq!(
            told,
            [
                (json!("of:read"), json!("mine")),
                (json!("of:stale"), json!("theirs"))
            ],
            "{kind}"
        );
    }
}
