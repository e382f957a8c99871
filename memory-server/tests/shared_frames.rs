//! Sessions that are told the same share the text of their frames (SRV-119). What differs between them — whose instances
//! apply, what they hold, what they wrote, how far they are — must show all the same, and nothing of one in another's.

mod support;

use memory_server::{ServerConfig, ServingPlane as _};
use serde_json::{Value as Json, json};
use support::{Client, Injected, Running, SPACE, json, open, set, transact, watch, watch_roots};

const OPENINGS: [(&str, &str); 3] = [
    ("a1", "did:key:alice"),
    ("a2", "did:key:alice"),
    ("b", "did:key:bob"),
];

fn manual() -> ServerConfig {
    Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config
}

async fn flush(running: &Running) {
    running.server.flush(None).await.expect("flushes");
}

/// The next frame, which is an effect for `session`.
async fn effect(client: &mut Client, session: &str) -> (Json, String) {
    let text = client.recv().await;
    let message = json(&text);
    assert_eq!(message["type"], "session/effect", "{message}");
    assert_eq!(message["sessionId"], session, "{message}");
    assert_eq!(message["space"], SPACE, "{message}");
    (message["effect"].clone(), text)
}

/// That nothing but the answer to `frame` comes, and that it accepts it.
async fn accepted(client: &mut Client, frame: &str) {
    let answer = client.request(frame).await;
    assert!(answer["ok"].is_object(), "{answer}");
}

/// That no frame waits for the client: the answer to nonsense is the next to come.
async fn hears_nothing(client: &mut Client) {
    client.send("probe").await;
    let next = json(&client.recv().await);
    assert_ne!(next["type"], "session/effect", "{next}");
}

fn values(effect: &Json) -> Vec<(&str, &str, &Json)> {
    effect["upserts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|upsert| {
            let of = |key: &str| upsert[key].as_str().expect("text");
            (of("id"), of("scope"), &upsert["doc"]["value"])
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn users_with_equal_watches_are_told_their_own_instances() {
    let running = Running::production(manual()).await;
    let roots = json!([
        { "id": "of:mine", "scope": "user", "selector": { "path": [], "schema": false } },
        { "id": "of:ours", "selector": { "path": [], "schema": false } },
    ]);
    let mut clients = Vec::new();
    for (session, principal) in OPENINGS {
        let mut client = open(&running, session, principal).await;
        accepted(
            &mut client,
            &watch_roots(session, "session.watch.set", "w", &roots),
        )
        .await;
        clients.push(client);
    }
    for (writer, secret) in [(0, "alice's secret"), (2, "bob's secret")] {
        let (session, principal) = OPENINGS[writer];
        let operations = json!([
            { "op": "set", "id": "of:mine", "scope": "user", "value": { "value": secret } },
            { "op": "set", "id": "of:ours", "value": { "value": session } },
        ]);
        accepted(&mut clients[writer], &transact(session, 1, &operations)).await;
        flush(&running).await;
        for (client, (other, whose)) in clients.iter_mut().zip(OPENINGS) {
            let (effect, text) = effect(client, other).await;
            let (ours, mine) = (json!(session), json!(secret));
            let mut expected = vec![("of:mine", "user", &mine), ("of:ours", "space", &ours)];
            expected.retain(|(_, scope, _)| other != session && (*scope == "space" || whose == principal));
            assert_eq!(values(&effect), expected, "{other}");
            let is_writer = effect["caughtUpLocalSeq"] == 1;
            assert_eq!(is_writer, other == session, "{effect}");
            let may_hear = other != session && whose == principal;
            assert_eq!(text.contains(secret), may_hear, "{other}: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_wrote_a_part_is_told_the_rest() {
    let running = Running::production(manual()).await;
    let mut clients = Vec::new();
    for (session, principal) in OPENINGS {
        let mut client = open(&running, session, principal).await;
        accepted(&mut client, &watch(session, &["of:x", "of:y"])).await;
        clients.push(client);
    }
    accepted(&mut clients[0], &set("a1", 1, "of:x", &json!("x"))).await;
    accepted(&mut clients[1], &set("a2", 1, "of:y", &json!("y"))).await;
    flush(&running).await;
    let (x, y) = (json!("x"), json!("y"));
    let (x, y) = (("of:x", "space", &x), ("of:y", "space", &y));
    let expected = [(vec![y], json!(1)), (vec![x], json!(1)), (vec![x, y], Json::Null)];
    for ((client, (session, _)), (upserts, marker)) in clients.iter_mut().zip(OPENINGS).zip(expected) {
        let (effect, _) = effect(client, session).await;
        assert_eq!(values(&effect), upserts, "{session}");
        assert_eq!(effect["caughtUpLocalSeq"], marker, "{session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_frame_begins_where_its_session_is() {
    let running = Running::production(manual()).await;
    let mut clients = Vec::new();
    for (session, principal) in OPENINGS {
        let mut client = open(&running, session, principal).await;
        accepted(&mut client, &watch(session, &["of:x"])).await;
        clients.push(client);
    }
    let mut writer = open(&running, "w", "did:key:writer").await;
    // Two of them are told no more than a marker, of different commits: they are ahead of the third, and apart.
    for (n, local_seq) in [(0, 7), (1, 9)] {
        let (session, _) = OPENINGS[n];
        accepted(
            &mut clients[n],
            &set(session, local_seq, "of:elsewhere", &json!(local_seq)),
        )
        .await;
        flush(&running).await;
        let (effect, _) = effect(&mut clients[n], session).await;
        assert_eq!(
            (&effect["caughtUpLocalSeq"], &effect["toSeq"]),
            (&json!(local_seq), &json!(n + 1))
        );
        assert!(values(&effect).is_empty(), "{effect}");
    }
    accepted(&mut writer, &set("w", 1, "of:x", &json!("for all"))).await;
    flush(&running).await;
    for ((client, (session, _)), from) in clients.iter_mut().zip(OPENINGS).zip([1, 2, 0]) {
        let (effect, _) = effect(client, session).await;
        assert_eq!(
            (&effect["fromSeq"], &effect["toSeq"]),
            (&json!(from), &json!(3)),
            "{session}"
        );
        assert_eq!(
            values(&effect),
            [("of:x", "space", &json!("for all"))],
            "{session}"
        );
        assert_eq!(effect["caughtUpLocalSeq"], Json::Null, "{session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_it_already_hears_nothing_of_it() {
    let running = Running::production(manual()).await;
    let mut writer = open(&running, "w", "did:key:writer").await;
    let mut early = open(&running, "a1", "did:key:alice").await;
    accepted(&mut early, &watch("a1", &["of:x"])).await;
    accepted(&mut writer, &set("w", 1, "of:x", &json!("told once"))).await;
    // Its answer has told the newcomer what the pass tells the other.
    let mut late = open(&running, "b", "did:key:bob").await;
    let answer = late.request(&watch("b", &["of:x"])).await;
    assert_eq!(
        values(&answer["ok"]["sync"]),
        [("of:x", "space", &json!("told once"))]
    );
    flush(&running).await;
    let (effect, _) = effect(&mut early, "a1").await;
    assert_eq!(values(&effect), [("of:x", "space", &json!("told once"))]);
    hears_nothing(&mut late).await;
}
