//! The access list takes a reader off while it extends its watches, queries, lists and is being fanned out to, and while
//! another writer's commits share transactions with the change: it is told once, every request of it is answered once, and
//! nothing that landed after the change ever reaches it.

use std::collections::BTreeMap;
use std::sync::Arc;

use memory_server::{AclMode, Server};
use serde_json::{Value as Json, json};

use crate::support::SPACE;
use crate::support::peer::{Peer, Told, commit, watching};
use crate::{directory, opened, server, server_in, settled, wire};

/// With the store in memory: queries are answered in the turn.
pub(crate) fn run() {
    play(&server(|config| config.acl.mode = AclMode::Enforce));
}

/// With the store in a file: queries are answered beside the turn, where a change may be durable that has not been
/// published.
pub(crate) fn run_beside() {
    let directory = directory();
    play(&server_in(&directory, |config| {
        config.acl.mode = AclMode::Enforce
    }));
}

fn play(server: &Arc<Server>) {
    shuttle::future::block_on(async {
        let mut owner = opened(server, wire(), "own", SPACE).await;
        let genesis = list(json!({ SPACE: "OWNER", "did:key:r": "READ", "did:key:s": "READ" }));
        let landed = owner.request(genesis(1)).await.expect("connected");
        assert_eq!(landed["ok"]["seq"], 1, "{landed}");
        let mut other = opened(server, wire(), "other", SPACE).await;
        let mut reader = opened(server, wire(), "r", "did:key:r").await;
        let mut stayer = opened(server, wire(), "s", "did:key:s").await;
        for (peer, session) in [(&mut reader, "r"), (&mut stayer, "s")] {
            peer.request(watching("session.watch.set", session, "all", &["of:x"]))
                .await;
        }
        let writing = shuttle::future::spawn(async move {
            owner
                .request(commit("own", 2, &[("of:x", json!("before"))]))
                .await;
            owner
                .request(list(json!({ SPACE: "OWNER", "did:key:s": "READ" }))(3))
                .await;
            let after = [("of:x", json!("afterwards")), ("of:y", json!("afterwards"))];
            owner.request(commit("own", 4, &after)).await;
            owner
        });
        let beside = shuttle::future::spawn(async move {
            for n in 1..=3u64 {
                let named = format!("of:{}", besides(n));
                let documents = [("of:y", json!(besides(n))), (named.as_str(), json!(n))];
                other.request(commit("other", n, &documents)).await;
            }
            other
        });
        let reading = shuttle::future::spawn(async move {
            let query = json!({
                "type": "graph.query", "space": SPACE, "sessionId": "r",
                "query": { "roots": [{ "id": "of:y", "selector": { "path": [], "schema": false } }] },
            });
            let ids = json!({ "type": "entity-id.list", "space": SPACE, "sessionId": "r" });
            for request in [
                query.clone(),
                ids,
                watching("session.watch.add", "r", "more", &["of:y"]),
                query,
                watching("session.watch.set", "r", "all", &["of:y", "of:x"]),
            ] {
                let answer = reader.request(request).await.expect("connected");
                if answer["ok"].is_null() {
                    let name = answer["error"]["name"].as_str().unwrap_or_default().to_owned();
                    assert!(
                        ["SessionError", "SessionRevokedError", "AuthorizationError"]
                            .contains(&name.as_str()),
                        "{answer}"
                    );
                }
            }
            reader
        });
        let mut owner: Peer = writing.await.expect("writes");
        let mut other: Peer = beside.await.expect("writes");
        let mut reader: Peer = reading.await.expect("reads");
        settled(server, &mut owner, "own").await;
        settled(server, &mut other, "other").await;
        settled(server, &mut reader, "r").await;
        settled(server, &mut stayer, "s").await;
        let landed = |peer: &Peer, session: &str| -> BTreeMap<u64, u64> {
            let mut told = Told::new(session);
            told.read(&peer.asked, &peer.heard);
            told.accepted
        };
        let change = landed(&owner, "own")[&3];
        let mut told = Told::new("r");
        told.read(&reader.asked, &reader.heard);
        assert!(told.is_revoked(), "the reader was told");
        let later = landed(&other, "other")
            .into_iter()
            .filter(|(_, seq)| *seq > change)
            .map(|(n, _)| besides(n));
        for hidden in later.chain(["afterwards".to_owned()]) {
            for text in &reader.texts {
                assert!(
                    !text.contains(&hidden),
                    "told of {hidden} after its access ended: {text}"
                );
            }
        }
        let mut stayed = Told::new("s");
        stayed.read(&stayer.asked, &stayer.heard);
        assert!(!stayed.is_revoked());
        let name = ("space".to_owned(), "of:x".to_owned(), String::new());
        assert_eq!(stayed.held[&name].1, Some(json!("afterwards")));
        let mut told_owner = Told::new("own");
        told_owner.read(&owner.asked, &owner.heard);
        assert_eq!(told_owner.marker, 4);
        // Not readmitted either.
        let mut again = Peer::connect(server, wire()).await;
        let answer = again
            .open("r", "did:key:r", told.token.as_deref(), told.position)
            .await
            .expect("connected");
        assert_eq!(answer["error"]["name"], "AuthorizationError", "{answer}");
    });
}

/// What the `n`th commit of the other writer holds, and part of the name of a document of it.
fn besides(n: u64) -> String {
    format!("beside-{n}")
}

/// A commit of the access list.
fn list(entries: Json) -> impl Fn(u64) -> Json {
    move |local_seq| commit("own", local_seq, &[(&format!("of:{SPACE}"), entries.clone())])
}
