//! What a commit costs, counted and not timed: frames, evaluations, walks and encodings (SRV-421, 423, 524, 1201, 1202),
//! bounds of what one session may hold, and rates.

mod support;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use memory_server::loopback::{self, LoopbackConnection};
use memory_server::{Rate, Rates, Server, ServerConfig, ServingPlane, WorkStats};
use serde_json::{Value as Json, json};
use support::{
    Injected, Running, SPACE, frame, hello, json as parsed, link, open, set, transact, watch, watch_roots,
};

fn config() -> ServerConfig {
    Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config
}

/// A connection in process with any number of sessions.
struct Line {
    connection: LoopbackConnection,
    challenge: String,
}

impl Line {
    async fn connect(server: &Arc<Server>) -> Line {
        let mut line = Line {
            connection: loopback::connect(server).expect("the server is not ending"),
            challenge: String::new(),
        };
        let hello = line.ask(&hello()).await;
        line.take_challenge(&hello);
        line
    }

    fn take_challenge(&mut self, answer: &Json) {
        self.challenge = answer["sessionOpen"]["challenge"]["value"]
            .as_str()
            .expect("a challenge")
            .to_owned();
    }

    async fn ask(&mut self, text: &str) -> Json {
        self.connection.send(text.to_owned()).await.expect("connected");
        parsed(&self.connection.recv().await.expect("an answer"))
    }

    async fn open(&mut self, session: &str, principal: &str) {
        let answer = self
            .ask(&frame(&json!({
                "type": "session.open", "requestId": "open", "space": SPACE, "session": { "sessionId": session },
                "invocation": { "aud": "did:key:z6Mk-audience", "challenge": self.challenge, "iss": principal },
                "authorization": {},
            })))
            .await;
        assert_eq!(answer["ok"]["sessionId"], session, "{answer}");
        self.take_challenge(&answer["ok"]);
    }

    /// Effects waiting, by session.
    async fn effects(&mut self) -> BTreeMap<String, usize> {
        let mut counted = BTreeMap::new();
        // The answer comes after everything that was queued before it.
        self.connection
            .send("fvj1:{}".to_owned())
            .await
            .expect("connected");
        loop {
            let frame = parsed(&self.connection.recv().await.expect("frames end with the answer"));
            if frame["type"] != "session/effect" {
                return counted;
            }
            *counted
                .entry(frame["sessionId"].as_str().expect("a session").to_owned())
                .or_default() += 1;
        }
    }
}

/// What the counters grew by.
fn spent(server: &Server, before: WorkStats) -> WorkStats {
    let now = server.work_stats();
    WorkStats {
        evaluations: now.evaluations - before.evaluations,
        sessions_considered: now.sessions_considered - before.sessions_considered,
        refreshes_made: now.refreshes_made - before.refreshes_made,
        refreshes_shared: now.refreshes_shared - before.refreshes_shared,
        encoded_documents: now.encoded_documents - before.encoded_documents,
        frames_sent: now.frames_sent - before.frames_sent,
        sessions_skipped: now.sessions_skipped - before.sessions_skipped,
        connections_overrun: now.connections_overrun - before.connections_overrun,
    }
}

async fn flush(server: &Server) {
    server.flush(None).await.expect("flushes");
}

/// A server on which `watchers` sessions watch `of:hot` and what it links to, and `others` watch something else.
async fn crowd(watchers: usize, others: usize) -> (Arc<Server>, Line, Vec<Line>) {
    let server = Server::new(config()).expect("inside a runtime");
    let mut writer = Line::connect(&server).await;
    writer.open("writer", "did:key:zWriter").await;
    writer.ask(&set("writer", 1, "of:leaf", &json!({ "n": 0 }))).await;
    writer
        .ask(&set("writer", 2, "of:hot", &json!({ "leaf": link("of:leaf") })))
        .await;
    flush(&server).await;
    writer.effects().await;
    let mut lines = Vec::new();
    for (name, count, id) in [("watcher", watchers, "of:hot"), ("other", others, "of:elsewhere")] {
        let mut line = Line::connect(&server).await;
        for n in 0..count {
            let session = format!("{name}-{n}");
            line.open(&session, &format!("did:key:z{name}{n}")).await;
            let roots = json!([{ "id": id, "selector": { "path": [], "schema": true } }]);
            let answer = line
                .ask(&watch_roots(&session, "session.watch.set", "w", &roots))
                .await;
            assert!(answer["ok"]["sync"].is_object(), "{answer}");
        }
        lines.push(line);
    }
    (server, writer, lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_421_a_commit_makes_one_frame_for_each_watching_session_and_none_for_others() {
    let (server, mut writer, mut lines) = crowd(60, 40).await;
    for n in 0..10 {
        let before = server.work_stats();
        let local_seq = 3 + n;
        writer
            .ask(&set("writer", local_seq, "of:leaf", &json!({ "n": n + 1 })))
            .await;
        flush(&server).await;
        let spent = spent(&server, before);
        // One each for the watchers, and the marker the writer is owed.
        assert_eq!(spent.frames_sent, 61);
        assert_eq!(spent.encoded_documents, 1, "one revision is encoded once");
        let heard = lines[0].effects().await;
        assert_eq!((heard.len(), heard.values().sum::<usize>()), (60, 60));
        assert!(lines[1].effects().await.is_empty(), "nobody else hears anything");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1201_a_commit_costs_the_same_whoever_else_is_there() {
    let mut costs = Vec::new();
    for others in [1_000, 10_000] {
        let (server, mut writer, _lines) = crowd(5, others).await;
        let before = server.work_stats();
        for n in 0..5 {
            writer
                .ask(&set("writer", 3 + n, "of:leaf", &json!({ "n": n + 1 })))
                .await;
            flush(&server).await;
        }
        let spent = spent(&server, before);
        assert_eq!(
            (spent.evaluations, spent.sessions_considered),
            (30, 30),
            "5 watchers and the writer"
        );
        costs.push(spent);
    }
    assert_eq!(costs[0], costs[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_524_equal_watch_lists_cost_one_walk_a_commit() {
    let (server, mut writer, mut lines) = crowd(80, 0).await;
    // A different list is a walk of its own.
    lines[0].open("alone", "did:key:zAlone").await;
    lines[0].ask(&watch("alone", &["of:leaf"])).await;
    for n in 0..3 {
        let before = server.work_stats();
        writer
            .ask(&set("writer", 3 + n, "of:leaf", &json!({ "n": n + 1 })))
            .await;
        flush(&server).await;
        let spent = spent(&server, before);
        assert_eq!((spent.refreshes_made, spent.refreshes_shared), (2, 79));
        assert_eq!(lines[0].effects().await.len(), 81);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_524_what_is_somebodys_own_is_never_shared() {
    let (server, mut writer, mut lines) = crowd(3, 0).await;
    for n in 0..3 {
        let session = format!("watcher-{n}");
        let own = json!([{ "op": "set", "id": "of:own", "scope": "user", "value": { "value": format!("secret {n}") } }]);
        lines[0].ask(&transact(&session, 1, &own)).await;
    }
    flush(&server).await;
    lines[0].effects().await;
    let before = server.work_stats();
    let scoped = json!({ "/quote": { "/": { "link@1": { "id": "of:own", "path": [], "space": SPACE, "scope": "user" } } } });
    writer
        .ask(&set("writer", 3, "of:hot", &json!({ "own": scoped })))
        .await;
    flush(&server).await;
    assert_eq!(spent(&server, before).refreshes_shared, 0);
    lines[0]
        .connection
        .send("fvj1:{}".to_owned())
        .await
        .expect("connected");
    let mut heard = 0;
    loop {
        let text = lines[0]
            .connection
            .recv()
            .await
            .expect("frames end with the answer");
        let frame = parsed(&text);
        let Some(session) = frame["sessionId"].as_str() else {
            break;
        };
        let n = session.strip_prefix("watcher-").expect("a watcher");
        for other in (0..3).filter(|other| other.to_string() != n) {
            assert!(
                !text.contains(&format!("secret {other}")),
                "{session} was told {text}"
            );
        }
        assert!(
            text.contains(&format!("secret {n}")),
            "{session} lacks its own: {text}"
        );
        heard += 1;
    }
    assert_eq!(heard, 3);
}

#[tokio::test]
async fn a_session_may_hold_so_many_watches_and_documents_and_is_told_which_bound_it_met() {
    let mut config = config();
    config.limits.max_watches = 2;
    config.limits.max_tracked_documents = 3;
    let running = Running::standalone(config).await;
    let mut client = open(&running, "s", "did:key:zAlice").await;
    let add = |id: &str, documents: &[&str]| {
        let roots: Vec<Json> = documents
            .iter()
            .map(|id| json!({ "id": id, "selector": { "path": [], "schema": false } }))
            .collect();
        watch_roots("s", "session.watch.add", id, &json!(roots))
    };
    let answer = client.request(&add("one", &["of:a", "of:b"])).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let answer = client.request(&add("two", &["of:c", "of:d"])).await;
    assert_eq!(
        answer["error"]["message"],
        "session.watch.add would make the session track 4 documents, at most 3 are allowed"
    );
    // Nothing of a refused request is there: the same id with other roots is new.
    let answer = client.request(&add("two", &["of:c"])).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let answer = client.request(&add("three", &["of:a"])).await;
    assert_eq!(answer["error"]["name"], "ProtocolError");
    assert_eq!(
        answer["error"]["message"],
        "session.watch.add would give the session 3 watches, at most 2 are allowed"
    );
    let answer = client
        .request(&watch("s", &["of:1", "of:2", "of:3", "of:4"]))
        .await;
    assert_eq!(
        answer["error"]["message"],
        "session.watch.set would make the session track 4 documents, at most 3 are allowed"
    );
    let answer = client.request(&watch("s", &["of:1", "of:2", "of:3"])).await;
    assert!(answer["ok"].is_object(), "{answer}");
}

#[tokio::test]
async fn limits_are_advertised_to_whoever_asks_and_to_nobody_else() {
    let mut config = config();
    config.limits.max_watches = 17;
    config.rates.commits = Rate::new(3, 5);
    let running = Running::production(config).await;
    let asking = frame(&json!({ "type": "hello", "protocol": "memory", "flags": { "limits": true } }));
    let answer = running.client().await.request(&asking).await;
    assert_eq!(answer["type"], "hello.ok");
    assert_eq!(answer["limits"]["maxWatches"], 17);
    assert_eq!(answer["limits"]["maxMessageBytes"], 64 * 1024 * 1024);
    assert_eq!(
        answer["limits"]["rates"]["commits"],
        json!({ "perSecond": 3, "burst": 5 })
    );
    assert!(answer["limits"]["rates"]["opens"].is_null());
    assert!(answer["limits"]["rates"]["uploads"].is_null());
    assert_eq!(answer["limits"]["maxSessionsPerPrincipal"], 1024);
    let plain = running.client().await.request(&hello()).await;
    assert!(plain["limits"].is_null(), "{plain}");
    let (_, meta) = running.get("/api/meta").await;
    let meta: Json = serde_json::from_str(&meta).expect("JSON");
    assert_eq!(meta["limits"], answer["limits"]);
}

fn scarce() -> Rate {
    Rate {
        per_second: NonZeroU32::new(1),
        burst: NonZeroU32::new(2).expect("two"),
    }
}

#[tokio::test]
async fn a_principal_above_its_rate_is_refused_by_name_and_others_are_not() {
    let mut config = config();
    config.rates = Rates {
        commits: scarce(),
        queries: scarce(),
        ..Rates::UNBOUNDED
    };
    let running = Running::standalone(config).await;
    let mut alice = open(&running, "a", "did:key:zAlice").await;
    let mut bob = open(&running, "b", "did:key:zBob").await;
    for n in 1..=2 {
        let answer = alice.request(&set("a", n, "of:doc", &json!(n))).await;
        assert!(answer["ok"].is_object(), "{answer}");
    }
    let mut refused = alice.request(&set("a", 3, "of:doc", &json!(3))).await;
    // A slow machine may have given a token back meanwhile.
    for n in 4.. {
        if refused["error"].is_object() {
            break;
        }
        refused = alice.request(&set("a", n, "of:doc", &json!(n))).await;
    }
    assert_eq!(refused["error"]["name"], "RateLimitedError", "{refused}");
    assert!(
        refused["error"]["retryAfterMs"]
            .as_u64()
            .is_some_and(|ms| (1..=1_000).contains(&ms))
    );
    // What was accepted is answered from its record, whatever the rate.
    let replayed = alice.request(&set("a", 1, "of:doc", &json!(1))).await;
    assert_eq!(replayed["ok"]["replayed"], true, "{replayed}");
    // Bob has a bucket of his own, and queries another than commits.
    let answer = bob.request(&set("b", 1, "of:other", &json!(1))).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let mut answer = alice.request(&watch("a", &["of:doc"])).await;
    assert!(answer["ok"].is_object(), "{answer}");
    while answer["error"].is_null() {
        answer = alice.request(&watch("a", &["of:doc"])).await;
    }
    assert_eq!(answer["error"]["name"], "RateLimitedError", "{answer}");
    let rates = running.server.rate_stats();
    assert!(
        rates.commits_refused >= 1 && rates.queries_refused == 1,
        "{rates:?}"
    );
}

#[tokio::test]
async fn an_open_above_its_rate_is_retriable_on_a_fresh_connection() {
    let mut config = config();
    config.rates.opens = scarce();
    let running = Running::standalone(config).await;
    let mut n = 0;
    let refused = loop {
        n += 1;
        let mut client = running.client().await;
        let answer = support::open_on(&mut client, SPACE, &format!("s{n}"), "did:key:zAlice", None).await;
        if answer["error"].is_object() {
            break answer;
        }
    };
    assert!(n > 2, "the burst passes");
    assert_eq!(refused["error"]["name"], "AuthorizationError", "{refused}");
    assert_eq!(refused["error"]["retriable"], true);
    assert!(refused["error"]["retryAfterMs"].as_u64().is_some());
    assert_eq!(running.server.rate_stats().opens_refused, 1);
    open(&running, "bobs", "did:key:zBob").await;
}

/// Sets `of:doc` to `n`, as the writer's commit `n`; markers are not what is waited for.
async fn commit(writer: &mut support::Client, n: u64) {
    writer.send(&set("writer", n, "of:doc", &json!(n))).await;
    while parsed(&writer.recv().await)["type"] != "response" {}
}

#[tokio::test]
async fn srv_312_of_too_many_detached_sessions_those_that_waited_longest_are_forgotten() {
    let mut config = config();
    config.limits.detached_sessions = 2;
    let running = Running::standalone(config).await;
    let mut writer = open(&running, "writer", "did:key:zWriter").await;
    commit(&mut writer, 1).await;
    let mut tokens = Vec::new();
    for session in ["first", "second", "third"] {
        let mut client = running.client().await;
        let opened = support::open_on(&mut client, SPACE, session, "did:key:zAlice", None).await;
        tokens.push(opened["ok"]["sessionToken"].as_str().expect("a token").to_owned());
        client.request(&watch(session, &["of:doc"])).await;
        drop(client);
        running.until_connections(1).await;
    }
    assert_eq!(
        running.server.session_count(),
        3,
        "the writer's and the newest two"
    );
    commit(&mut writer, 2).await;

    // Forgotten, so that it is a new session which watches nothing.
    let mut first = running.client().await;
    let opened = support::open_on(&mut first, SPACE, "first", "did:key:zAlice", Some(&tokens[0])).await;
    assert!(
        opened["ok"]["resumed"].is_null() && opened["ok"]["sync"].is_null(),
        "{opened}"
    );

    // Kept, and told what it has missed and what happens from now on.
    let mut third = running.client().await;
    let opened = support::open_on(&mut third, SPACE, "third", "did:key:zAlice", Some(&tokens[2])).await;
    assert_eq!(opened["ok"]["resumed"], true, "{opened}");
    assert_eq!(opened["ok"]["sync"]["upserts"][0]["doc"]["value"], 2, "{opened}");
    commit(&mut writer, 3).await;
    running.server.flush(None).await.expect("flushes");
    let effect = parsed(&third.recv().await);
    assert_eq!(effect["effect"]["upserts"][0]["doc"]["value"], 3, "{effect}");
}
