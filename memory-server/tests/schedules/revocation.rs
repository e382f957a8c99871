//! The access list takes a reader off while it extends its watches, queries and is being fanned out to: it is told once,
//! every request of it is answered once, and nothing written after the change ever reaches it.

use memory_server::AclMode;
use serde_json::{Value as Json, json};

use crate::support::SPACE;
use crate::support::peer::{Peer, Told, commit, watching};
use crate::{opened, server, settled, wire};

pub(crate) fn run() {
    shuttle::future::block_on(async {
        let server = server(|config| config.acl.mode = AclMode::Enforce);
        let mut owner = opened(&server, wire(), "own", SPACE).await;
        let genesis = list(json!({ SPACE: "OWNER", "did:key:r": "READ", "did:key:s": "READ" }));
        let landed = owner.request(genesis(1)).await.expect("connected");
        assert_eq!(landed["ok"]["seq"], 1, "{landed}");
        let mut reader = opened(&server, wire(), "r", "did:key:r").await;
        let mut stayer = opened(&server, wire(), "s", "did:key:s").await;
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
        let reading = shuttle::future::spawn(async move {
            let query = json!({
                "type": "graph.query", "space": SPACE, "sessionId": "r",
                "query": { "roots": [{ "id": "of:y", "selector": { "path": [], "schema": false } }] },
            });
            for request in [
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
        let mut reader: Peer = reading.await.expect("reads");
        settled(&server, &mut owner, "own").await;
        settled(&server, &mut reader, "r").await;
        settled(&server, &mut stayer, "s").await;
        let mut told = Told::new("r");
        told.read(&reader.asked, &reader.heard);
        assert!(told.is_revoked(), "the reader was told");
        for text in &reader.texts {
            assert!(
                !text.contains("afterwards"),
                "told after its access ended: {text}"
            );
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
        let mut again = Peer::connect(&server, wire()).await;
        let answer = again
            .open("r", "did:key:r", told.token.as_deref(), told.position)
            .await
            .expect("connected");
        assert_eq!(answer["error"]["name"], "AuthorizationError", "{answer}");
    });
}

/// A commit of the access list.
fn list(entries: Json) -> impl Fn(u64) -> Json {
    move |local_seq| commit("own", local_seq, &[(&format!("of:{SPACE}"), entries.clone())])
}
