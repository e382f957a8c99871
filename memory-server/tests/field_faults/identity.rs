//! Permissions and identity (F27…F29).

use std::sync::Arc;

use memory_engine::lease::{Holder, LeaseTable};
use memory_engine::{EngineHandle, StoreRoot};
use memory_server::{
    AclMode, AdmittedCommit, DemandReason, Observer, ServingPlane, SignedSessionOpen, Stores,
};
use memory_wire::identity::Signer;
use memory_wire::{Did, Scope, ScopeIdentity, ScopeKey, SpaceId, Value};
use serde_json::{Value as Json, json};

use crate::support::SPACE;
use crate::support::peer::{Wire, commit, commit_of, watching_roots};
use crate::{Gate, START, effects_since, opened, server, upserts};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f27_a_reader_with_a_pass_widens_nobody_elses_view() {
    const SERVICE: &str = "did:key:service";
    let (server, _) = server(|config| config.server_execution = true);
    let space = SpaceId::from(SPACE);
    let mut table = server.engine(&space).expect("open");
    let holder = Holder::new(&SERVICE.into(), "process");
    let acquiring = space.clone();
    let acquired = tokio::task::spawn_blocking(move || table.acquire(&acquiring, &holder, START, 15_000));
    assert!(acquired.await.expect("runs").expect("writable"));
    let mut alice = opened(&server, Wire::InProcess, "alice", "did:key:alice").await;
    let own = json!([{ "op": "set", "id": "of:d", "scope": "user", "value": { "value": "alice's own" } }]);
    alice.request(commit_of("alice", 1, &own)).await;
    let key = ScopeKey::resolve(
        Scope::User,
        &ScopeIdentity {
            principal: Some(Did::from("did:key:alice")),
            session_id: None,
        },
    )
    .expect("a principal");
    let named = json!([{
        "id": "of:d", "scope": "user", "entityScopeKey": key.as_str(), "selector": { "path": [], "schema": false },
    }]);
    let unnamed = json!([{ "id": "of:d", "scope": "user", "selector": { "path": [], "schema": false } }]);
    let mut service = opened(&server, Wire::InProcess, "service", SERVICE).await;
    let seen = service
        .request(watching_roots("session.watch.set", "service", "w", &named))
        .await;
    assert_eq!(
        upserts(&seen.expect("connected")["ok"]["sync"]),
        [("of:d".to_owned(), json!("alice's own"))]
    );
    // The same watch of somebody without the pass, on whatever the pass has evaluated and cached.
    let mut bob = opened(&server, Wire::AsSocket, "bob", "did:key:bob").await;
    let refused = bob
        .request(watching_roots("session.watch.set", "bob", "w", &named))
        .await
        .expect("connected");
    assert_eq!(refused["error"]["name"], "ProtocolError", "{refused}");
    let seen = bob
        .request(watching_roots("session.watch.set", "bob", "w", &unnamed))
        .await
        .expect("connected");
    assert_eq!(upserts(&seen["ok"]["sync"]), [("of:d".to_owned(), Json::Null)]);
    let more = json!([{ "op": "set", "id": "of:d", "scope": "user", "value": { "value": "alice's more" } }]);
    alice.request(commit_of("alice", 2, &more)).await;
    let from = service.heard.len();
    assert_eq!(
        effects_since(&server, &mut service, "service", from).await.len(),
        1
    );
    let from = bob.heard.len();
    assert_eq!(
        effects_since(&server, &mut bob, "bob", from).await,
        Vec::<Json>::new()
    );
    assert!(
        bob.texts.iter().all(|text| !text.contains("alice's")),
        "{:?}",
        bob.texts
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_a_deletion_tells_nothing_to_who_could_not_read_what_was_deleted() {
    let (server, _) = server(|_| ());
    let mut one = opened(&server, Wire::InProcess, "one", "did:key:one").await;
    let mut two = opened(&server, Wire::AsSocket, "two", "did:key:two").await;
    for scope in ["user", "session"] {
        let write =
            json!([{ "op": "set", "id": "of:hidden", "scope": scope, "value": { "value": "whisper" } }]);
        one.request(commit_of("one", if scope == "user" { 1 } else { 2 }, &write))
            .await;
    }
    // It watches as broadly as it may: the same document in every scope.
    let roots: Vec<Json> = ["space", "user", "session"]
        .iter()
        .map(|scope| json!({ "id": "of:hidden", "scope": scope, "selector": { "path": [], "schema": true } }))
        .collect();
    two.request(watching_roots("session.watch.set", "two", "w", &json!(roots)))
        .await;
    let from = two.heard.len();
    let deletions = json!([
        { "op": "delete", "id": "of:hidden", "scope": "user" },
        { "op": "delete", "id": "of:hidden", "scope": "session" },
    ]);
    let landed = one
        .request(commit_of("one", 3, &deletions))
        .await
        .expect("connected");
    assert_eq!(landed["ok"]["seq"], 3);
    assert_eq!(
        effects_since(&server, &mut two, "two", from).await,
        Vec::<Json>::new(),
        "not a frame"
    );
    assert!(two.texts.iter().all(|text| !text.contains("whisper")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_a_client_whose_clock_is_wrong_gets_in_or_is_told_why_and_never_loops() {
    const MINUTE: i64 = 60;
    let signer = Signer::from_passphrase("a client with a wrong clock");
    for (off, admitted) in [
        (0, true),
        (5 * MINUTE, true),
        (60 * MINUTE, true),
        // Its signature lives five minutes and is granted two more.
        (-5 * MINUTE, true),
        (-6 * MINUTE, true),
        (-8 * MINUTE, false),
        (-60 * MINUTE, false),
    ] {
        let (server, _) = server(|config| config.authenticator = Arc::new(SignedSessionOpen));
        let mut connection = memory_server::loopback::connect(&server).expect("not ending");
        connection.send(crate::support::hello()).await.expect("open");
        let hello = crate::support::json(&connection.recv().await.expect("an answer"));
        let expires_at = &hello["sessionOpen"]["challenge"]["expiresAt"];
        assert_eq!(
            *expires_at,
            START / 1000 + 300,
            "the server says when, by its own clock"
        );
        for attempt in 1..=2 {
            let challenge = hello["sessionOpen"]["challenge"]["value"]
                .as_str()
                .expect("a challenge");
            let at = u64::try_from(START / 1000 + off).expect("after 1970");
            let descriptor = memory_wire::codec::decode("fvj1:{}").expect("an object");
            let (invocation, authorization) = memory_wire::auth::sign_session_open(
                &signer,
                &SPACE.into(),
                &"did:key:z6Mk-audience".into(),
                challenge,
                &descriptor,
                at,
            );
            let fields = [
                ("type", Value::from("session.open")),
                ("requestId", Value::from("o")),
                ("space", Value::from(SPACE)),
                ("session", descriptor),
                ("invocation", invocation),
                ("authorization", authorization),
            ];
            let message = Value::Object(fields.into_iter().collect());
            let text = memory_wire::codec::encode(&message).expect("encodes");
            connection.send(text).await.expect("open");
            let answer = crate::support::json(&connection.recv().await.expect("an answer"));
            if admitted {
                assert!(answer["ok"]["sessionToken"].is_string(), "{off} s: {answer}");
                break;
            }
            assert_eq!(
                answer["error"]["name"], "AuthorizationError",
                "{off} s, attempt {attempt}: {answer}"
            );
            let said = answer["error"]["message"].as_str().expect("a message");
            assert!(said.contains("expired"), "{off} s: {said}");
            // A signature made anew may pass; what time it is here the client has read from its challenge.
            assert_eq!(answer["error"]["retriable"], true, "{answer}");
        }
    }
}

/// Holds up what follows from a durable commit that wrote one document.
struct HeldUp(String, Arc<Gate>);

impl Observer for HeldUp {
    fn commit_admitted(&self, notice: &AdmittedCommit) {
        if notice.writes.iter().any(|write| write.id.as_str() == self.0) {
            self.1.pass();
        }
    }

    fn session_opened(&self, _: &SpaceId) {}

    fn demand_changed(&self, _: &SpaceId, _: DemandReason, _: Option<&Did>) {}
}

/// Waits until so many jobs wait for the turn of a space.
async fn until_waiting(space: &EngineHandle, jobs: usize) {
    while space.backlog() < jobs {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_a_query_that_was_let_in_tells_nothing_of_a_state_whose_list_would_not_let_it_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = StoreRoot::direct(directory.path()).expect("a store");
    let (server, _) = server(|config| {
        config.stores = Stores::Files(root);
        config.server_execution = true;
        config.acl.mode = AclMode::Enforce;
    });
    let mut owner = opened(&server, Wire::InProcess, "own", SPACE).await;
    let list = format!("of:{SPACE}");
    owner
        .request(commit(
            "own",
            1,
            &[(&list, json!({ SPACE: "OWNER", "did:key:r": "READ" }))],
        ))
        .await;
    owner
        .request(commit("own", 2, &[("of:y", json!("before"))]))
        .await;
    let mut writer = opened(&server, Wire::InProcess, "more", SPACE).await;
    let mut reader = opened(&server, Wire::InProcess, "r", "did:key:r").await;
    // A root of its own scope: whether the reader holds leases elsewhere is asked between letting it in and reading.
    let query = json!({
        "type": "graph.query", "space": SPACE, "sessionId": "r",
        "query": { "roots": [
            { "id": "of:y", "selector": { "path": [], "schema": false } },
            { "id": "of:mine", "scope": "user", "selector": { "path": [], "schema": false } },
        ] },
    });
    let seen = reader.request(query.clone()).await.expect("connected");
    assert_eq!(seen["ok"]["entities"][1]["document"]["value"], "before", "{seen}");
    let elsewhere = server.engine(&"did:key:elsewhere".into()).expect("opens");
    let (held_elsewhere, mut elsewhere_keeper) = Gate::new();
    drop(elsewhere.turn(move |_| held_elsewhere.pass()));
    elsewhere_keeper.somebody_waits().await;
    let asking = tokio::spawn(async move {
        let answer = reader.request(query).await;
        (reader, answer)
    });
    until_waiting(&elsewhere, 1).await;
    // The change and what is written after it share a transaction.
    let here = server.engine(&SPACE.into()).expect("opens");
    let (held_here, mut here_keeper) = Gate::new();
    drop(here.turn(move |_| held_here.pass()));
    here_keeper.somebody_waits().await;
    let change = commit("own", 3, &[(&list, json!({ SPACE: "OWNER" }))]);
    let changing = tokio::spawn(async move { owner.request(change).await });
    let written = commit("more", 1, &[("of:y", json!("afterwards"))]);
    until_waiting(&here, 1).await;
    let writing = tokio::spawn(async move { writer.request(written).await });
    until_waiting(&here, 2).await;
    let (gate, mut keeper) = Gate::new();
    server.set_observer(Some(Arc::new(HeldUp(list, gate))));
    drop(here_keeper);
    // Durable, and nobody has been told or put out yet.
    keeper.somebody_waits().await;
    drop(elsewhere_keeper);
    let (reader, answer) = asking.await.expect("asks");
    let answer = answer.expect("connected");
    assert_eq!(answer["error"]["name"], "SessionRevokedError", "{answer}");
    assert!(!reader.texts.iter().any(|text| text.contains("afterwards")));
    drop(keeper);
    let changed = changing.await.expect("changes").expect("connected");
    assert_eq!(changed["ok"]["seq"], 3, "{changed}");
    let written = writing.await.expect("writes").expect("connected");
    assert_eq!(written["ok"]["seq"], 4, "{written}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_a_list_of_ids_that_was_let_in_tells_nothing_of_a_state_whose_list_would_not_let_it_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = StoreRoot::direct(directory.path()).expect("a store");
    let (server, _) = server(|config| {
        config.stores = Stores::Files(root);
        config.acl.mode = AclMode::Enforce;
    });
    let mut owner = opened(&server, Wire::InProcess, "own", SPACE).await;
    let list = format!("of:{SPACE}");
    owner
        .request(commit(
            "own",
            1,
            &[(&list, json!({ SPACE: "OWNER", "did:key:r": "READ" }))],
        ))
        .await;
    let mut reader = opened(&server, Wire::InProcess, "r", "did:key:r").await;
    let question = json!({ "type": "entity-id.list", "space": SPACE, "sessionId": "r" });
    let seen = reader.request(question.clone()).await.expect("connected");
    assert_eq!(seen["ok"]["ids"], json!([list]), "{seen}");
    // Every reader of the space is busy, so what was let in waits.
    let here = server.engine(&SPACE.into()).expect("opens");
    let mut keepers = Vec::new();
    for _ in 0..memory_engine::ActorOptions::default().max_readers {
        let (gate, mut keeper) = Gate::new();
        drop(here.read(move |_| gate.pass()));
        keeper.somebody_waits().await;
        keepers.push(keeper);
    }
    let asking = tokio::spawn(async move { reader.request(question).await });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    // The change of the list is durable, and nobody has been told or put out yet.
    let (gate, mut keeper) = Gate::new();
    server.set_observer(Some(Arc::new(HeldUp(list.clone(), gate))));
    let change = commit(
        "own",
        2,
        &[(&list, json!({ SPACE: "OWNER", "did:key:secret": "READ" }))],
    );
    let changing = tokio::spawn(async move { owner.request(change).await });
    keeper.somebody_waits().await;
    drop(keepers);
    let answer = asking.await.expect("asks").expect("connected");
    assert!(answer["error"].is_object(), "{answer}");
    drop(keeper);
    let verdict = changing.await.expect("changes").expect("connected");
    assert_eq!(verdict["ok"]["seq"], 2, "{verdict}");
}
