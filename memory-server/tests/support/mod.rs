//! What the socket tests share: a server on a free port with injected clock, identifiers, authentication and faults, and
//! clients that speak raw text frames.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod peer;
pub mod seeds;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use futures_util::{SinkExt, StreamExt};
use memory_server::{
    Clock, FaultPoints, FlushTiming, Identifiers, SendRefused, Server, ServerConfig, SessionAuthenticator,
    Stores,
};
use memory_wire::auth::Challenge;
use memory_wire::message::SessionOpen;
use memory_wire::{Did, SessionId, SpaceId, Value, WireError};
use std::sync::Mutex;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// A clock that moves when told to.
pub struct ManualClock {
    now: AtomicI64,
}

impl ManualClock {
    pub fn at(ms: i64) -> Arc<ManualClock> {
        Arc::new(ManualClock {
            now: AtomicI64::new(ms),
        })
    }

    pub fn advance(&self, ms: i64) {
        self.now.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }

    fn monotonic_ms(&self) -> u64 {
        self.now.load(Ordering::SeqCst) as u64
    }
}

/// Identifiers that count: UUIDs by their tail, challenges by a pattern.
pub struct Counting {
    uuids: AtomicU64,
    challenges: AtomicU64,
    challenge: fn(u64) -> String,
}

impl Counting {
    pub fn new(challenge: fn(u64) -> String) -> Arc<Counting> {
        Counting::from(0, 0, challenge)
    }

    pub fn from(uuids: u64, challenges: u64, challenge: fn(u64) -> String) -> Arc<Counting> {
        Arc::new(Counting {
            uuids: AtomicU64::new(uuids),
            challenges: AtomicU64::new(challenges),
            challenge,
        })
    }

    pub fn used(&self) -> (u64, u64) {
        (
            self.uuids.load(Ordering::SeqCst),
            self.challenges.load(Ordering::SeqCst),
        )
    }
}

impl Identifiers for Counting {
    fn challenge(&self) -> String {
        (self.challenge)(self.challenges.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn uuid(&self) -> String {
        format!(
            "00000000-0000-4000-8000-{:012x}",
            self.uuids.fetch_add(1, Ordering::SeqCst) + 1
        )
    }
}

/// One byte, then zeros: the challenges of `server-transcripts.jsonl`.
pub fn one_byte_challenge(n: u64) -> String {
    format!("{n:02x}{}", "0".repeat(62))
}

/// Takes the issuer's word: the recorded transcripts carry no signatures.
pub struct TakesTheirWord;

impl SessionAuthenticator for TakesTheirWord {
    fn authenticate(
        &self,
        open: &SessionOpen,
        _: &Did,
        _: &Challenge,
        _: i64,
    ) -> Result<Option<Did>, WireError> {
        let issuer = open
            .invocation
            .as_ref()
            .and_then(|invocation| invocation.member("iss"));
        Ok(issuer.and_then(Value::as_str).map(Did::from))
    }
}

/// Fails sends on demand and writes down who was sent an effect, in order.
#[derive(Default)]
pub struct Faults {
    fail: Mutex<BTreeSet<String>>,
    sent: Mutex<Vec<String>>,
}

impl Faults {
    pub fn fail_next_send_to(&self, session: &str) {
        self.fail.lock().expect("not poisoned").insert(session.to_owned());
    }

    pub fn take_sent(&self) -> Vec<String> {
        std::mem::take(&mut self.sent.lock().expect("not poisoned"))
    }
}

impl FaultPoints for Faults {
    fn before_effect(&self, _: &SpaceId, session: &SessionId) -> Result<(), SendRefused> {
        if self.fail.lock().expect("not poisoned").remove(session.as_str()) {
            return Err(SendRefused);
        }
        self.sent
            .lock()
            .expect("not poisoned")
            .push(session.as_str().to_owned());
        Ok(())
    }
}

/// A config with everything injected: manual flushes, a clock at `start_ms`, counted identifiers.
pub struct Injected {
    pub config: ServerConfig,
    pub clock: Arc<ManualClock>,
    pub identifiers: Arc<Counting>,
    pub faults: Arc<Faults>,
}

impl Injected {
    pub fn new(audience: &str, start_ms: i64) -> Injected {
        let clock = ManualClock::at(start_ms);
        let identifiers = Counting::new(one_byte_challenge);
        let faults = Arc::new(Faults::default());
        let mut config = ServerConfig::new(Did::from(audience), Stores::Memory);
        config.clock = clock.clone();
        config.identifiers = identifiers.clone();
        config.faults = faults.clone();
        config.authenticator = Arc::new(TakesTheirWord);
        config.flush = FlushTiming::Manual;
        config.process_instance = "process".into();
        Injected {
            config,
            clock,
            identifiers,
            faults,
        }
    }
}

/// A running server.
pub struct Running {
    pub server: Arc<Server>,
    pub address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Running {
    /// Serves on a free port, without the first-frame stage.
    pub async fn standalone(config: ServerConfig) -> Running {
        let server = Server::new(config).expect("inside a runtime");
        let router = server.standalone_router();
        Running::serve(server, router).await
    }

    /// Serves the production routes.
    pub async fn production(config: ServerConfig) -> Running {
        let server = Server::new(config).expect("inside a runtime");
        let router = server.router();
        Running::serve(server, router).await
    }

    async fn serve(server: Arc<Server>, router: axum::Router) -> Running {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        let accepting = tokio::spawn(async move {
            axum::serve(
                listener,
                router.into_make_service_with_connect_info::<SocketAddr>(),
            )
            .await
            .expect("serves until aborted");
        });
        Running {
            server,
            address,
            accepting,
        }
    }

    /// What a route answers, asked over HTTP beside the test's runtime.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let url = format!("http://{}{path}", self.address);
        tokio::task::spawn_blocking(move || {
            let agent: ureq::Agent = ureq::Agent::config_builder()
                .http_status_as_error(false)
                .build()
                .into();
            let mut answer = agent.get(&url).call().expect("answered");
            let text = answer.body_mut().read_to_string().expect("text");
            (answer.status().as_u16(), text)
        })
        .await
        .expect("ran")
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address, "/api/storage/memory?space=did:key:ignored").await
    }

    /// Waits until no more than `count` connections are left.
    pub async fn until_connections(&self, count: usize) {
        while self.server.connection_count() > count {
            tokio::task::yield_now().await;
        }
        // Detaching runs in the turns of the spaces; a flush of nothing waits for them.
        memory_server::ServingPlane::idle(&*self.server)
            .await
            .expect("turns end");
    }
}

/// One socket.
pub struct Client {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Client {
    pub async fn connect(address: SocketAddr, path: &str) -> Client {
        let (socket, _) = tokio_tungstenite::connect_async(format!("ws://{address}{path}"))
            .await
            .expect("the upgrade is accepted");
        Client { socket }
    }

    pub async fn send(&mut self, frame: &str) {
        self.socket
            .send(Message::Text(frame.into()))
            .await
            .expect("the socket is open");
    }

    /// The next text frame.
    pub async fn recv(&mut self) -> String {
        match self.recv_or_close().await {
            Received::Text(text) => text,
            other => panic!("expected a frame, got {other:?}"),
        }
    }

    pub async fn recv_or_close(&mut self) -> Received {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) => return Received::Text(text.as_str().to_owned()),
                Some(Ok(Message::Close(frame))) => {
                    return Received::Close(
                        frame.map(|frame| (frame.code.into(), frame.reason.as_str().to_owned())),
                    );
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Received::Broken(error.to_string()),
                None => return Received::Broken("ended".into()),
            }
        }
    }

    pub async fn request(&mut self, frame: &str) -> serde_json::Value {
        self.send(frame).await;
        json(&self.recv().await)
    }
}

#[derive(Debug)]
pub enum Received {
    Text(String),
    Close(Option<(u16, String)>),
    Broken(String),
}

/// The value of a frame as plain JSON.
pub fn json(frame: &str) -> serde_json::Value {
    let body = frame
        .strip_prefix("fvj1:")
        .unwrap_or_else(|| panic!("no codec prefix: {frame}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {frame}"))
}

/// A frame of plain JSON.
pub fn frame(value: &serde_json::Value) -> String {
    format!("fvj1:{value}")
}

/// Lines of a vector file.
pub fn vectors(name: &str) -> Vec<serde_json::Value> {
    let path = format!("{}/../tests/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect()
}

/// A frame with everything normalised that the protocol leaves open: order of entries in syncs and snapshots
/// (decision 16), and what a newer server advertises in hello (SRV-202).
pub fn normalised(frame: &str) -> serde_json::Value {
    let mut value = json(frame);
    for pointer in ["/effect", "/ok/sync"] {
        if let Some(sync) = value.pointer_mut(pointer) {
            sort_entries(sync, "upserts");
            sort_entries(sync, "removes");
        }
    }
    if let Some(ok) = value.pointer_mut("/ok") {
        sort_entries(ok, "entities");
    }
    if value["type"] == "hello.ok" {
        let flags = value["flags"].as_object_mut().expect("flags are an object");
        // SRV-202: advertised once built; the recording server had built the one and did not know the others.
        for flag in [
            "sqliteCommitRowLabelEval",
            "sessionReadCeiling",
            "viewScopedReplicationV1",
        ] {
            flags.remove(flag);
        }
    }
    if let Some(message) = value.pointer_mut("/error/message")
        && let Some(text) = message.as_str()
        && text.starts_with("memory flag mismatch: client=")
    {
        // SRV-201 pins the beginning and that both values are there.
        assert!(text.contains(" server={"), "{text}");
        *message = "memory flag mismatch: client=".into();
    }
    value
}

fn sort_entries(holder: &mut serde_json::Value, key: &str) {
    let Some(entries) = holder.get_mut(key).and_then(|entries| entries.as_array_mut()) else {
        return;
    };
    entries.sort_by_key(|entry| {
        ["branch", "scope", "id", "scopeKey"].map(|key| entry[key].as_str().unwrap_or_default().to_owned())
    });
}

/// Sockets by name.
pub type Clients = BTreeMap<String, Client>;

/// The space of tests that need one.
pub const SPACE: &str = "did:key:z6Mk-space";

/// Stands for nobody in the helpers below.
pub const ANONYMOUS: &str = "";

/// `hello` without flags.
pub fn hello() -> String {
    frame(&serde_json::json!({ "type": "hello", "protocol": "memory", "flags": {} }))
}

/// Says hello and opens a session; returns the answer.
pub async fn open_on(
    client: &mut Client,
    space: &str,
    session: &str,
    principal: &str,
    token: Option<&str>,
) -> serde_json::Value {
    let hello = client.request(&hello()).await;
    let challenge = hello["sessionOpen"]["challenge"]["value"]
        .as_str()
        .expect("a challenge")
        .to_owned();
    open_with(client, &challenge, space, session, principal, token).await
}

/// Opens a session on a connection that has said hello.
pub async fn open_with(
    client: &mut Client,
    challenge: &str,
    space: &str,
    session: &str,
    principal: &str,
    token: Option<&str>,
) -> serde_json::Value {
    let mut descriptor = serde_json::json!({ "sessionId": session });
    if let Some(token) = token {
        descriptor["sessionToken"] = token.into();
    }
    let mut invocation = serde_json::json!({ "aud": "did:key:z6Mk-audience", "challenge": challenge });
    if principal != ANONYMOUS {
        invocation["iss"] = principal.into();
    }
    let open = serde_json::json!({
        "type": "session.open", "requestId": "open", "space": space, "session": descriptor,
        "invocation": invocation, "authorization": {},
    });
    client.request(&frame(&open)).await
}

/// A client with a session in [`SPACE`].
pub async fn open(running: &Running, session: &str, principal: &str) -> Client {
    let mut client = running.client().await;
    let answer = open_on(&mut client, SPACE, session, principal, None).await;
    assert_eq!(answer["ok"]["sessionId"], session, "{answer}");
    client
}

/// A transact of given operations.
pub fn transact(session: &str, local_seq: u64, operations: &serde_json::Value) -> String {
    transact_reading(session, local_seq, operations, &serde_json::json!([]))
}

/// A transact with confirmed reads.
pub fn transact_reading(
    session: &str,
    local_seq: u64,
    operations: &serde_json::Value,
    confirmed: &serde_json::Value,
) -> String {
    frame(&serde_json::json!({
        "type": "transact", "requestId": format!("t{local_seq}"), "space": SPACE, "sessionId": session,
        "commit": {
            "localSeq": local_seq, "reads": { "confirmed": confirmed, "pending": [] }, "operations": operations,
        },
    }))
}

/// A transact of one whole document.
pub fn set(session: &str, local_seq: u64, id: &str, value: &serde_json::Value) -> String {
    transact(
        session,
        local_seq,
        &serde_json::json!([{ "op": "set", "id": id, "value": { "value": value } }]),
    )
}

/// A watch list of documents, delivered and not descended into.
pub fn watch(session: &str, ids: &[&str]) -> String {
    let roots: Vec<serde_json::Value> = ids
        .iter()
        .map(|id| serde_json::json!({ "id": id, "selector": { "path": [], "schema": false } }))
        .collect();
    watch_roots(session, "session.watch.set", "w", &serde_json::json!(roots))
}

/// A watch request of one watch.
pub fn watch_roots(session: &str, kind: &str, id: &str, roots: &serde_json::Value) -> String {
    frame(&serde_json::json!({
        "type": kind, "requestId": "watch", "space": SPACE, "sessionId": session,
        "watches": [{ "id": id, "kind": "graph", "query": { "roots": roots } }],
    }))
}

/// A link of the legacy regime to a document of the same space, inside a frame.
pub fn link(id: &str) -> serde_json::Value {
    serde_json::json!({ "/quote": { "/": { "link@1": { "id": id, "path": [], "space": SPACE } } } })
}
