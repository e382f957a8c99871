//! Two connections claim one session with one token while a third still has it: exactly one gets it, the one that had it
//! hears so once and nothing more, and the winner misses nothing.

use std::sync::Arc;

use memory_server::Server;
use serde_json::{Value as Json, json};

use crate::support::peer::{Peer, Told, Wire, commit, watching};
use crate::{holds_what_is_stored, opened, server, settled, wire};

const WATCHED: &[&str] = &["of:a", "of:own"];

pub(crate) fn run() {
    shuttle::future::block_on(async {
        let server = server(|_| ());
        let mut writer = opened(&server, wire(), "w", "did:key:w").await;
        let mut first = opened(&server, wire(), "s", "did:key:s").await;
        first
            .request(watching("session.watch.set", "s", "all", WATCHED))
            .await;
        let mut told = Told::new("s");
        told.lossy = true;
        told.read(&first.asked, &first.heard);
        let token = told.token.clone().expect("opened");
        let writing = shuttle::future::spawn(async move {
            for n in 1..=2u64 {
                writer.request(commit("w", n, &[("of:a", json!(n))])).await;
            }
            writer
        });
        let holding = shuttle::future::spawn(async move {
            // Accepted, or refused because the session has gone.
            first.request(commit("s", 1, &[("of:own", json!("mine"))])).await;
            first
        });
        let claims: Vec<_> = [wire(), wire()]
            .map(|wire| {
                shuttle::future::spawn(claim(Arc::clone(&server), wire, token.clone(), told.position))
            })
            .into_iter()
            .collect();
        let mut claimants = Vec::new();
        for claim in claims {
            claimants.push(claim.await.expect("claims"));
        }
        let mut first = holding.await.expect("holds");
        let writer = writing.await.expect("writes");
        let won: Vec<bool> = claimants
            .iter()
            .map(|(_, answer)| answer["ok"]["resumed"] == true)
            .collect();
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "one owner: {won:?}");
        let refused = claimants
            .iter()
            .find(|(_, answer)| answer["ok"].is_null())
            .expect("one lost");
        assert_eq!(refused.1["error"]["name"], "SessionRevokedError", "{}", refused.1);
        first.drain("s").await;
        let mut loser = Told::new("s");
        loser.read(&first.asked, &first.heard);
        assert!(loser.is_revoked(), "the connection that had it heard so");
        let answer = first
            .request(commit("s", 9, &[("of:own", json!("stolen"))]))
            .await
            .expect("connected");
        assert_eq!(answer["error"]["name"], "SessionError", "{answer}");
        // The client is one: what it heard before the take-over it holds.
        let mut told = Told::new("s");
        told.lossy = true;
        told.read(&first.asked, &first.heard[..first.heard.len() - 1]);
        told.next_connection();
        let (mut winner, _) = claimants
            .into_iter()
            .find(|(_, answer)| answer["ok"]["resumed"] == true)
            .expect("one won");
        if told.accepted.is_empty() {
            winner.request(commit("s", 1, &[("of:own", json!("mine"))])).await;
        }
        settled(&server, &mut winner, "s").await;
        told.read(&winner.asked, &winner.heard);
        assert_eq!(told.accepted.len(), 1);
        assert_eq!(told.marker, 1, "the commit is covered by a marker");
        holds_what_is_stored(&server, &told, WATCHED).await;
        drop(writer);
    });
}

async fn claim(server: Arc<Server>, wire: Wire, token: String, position: u64) -> (Peer, Json) {
    let mut peer = Peer::connect(&server, wire).await;
    let answer = peer
        .open("s", "did:key:s", Some(&token), position)
        .await
        .expect("connected");
    (peer, answer)
}
