//! What waits, and for whom: inbound backlogs, full evaluations, loopback peers (SRV-110, SRV-707, SRV-1204, SRV-1302).

use std::sync::mpsc;
use std::time::Duration;

use memory_engine::StoreRoot;
use memory_server::{AclMode, FlushTiming, ServerConfig, ServingPlane, Stores, loopback};
use memory_wire::SpaceId;
use serde_json::{Value as Json, json};

use crate::support::{
    Client, Injected, Running, SPACE, frame, hello, json, open, open_on, open_with, set, watch, watch_roots,
};

const NEXT_DOOR: &str = "did:key:z6Mk-next-door";

fn config() -> ServerConfig {
    Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config
}

fn exists(space: &str, session: &str, request: &str) -> String {
    frame(&json!({
        "type": "entity-id.exists", "requestId": request, "space": space, "sessionId": session, "id": "of:x",
    }))
}

/// Holds the turn of a space until the returned sender is dropped.
async fn hold_turn(running: &Running) -> mpsc::Sender<()> {
    let (held, holding) = tokio::sync::oneshot::channel();
    let (release, released) = mpsc::channel::<()>();
    let engine = running.server.engine(&SpaceId::from(SPACE)).expect("a store");
    let turn = engine.turn(move |_| {
        held.send(()).expect("somebody waits");
        // Ends with an error when the sender is dropped.
        assert!(released.recv().is_err());
    });
    tokio::spawn(turn);
    holding.await.expect("the turn comes");
    release
}

/// Frames that the server has taken from its sockets.
async fn frames_received(running: &Running) -> u64 {
    let (_, text) = running.get("/metrics").await;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("memory_frames_received_total "));
    line.expect("the counter").parse().expect("a number")
}

async fn request_id(client: &mut Client) -> String {
    let answer = json(&client.recv().await);
    assert!(answer["ok"].is_object(), "{answer}");
    answer["requestId"].as_str().expect("an id").to_owned()
}

/// Answers come in the order of the requests, whatever the spaces: the second waits although its own space is free.
#[tokio::test(flavor = "multi_thread")]
async fn srv_110_one_connections_requests_are_answered_in_order_across_spaces() {
    let running = Running::production(config()).await;
    let mut client = running.client().await;
    let opened = open_on(&mut client, SPACE, "s", "did:key:a", None).await;
    let challenge = opened["ok"]["sessionOpen"]["challenge"]["value"]
        .as_str()
        .expect("hex");
    open_with(&mut client, challenge, NEXT_DOOR, "s", "did:key:a", None).await;
    let release = hold_turn(&running).await;
    client.send(&set("s", 1, "of:x", &json!(1))).await;
    client.send(&exists(NEXT_DOOR, "s", "free")).await;
    // Somebody else's connection is not held up, in the free space.
    let mut neighbour = running.client().await;
    open_on(&mut neighbour, NEXT_DOOR, "n", "did:key:b", None).await;
    neighbour.send(&exists(NEXT_DOOR, "n", "n")).await;
    assert_eq!(request_id(&mut neighbour).await, "n");
    drop(release);
    assert_eq!(request_id(&mut client).await, "t1");
    assert_eq!(request_id(&mut client).await, "free");
}

/// The server reads no further ahead than it may, whatever a peer sends, and answers all of it in the end.
#[tokio::test(flavor = "multi_thread")]
async fn srv_707_a_connections_backlog_is_bounded_and_holds_up_no_neighbour() {
    const SENT: u64 = 300;
    const PENDING: usize = 4;
    let mut config = config();
    config.limits.inbound_pending_frames = PENDING;
    let running = Running::production(config).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let mut neighbour = running.client().await;
    open_on(&mut neighbour, NEXT_DOOR, "n", "did:key:b", None).await;
    let release = hold_turn(&running).await;
    let before = frames_received(&running).await;
    for n in 1..=SENT {
        client.send(&set("s", n, "of:x", &json!(n))).await;
    }
    const ASKED: usize = 200;
    for n in 0..ASKED {
        neighbour.send(&exists(NEXT_DOOR, "n", &n.to_string())).await;
        assert_eq!(request_id(&mut neighbour).await, n.to_string());
    }
    let read = loop {
        let read = frames_received(&running).await - before - ASKED as u64;
        if read >= PENDING as u64 {
            break read;
        }
    };
    // Those that wait, one in work and one in the reader's hand.
    assert!(read <= PENDING as u64 + 2, "{read} frames were read ahead");
    drop(release);
    for n in 1..=SENT {
        assert_eq!(request_id(&mut client).await, format!("t{n}"));
    }
}

/// One full evaluation at a time: a crowd that watches at once queues, and nobody is refused.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1204_full_evaluations_queue_and_are_never_refused() {
    const CROWD: usize = 24;
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config();
    config.stores = Stores::Files(StoreRoot::direct(directory.path()).expect("usable"));
    config.limits.concurrent_full_evaluations = 1;
    let running = Running::production(config).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    assert!(writer.request(&set("w", 1, "of:x", &json!(7))).await["ok"].is_object());
    let crowd: Vec<_> = (0..CROWD)
        .map(|n| {
            let address = running.address;
            tokio::spawn(async move {
                let mut client = Client::connect(address, "/api/storage/memory").await;
                let session = format!("s{n}");
                open_on(&mut client, SPACE, &session, "did:key:r", None).await;
                client.request(&watch(&session, &["of:x"])).await
            })
        })
        .collect();
    for one in crowd {
        let answer = one.await.expect("ran");
        assert_eq!(answer["ok"]["sync"]["upserts"][0]["doc"]["value"], 7, "{answer}");
    }
}

/// A loopback peer that does not listen holds up nobody, is not closed for it, and hears one frame at a time.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1302_srv_1304_a_loopback_peer_is_handed_frames_when_it_asks_for_them() {
    let mut config = config();
    config.limits.outbound_high_water = 2_000;
    config.limits.outbound_cap = 20_000;
    let running = Running::production(config).await;
    let mut service = loopback::connect(&running.server).expect("open");
    service.send(hello()).await.expect("open");
    let greeted = json(&service.recv().await.expect("hello.ok"));
    let open_service = json!({
        "type": "session.open", "requestId": "o", "space": SPACE, "session": { "sessionId": "svc" },
        "invocation": {
            "aud": "did:key:z6Mk-audience", "iss": "did:key:service",
            "challenge": greeted["sessionOpen"]["challenge"]["value"],
        },
        "authorization": {},
    });
    service.send(frame(&open_service)).await.expect("open");
    service.send(watch("svc", &["of:x"])).await.expect("open");
    for _ in 0..2 {
        assert!(json(&service.recv().await.expect("answered"))["ok"].is_object());
    }
    let mut writer = open(&running, "w", "did:key:w").await;
    let long = "x".repeat(10_000);
    for n in 1..=8 {
        // Every verdict and every pass comes while nobody takes the service's frames.
        assert!(writer.request(&set("w", n, "of:x", &json!([n, long]))).await["ok"].is_object());
        let marker = loop {
            running.server.flush(None).await.expect("flushes");
            tokio::select! {
                told = writer.recv() => break json(&told),
                // The verdict, which is long, may not be off the writer's queue yet; it is passed over until then.
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(marker["effect"]["caughtUpLocalSeq"], n);
    }
    let mut last = Json::Null;
    while last != json!(8) {
        let pushed = json(&service.recv().await.expect("still open"));
        last = pushed["effect"]["upserts"][0]["doc"]["value"][0].clone();
        running.server.flush(None).await.expect("flushes");
    }
    // Frames queued at the end are dropped, and the end is no event: the peer learns it when it asks.
    assert!(writer.request(&set("w", 9, "of:x", &json!(9))).await["ok"].is_object());
    running.server.flush(None).await.expect("flushes");
    running.server.shut_down().await;
    assert!(service.send(exists(SPACE, "svc", "r")).await.is_err());
}

/// Waits until so many jobs wait for the space's turn.
async fn until_waiting(running: &Running, jobs: usize) {
    let engine = running.server.engine(&SpaceId::from(SPACE)).expect("a store");
    while engine.backlog() < jobs {
        tokio::task::yield_now().await;
    }
}

/// SRV-405: what is asked for a session that another connection takes before its turn comes is refused, and nothing of it is
/// done for whoever has the session now.
#[tokio::test(flavor = "multi_thread")]
async fn srv_405_requests_whose_session_moves_before_their_turn_are_refused() {
    let running = Running::production(config()).await;
    for (session, request, refusal) in [
        (
            "s",
            set("s", 1, "of:x", &json!(1)),
            "Unknown or replaced session for space",
        ),
        ("t", watch("t", &["of:x"]), "Unknown session for space"),
    ] {
        let mut old = running.client().await;
        let opened = open_on(&mut old, SPACE, session, "did:key:a", None).await;
        let token = opened["ok"]["sessionToken"].as_str().expect("a token");
        let mut new = running.client().await;
        let greeted = new.request(&hello()).await;
        let challenge = greeted["sessionOpen"]["challenge"]["value"]
            .as_str()
            .expect("hex");
        let release = hold_turn(&running).await;
        let taking = open_with(&mut new, challenge, SPACE, session, "did:key:a", Some(token));
        let asking = async {
            until_waiting(&running, 1).await;
            old.send(&request).await;
            until_waiting(&running, 2).await;
            drop(release);
        };
        let (taken, ()) = tokio::join!(taking, asking);
        assert_eq!(taken["ok"]["resumed"], true, "{taken}");
        assert_eq!(json(&old.recv().await)["reason"], "taken-over");
        let answer = json(&old.recv().await);
        assert_eq!(answer["error"]["name"], "SessionError", "{answer}");
        assert_eq!(answer["error"]["message"], refusal);
    }
    let engine = running.server.engine(&SpaceId::from(SPACE)).expect("a store");
    let head = engine.read(|reader| reader.server_seq()).await.expect("reads");
    assert_eq!(head.expect("a seq").0, 0, "nothing was written");
}

/// SRV-436: a space's pushes wait for the frames that are being handled, and come when the last of them is.
#[tokio::test(flavor = "multi_thread")]
async fn srv_436_pushes_wait_for_the_frames_that_have_come() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config();
    config.stores = Stores::Files(StoreRoot::configured(directory.path()).expect("usable"));
    config.flush = FlushTiming::Timed;
    config.limits.refresh_delay = Duration::ZERO;
    config.limits.drain_wait_floor = Duration::from_secs(600);
    let running = Running::production(config).await;
    let mut watcher = open(&running, "w", "did:key:w").await;
    assert!(watcher.request(&watch("w", &["of:x"])).await["ok"].is_object());
    // Every reader of the space is busy, so a question stays in hand.
    let engine = running.server.engine(&SpaceId::from(SPACE)).expect("a store");
    let readers = memory_engine::ActorOptions::default().max_readers;
    let mut busy = Vec::new();
    for _ in 0..readers {
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        let read = engine.read(move |_| {
            begin.send(()).expect("somebody waits");
            assert!(released.recv().is_err());
        });
        tokio::spawn(read);
        begun.await.expect("reads");
        busy.push(release);
    }
    let mut asking = open(&running, "a", "did:key:a").await;
    let before = frames_received(&running).await;
    asking.send(&exists(SPACE, "a", "e")).await;
    while frames_received(&running).await == before {
        tokio::task::yield_now().await;
    }
    let mut writer = open(&running, "c", "did:key:c").await;
    assert!(writer.request(&set("c", 1, "of:x", &json!(1))).await["ok"].is_object());
    // Long enough for a pass that waits for nobody.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(running.server.work_stats().frames_sent, 0, "a frame is in hand");
    drop(busy);
    assert_eq!(request_id(&mut asking).await, "e");
    assert_eq!(
        json(&watcher.recv().await)["effect"]["upserts"][0]["doc"]["value"],
        1
    );
}

/// SRV-403: a request whose session is put out while it waits is told so, and not that it asked for something unknown.
#[tokio::test(flavor = "multi_thread")]
async fn srv_403_a_request_in_flight_when_its_session_is_revoked_is_told_so() {
    let mut config = config();
    config.server_execution = true;
    config.acl.mode = AclMode::Enforce;
    let running = Running::production(config).await;
    let mut owner = open(&running, "own", SPACE).await;
    let change = |local_seq, list: Json| set("own", local_seq, &format!("of:{SPACE}"), &list);
    let founded = change(1, json!({ SPACE: "OWNER", "did:key:r": "READ" }));
    assert!(owner.request(&founded).await["ok"].is_object());
    let mut reader = open(&running, "r", "did:key:r").await;
    // Whether the reader holds leases elsewhere is asked before its turn, and there is no answer yet.
    let elsewhere = running.server.engine(&SpaceId::from(NEXT_DOOR)).expect("a store");
    let (held, holding) = tokio::sync::oneshot::channel();
    let (release, released) = mpsc::channel::<()>();
    tokio::spawn(elsewhere.turn(move |_| {
        held.send(()).expect("somebody waits");
        assert!(released.recv().is_err());
    }));
    holding.await.expect("the turn comes");
    let roots = json!([{ "id": "of:mine", "scope": "user", "selector": { "path": [], "schema": false } }]);
    reader
        .send(&watch_roots("r", "session.watch.set", "w", &roots))
        .await;
    while elsewhere.backlog() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(owner.request(&change(2, json!({ SPACE: "OWNER" }))).await["ok"].is_object());
    drop(release);
    assert_eq!(json(&reader.recv().await)["reason"], "unauthorized");
    let answer = json(&reader.recv().await);
    assert_eq!(answer["requestId"], "watch");
    assert_eq!(answer["error"]["name"], "SessionRevokedError", "{answer}");
    assert_eq!(
        answer["error"]["message"],
        "Session was revoked while the request was in flight"
    );
}

/// SRV-308: the bound is on what comes from outside. Loopback connections, and the server's own key over a socket, are the
/// process itself.
#[tokio::test(flavor = "multi_thread")]
async fn srv_308_the_process_has_as_many_sessions_as_it_serves() {
    let mut config = config();
    config.limits.sessions_per_principal = 1;
    let running = Running::production(config).await;
    let mut service = loopback::connect(&running.server).expect("open");
    service.send(hello()).await.expect("open");
    let mut told = json(&service.recv().await.expect("hello.ok"));
    for n in 0..3 {
        let holder = if n == 0 { &told } else { &told["ok"] };
        let opening = json!({
            "type": "session.open", "requestId": "o", "space": SPACE, "session": { "sessionId": format!("svc-{n}") },
            "invocation": {
                "aud": "did:key:z6Mk-audience", "iss": "did:key:service",
                "challenge": holder["sessionOpen"]["challenge"]["value"],
            },
            "authorization": {},
        });
        service.send(frame(&opening)).await.expect("open");
        told = json(&service.recv().await.expect("answered"));
        assert!(told["ok"].is_object(), "{told}");
    }
    for (issuer, admitted) in [("did:key:z6Mk-audience", 3), ("did:key:other", 1)] {
        for n in 0..3 {
            let mut peer = running.client().await;
            let opened = open_on(&mut peer, SPACE, &format!("{issuer}-{n}"), issuer, None).await;
            assert_eq!(opened["ok"].is_object(), n < admitted, "{issuer} {n}: {opened}");
        }
    }
}
