//! Stale and wrong pushes (F11…F16).

use memory_server::AclMode;
use serde_json::{Value as Json, json};

use crate::support::SPACE;
use crate::support::peer::{Peer, Told, Wire, commit, commit_of, watching, watching_roots};
use crate::{effects_since, opened, removes, server, stored, until_connections, upserts};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_access_and_document_lost_in_one_commit_leave_nobody_holding_it_unaware() {
    let (server, _) = server(|config| config.acl.mode = AclMode::Enforce);
    let mut owner = opened(&server, Wire::InProcess, "own", SPACE).await;
    let list = format!("of:{SPACE}");
    let genesis = json!({ SPACE: "OWNER", "did:key:u2": "READ", "did:key:u3": "READ" });
    owner.request(commit("own", 1, &[(&list, genesis)])).await;
    owner
        .request(commit("own", 2, &[("of:d", json!("secret"))]))
        .await;
    let mut out = opened(&server, Wire::AsSocket, "u2", "did:key:u2").await;
    let mut stays = opened(&server, Wire::AsSocket, "u3", "did:key:u3").await;
    for (peer, session) in [(&mut out, "u2"), (&mut stays, "u3")] {
        peer.request(watching("session.watch.set", session, "w", &["of:d"]))
            .await;
    }
    // An access list changes in a commit of its own; the deletion follows within the same flush.
    let from = (out.heard.len(), stays.heard.len());
    owner
        .request(commit(
            "own",
            3,
            &[(&list, json!({ SPACE: "OWNER", "did:key:u3": "READ" }))],
        ))
        .await;
    owner.request(commit("own", 4, &[("of:d", Json::Null)])).await;
    let told = effects_since(&server, &mut stays, "u3", from.1).await;
    assert_eq!(
        upserts(&told[0]),
        [("of:d".to_owned(), Json::Null)],
        "who stays hears of the deletion"
    );
    effects_since(&server, &mut out, "u2", from.0).await;
    let heard: Vec<&str> = out.heard[from.0..]
        .iter()
        .filter_map(|message| message["type"].as_str())
        .collect();
    assert_eq!(
        heard,
        ["session/revoked", "response"],
        "who lost access is told that, and nothing else"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_a_peer_that_leaves_takes_nobody_elses_rows_along() {
    let (server, _) = server(|_| ());
    let roots = json!([{ "id": "of:d", "scope": "user", "selector": { "path": [], "schema": false } }]);
    let mut one = opened(&server, Wire::AsSocket, "one", "did:key:one").await;
    let mut two = opened(&server, Wire::AsSocket, "two", "did:key:two").await;
    for (peer, session) in [(&mut one, "one"), (&mut two, "two")] {
        peer.request(watching_roots("session.watch.set", session, "w", &roots))
            .await;
    }
    drop(one);
    until_connections(&server, 1).await;
    let mut other = opened(&server, Wire::InProcess, "two-b", "did:key:two").await;
    let own = json!([{ "op": "set", "id": "of:d", "scope": "user", "value": { "value": "mine" } }]);
    other.request(commit_of("two-b", 1, &own)).await;
    let from = two.heard.len();
    let frames = effects_since(&server, &mut two, "two", from).await;
    assert_eq!(upserts(&frames[0]), [("of:d".to_owned(), json!("mine"))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_overlapping_watches_keep_the_document_until_the_last_goes() {
    let (server, _) = server(|_| ());
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    let mut reader = opened(&server, Wire::AsSocket, "r", "did:key:r").await;
    let narrow = json!([{ "id": "of:d", "selector": { "path": ["x"], "schema": true } }]);
    let wide = json!([{ "id": "of:d", "selector": { "path": [], "schema": false } }]);
    reader
        .request(watching_roots("session.watch.add", "r", "w1", &narrow))
        .await;
    reader
        .request(watching_roots("session.watch.add", "r", "w2", &wide))
        .await;
    let without_first = reader
        .request(watching_roots("session.watch.set", "r", "w2", &wide))
        .await;
    assert_eq!(
        removes(&without_first.expect("connected")["ok"]["sync"]),
        Vec::<String>::new()
    );
    let from = reader.heard.len();
    writer
        .request(commit("w", 1, &[("of:d", json!({ "x": 1 }))]))
        .await;
    let frames = effects_since(&server, &mut reader, "r", from).await;
    assert_eq!(
        upserts(&frames[0]),
        [("of:d".to_owned(), json!({ "x": 1 }))],
        "still live under the other"
    );
    let none = json!({ "type": "session.watch.set", "space": SPACE, "sessionId": "r", "watches": [] });
    let emptied = reader.request(none.clone()).await.expect("connected");
    assert_eq!(removes(&emptied["ok"]["sync"]), ["of:d"], "and goes once");
    assert_eq!(
        removes(&reader.request(none).await.expect("connected")["ok"]["sync"]),
        Vec::<String>::new()
    );
    let from = reader.heard.len();
    writer
        .request(commit("w", 2, &[("of:d", json!({ "x": 2 }))]))
        .await;
    assert_eq!(
        effects_since(&server, &mut reader, "r", from).await,
        Vec::<Json>::new()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_an_append_during_a_resume_lands_or_is_refused_aloud_and_never_just_goes() {
    let (server, _) = server(|_| ());
    let mut client = opened(&server, Wire::AsSocket, "a", "did:key:a").await;
    client
        .request(watching("session.watch.set", "a", "w", &["of:list"]))
        .await;
    client
        .request(commit("a", 1, &[("of:list", json!(["one"]))]))
        .await;
    let mut told = Told::new("a");
    told.lossy = true;
    told.read(&client.asked, &client.heard);
    let read_at = told.accepted[&1];
    drop(client);
    until_connections(&server, 0).await;
    let mut other = opened(&server, Wire::InProcess, "b", "did:key:b").await;
    other
        .request(commit("b", 1, &[("of:list", json!(["one", "theirs"]))]))
        .await;
    told.next_connection();
    let mut again = Peer::connect(&server, Wire::AsSocket).await;
    let answer = again
        .open("a", "did:key:a", told.token.as_deref(), told.position)
        .await
        .expect("connected");
    assert_eq!(
        upserts(&answer["ok"]["sync"]),
        [("of:list".to_owned(), json!(["one", "theirs"]))]
    );
    // Appended to what it knew before it had caught up.
    let mut append = commit("a", 2, &[("of:list", json!(["one", "mine"]))]);
    append["commit"]["reads"]["confirmed"] = json!([{ "id": "of:list", "path": ["value"], "seq": read_at }]);
    let refused = again.request(append).await.expect("connected");
    assert_eq!(refused["error"]["name"], "ConflictError", "{refused}");
    let retry_after = refused["error"]["retryAfterSeq"]
        .as_u64()
        .expect("says what to wait for");
    // The refusal is covered by a marker, and what the client lacks comes with it.
    let from = again.heard.len();
    let frames = effects_since(&server, &mut again, "a", from).await;
    assert_eq!(frames[0]["caughtUpLocalSeq"], 2, "{frames:?}");
    let mut retry = commit("a", 3, &[("of:list", json!(["one", "theirs", "mine"]))]);
    retry["commit"]["reads"]["confirmed"] =
        json!([{ "id": "of:list", "path": ["value"], "seq": retry_after }]);
    let landed = again.request(retry).await.expect("connected");
    assert!(landed["ok"]["seq"].is_u64(), "{landed}");
    assert_eq!(
        stored(&mut again, "a", "of:list").await["document"]["value"],
        json!(["one", "theirs", "mine"])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f16_a_deletion_reaches_who_was_away_however_long() {
    let (server, clock) = server(|_| ());
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    writer.request(commit("w", 1, &[("of:d", json!("here"))])).await;
    let mut tokens = Vec::new();
    for session in ["short", "long"] {
        let mut reader = opened(&server, Wire::AsSocket, session, "did:key:r").await;
        reader
            .request(watching("session.watch.set", session, "w", &["of:d"]))
            .await;
        let mut told = Told::new(session);
        told.read(&reader.asked, &reader.heard);
        tokens.push((session, told.token.expect("opened")));
    }
    until_connections(&server, 1).await;
    writer.request(commit("w", 2, &[("of:d", Json::Null)])).await;
    for (session, token) in tokens {
        if session == "long" {
            clock.advance(31_000);
        }
        let mut again = Peer::connect(&server, Wire::AsSocket).await;
        let answer = again
            .open(session, "did:key:r", Some(&token), 1)
            .await
            .expect("connected");
        let sync = match session {
            "short" => {
                assert_eq!(answer["ok"]["resumed"], true);
                answer["ok"]["sync"].clone()
            }
            _ => {
                assert!(answer["ok"].get("resumed").is_none(), "{answer}");
                let full = again
                    .request(watching("session.watch.set", session, "w", &["of:d"]))
                    .await;
                full.expect("connected")["ok"]["sync"].clone()
            }
        };
        assert_eq!(sync["upserts"][0]["deleted"], true, "{session}: {sync}");
        assert_eq!(sync["upserts"][0]["seq"], 2, "{session}");
    }
}
