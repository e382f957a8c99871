//! The scene: a server with its files, a victim who keeps secrets in it, and attackers whose every received byte is
//! kept.

#![allow(unreachable_pub, reason = "shared by the rooms of this test")]

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::{SinkExt, StreamExt};
use memory_engine::StoreRoot;
use memory_server::{AclConfig, AclMode, Clock, Server, ServerConfig, Stores};
use memory_wire::auth::{Invocation, authorize};
use memory_wire::identity::Signer;
use memory_wire::{Did, Object, SpaceId, Value, codec, value};
use serde_json::{Value as Json, json};
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// What the server calls itself.
pub const AUDIENCE: &str = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK";

/// Texts that no attacker may ever be sent.
pub const SECRETS: [&str; 5] = [
    "SECRET-of-the-private-space",
    "SECRET-of-the-user-instance",
    "SECRET-of-the-session-instance",
    "SECRET-of-the-private-list",
    "SECRET-document-name",
];

/// A clock that moves when told to.
pub struct Moved(AtomicI64);

impl Moved {
    pub fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    pub fn seconds(&self) -> u64 {
        u64::try_from(self.0.load(Ordering::SeqCst) / 1000).expect("after 1970")
    }
}

impl Clock for Moved {
    fn wall_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.0.load(Ordering::SeqCst)).expect("after 1970")
    }
}

/// A server, its victim and the space both sides may enter.
pub struct Rig {
    pub server: Arc<Server>,
    pub address: SocketAddr,
    pub clock: Arc<Moved>,
    /// Holds the data directory two levels down, so that an escape would show.
    pub around: tempfile::TempDir,
    pub victim: Peer,
    /// Only the victim may enter.
    pub private: SpaceId,
    /// Members may write; instances are each one's own.
    pub shared: SpaceId,
    accepting: tokio::task::JoinHandle<()>,
    /// The victim's commits so far, for its next local seq.
    victim_commits: u64,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Who the victim is.
pub fn victim() -> Signer {
    Signer::from_passphrase("victim")
}

/// A member of the shared space, with WRITE there and nothing elsewhere.
pub fn mallory() -> Signer {
    Signer::from_passphrase("mallory")
}

/// Nobody in particular.
pub fn stranger() -> Signer {
    Signer::from_passphrase("stranger")
}

impl Rig {
    pub async fn start() -> Rig {
        Rig::with(|_| ()).await
    }

    /// A server whose configuration `change` has the last word on.
    pub async fn with(change: impl FnOnce(&mut ServerConfig)) -> Rig {
        let around = tempfile::tempdir().expect("a temporary directory");
        let data = around.path().join("srv").join("data");
        std::fs::create_dir_all(&data).expect("made");
        let clock = Arc::new(Moved(AtomicI64::new(1_780_000_000_000)));
        let stores = Stores::Files(StoreRoot::configured(&data).expect("absolute"));
        let mut config = ServerConfig::new(Did::from(AUDIENCE), stores);
        config.acl = AclConfig {
            mode: AclMode::Enforce,
            ..AclConfig::default()
        };
        config.server_execution = true;
        config.acl.delegating_principals = AclConfig::delegating(&config.audience, true);
        config.clock = clock.clone();
        change(&mut config);
        let server = Server::new(config).expect("inside a runtime");
        let router = server.router();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        let accepting = tokio::spawn({
            let server = Arc::clone(&server);
            async move {
                server
                    .serve(listener, router, std::future::pending())
                    .await
                    .expect("serves until aborted");
            }
        });
        let (private, shared) = (
            Signer::from_passphrase("the private space"),
            Signer::from_passphrase("the shared space"),
        );
        let mut rig = Rig {
            private: SpaceId::from(private.did().as_str()),
            shared: SpaceId::from(shared.did().as_str()),
            victim: Peer::connect(address, Arc::clone(&clock), victim()).await,
            server,
            address,
            clock,
            around,
            accepting,
            victim_commits: 0,
        };
        rig.furnish(&private, json!({ victim().did().as_str(): "OWNER" }))
            .await;
        let members = json!({ victim().did().as_str(): "OWNER", mallory().did().as_str(): "WRITE" });
        rig.furnish(&shared, members).await;
        rig.hide_secrets().await;
        rig
    }

    /// Genesis of a space, signed by its own key.
    async fn furnish(&self, key: &Signer, list: Json) {
        let mut founder = self.peer(key.clone()).await;
        let space = SpaceId::from(key.did().as_str());
        founder
            .open(&space, "founder")
            .await
            .expect("may found its space");
        let genesis = founder
            .transact(
                &space,
                "founder",
                1,
                json!([{ "op": "set", "id": format!("of:{space}"), "value": { "value": list } }]),
            )
            .await;
        assert!(genesis["ok"]["seq"].is_number(), "{genesis}");
    }

    async fn hide_secrets(&mut self) {
        let (private, shared) = (self.private.clone(), self.shared.clone());
        self.victim.open(&private, "vp").await.expect("an owner");
        self.victim.open(&shared, "vs").await.expect("an owner");
        let in_private = json!([
            { "op": "set", "id": "of:diary", "value": { "value": { "text": SECRETS[0] } } },
            { "op": "set", "id": format!("of:{}", SECRETS[4]), "value": { "value": [SECRETS[3]] } },
        ]);
        let answer = self.victim.transact(&private, "vp", 1, in_private).await;
        assert!(answer["ok"]["seq"].is_number(), "{answer}");
        let in_shared = json!([
            { "op": "set", "id": "of:note", "scope": "user", "value": { "value": { "text": SECRETS[1] } } },
            { "op": "set", "id": "of:note", "scope": "session", "value": { "value": { "text": SECRETS[2] } } },
            { "op": "set", "id": "of:note", "value": { "value": { "text": "public" } } },
        ]);
        let answer = self.victim.transact(&shared, "vs", 1, in_shared).await;
        assert!(answer["ok"]["seq"].is_number(), "{answer}");
        let watch = json!([{ "id": "w", "kind": "graph", "query": { "roots": [
            { "id": "of:note", "scope": "user", "selector": { "path": [], "schema": true } },
            { "id": "of:note", "scope": "session", "selector": { "path": [], "schema": true } },
            { "id": "of:note", "selector": { "path": [], "schema": true } },
        ] } }]);
        let answer = self
            .victim
            .request(json!({
                "type": "session.watch.set", "requestId": "w", "space": shared.as_str(), "sessionId": "vs",
                "watches": watch,
            }))
            .await;
        assert!(answer["ok"]["sync"].is_object(), "{answer}");
        self.victim_commits = 1;
    }

    /// A connection that has said hello.
    pub async fn peer(&self, signer: Signer) -> Peer {
        Peer::connect(self.address, Arc::clone(&self.clock), signer).await
    }

    /// A member with an open session `m` in the shared space.
    pub async fn member(&self) -> Peer {
        let mut peer = self.peer(mallory()).await;
        peer.open(&self.shared, "m").await.expect("a member");
        peer
    }

    /// The value of every counter of `/metrics`, by its name and labels.
    pub async fn counters(&self) -> BTreeMap<String, u64> {
        let text = http(
            self.address,
            "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        )
        .await;
        text.lines()
            .filter(|line| !line.starts_with('#') && line.contains("_total"))
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                Some((series.to_owned(), value.parse::<f64>().ok()? as u64))
            })
            .collect()
    }

    /// The victim still works: what it writes is accepted and it holds what it had. Nothing of its secrets is in `heard`.
    pub async fn unharmed(&mut self, attackers: &[&Peer]) {
        for attacker in attackers {
            attacker.heard.holds_no(&self.secrets());
        }
        self.victim_commits += 1;
        let (private, shared, n) = (self.private.clone(), self.shared.clone(), self.victim_commits);
        for (space, session) in [(&private, "vp"), (&shared, "vs")] {
            let operations = json!([{ "op": "set", "id": "of:alive", "value": { "value": { "n": n } } }]);
            let answer = self.victim.transact(space, session, n, operations).await;
            assert!(answer["ok"]["seq"].is_number(), "the victim is refused: {answer}");
            let list = self
                .victim
                .document(space, session, &format!("of:{space}"), "space")
                .await;
            assert_eq!(
                list[victim().did().as_str()],
                "OWNER",
                "the list was changed: {list}"
            );
        }
        let own = self.victim.document(&shared, "vs", "of:note", "user").await;
        assert_eq!(own["text"], SECRETS[1]);
        let own = self.victim.document(&shared, "vs", "of:note", "session").await;
        assert_eq!(own["text"], SECRETS[2]);
        let own = self.victim.document(&private, "vp", "of:diary", "space").await;
        assert_eq!(own["text"], SECRETS[0]);
        let entries = std::fs::read_dir(self.around.path()).expect("readable");
        assert_eq!(
            entries.count(),
            1,
            "something was written beside the data directory"
        );
    }

    /// What must not be heard: the markers, and what would let its bearer be the victim.
    pub fn secrets(&self) -> Vec<String> {
        let mut secrets: Vec<String> = SECRETS.map(str::to_owned).to_vec();
        secrets.extend(self.victim.tokens.values().cloned());
        secrets
    }
}

/// Every byte a peer has been sent.
#[derive(Clone, Default)]
pub struct Heard(Arc<Mutex<Vec<u8>>>);

impl Heard {
    pub fn holds_no(&self, secrets: &[String]) {
        let bytes = self.0.lock().expect("not poisoned");
        assert!(!bytes.is_empty(), "nothing was recorded");
        let text = String::from_utf8_lossy(&bytes);
        for secret in secrets {
            assert!(!text.contains(secret.as_str()), "an attacker was sent {secret}");
        }
    }

    pub fn add(&self, bytes: &[u8]) {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
    }
}

/// A stream whose reads are kept.
pub struct Recording {
    inner: TcpStream,
    heard: Heard,
}

impl AsyncRead for Recording {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.heard.add(&buf.filled()[before..]);
        polled
    }
}

impl AsyncWrite for Recording {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Somebody at the other end of a socket.
pub struct Peer {
    pub socket: WebSocketStream<Recording>,
    pub heard: Heard,
    pub signer: Signer,
    pub challenge: String,
    /// Tokens of its sessions.
    pub tokens: BTreeMap<String, String>,
    /// Frames nobody asked for, in order.
    pub pushed: Vec<Json>,
    clock: Arc<Moved>,
}

/// The parts of a `session.open`, to be bent before they are sent.
#[derive(Clone)]
pub struct Open {
    pub space: String,
    pub session: Value,
    pub invocation: Value,
    pub authorization: Value,
}

impl Open {
    pub fn frame(&self) -> String {
        let mut message = Object::new();
        message.insert("type", "session.open");
        message.insert("requestId", "open");
        message.insert("space", self.space.as_str());
        message.insert("session", self.session.clone());
        message.insert("invocation", self.invocation.clone());
        message.insert("authorization", self.authorization.clone());
        codec::encode(&Value::Object(message)).expect("encodable")
    }

    /// Replaces a member of the invocation without signing anew.
    pub fn claim(mut self, key: &str, value: impl Into<Value>) -> Open {
        if let Value::Object(object) = &mut self.invocation {
            object.insert(key, value);
        }
        self
    }

    /// Replaces a member of the invocation, and signs it with `signer`.
    pub fn signing(self, signer: &Signer, key: &str, value: impl Into<Value>) -> Open {
        let mut open = self.claim(key, value);
        open.authorization = authorize(signer, &open.invocation);
        open
    }

    pub fn with_signature(mut self, signature: Value) -> Open {
        self.authorization = value!({ "signature": signature });
        self
    }

    pub fn signature(&self) -> Vec<u8> {
        match self.authorization.member("signature") {
            Some(Value::Bytes(bytes)) => bytes.to_vec(),
            other => panic!("no signature: {other:?}"),
        }
    }
}

impl Peer {
    pub async fn connect(address: SocketAddr, clock: Arc<Moved>, signer: Signer) -> Peer {
        let heard = Heard::default();
        let stream = Recording {
            inner: TcpStream::connect(address).await.expect("listens"),
            heard: heard.clone(),
        };
        let (socket, _) = tokio_tungstenite::client_async(
            format!("ws://{address}/api/storage/memory?space=did:key:ignored"),
            stream,
        )
        .await
        .expect("upgraded");
        let mut peer = Peer {
            socket,
            heard,
            signer,
            challenge: String::new(),
            tokens: BTreeMap::new(),
            pushed: Vec::new(),
            clock,
        };
        let hello = peer
            .request(json!({ "type": "hello", "protocol": "memory", "flags": {} }))
            .await;
        peer.challenge = challenge_in(&hello);
        peer
    }

    /// What an honest client would send.
    pub fn honest(&self, space: &SpaceId, descriptor: Value) -> Open {
        let now = self.clock.seconds();
        let invocation = Invocation {
            issuer: self.signer.did().clone(),
            space: space.clone(),
            audience: AUDIENCE.into(),
            challenge: self.challenge.clone(),
            descriptor: descriptor.clone(),
            issued_at: now,
            expires_at: now + 300,
        }
        .to_value();
        Open {
            space: space.to_string(),
            session: descriptor,
            authorization: authorize(&self.signer, &invocation),
            invocation,
        }
    }

    /// Opens a session honestly.
    pub async fn open(&mut self, space: &SpaceId, session: &str) -> Result<Json, Json> {
        let open = self.honest(space, value!({ "sessionId": session }));
        let answer = self.ask(&open.frame()).await;
        if answer["ok"].is_null() {
            return Err(answer["error"].clone());
        }
        self.challenge = challenge_in(&answer["ok"]);
        let token = answer["ok"]["sessionToken"].as_str().expect("a token").to_owned();
        self.tokens.insert(session.to_owned(), token);
        Ok(answer)
    }

    pub async fn send(&mut self, frame: &str) {
        self.socket
            .send(Message::Text(frame.into()))
            .await
            .expect("the socket is open");
    }

    /// The next frame; `None` when the server has closed.
    pub async fn receive(&mut self) -> Option<Json> {
        let text = self.receive_text().await?;
        let body = text.strip_prefix("fvj1:").expect("the codec's prefix");
        Some(serde_json::from_str(body).expect("JSON"))
    }

    /// The same unread.
    pub async fn receive_text(&mut self) -> Option<String> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) => return Some(text.as_str().to_owned()),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// The close code the server ends with; frames before it are passed over.
    pub async fn closed(&mut self) -> Option<u16> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Close(frame))) => return frame.map(|frame| frame.code.into()),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// Sends a frame and returns the next answer.
    pub async fn ask(&mut self, frame: &str) -> Json {
        self.send(frame).await;
        loop {
            let message = self.receive().await.expect("an answer");
            if message["type"] == "response" || message["type"] == "hello.ok" {
                return message;
            }
            self.pushed.push(message);
        }
    }

    pub async fn request(&mut self, message: Json) -> Json {
        self.ask(&format!("fvj1:{message}")).await
    }

    pub async fn transact(
        &mut self,
        space: &SpaceId,
        session: &str,
        local_seq: u64,
        operations: Json,
    ) -> Json {
        self.commit(
            space,
            session,
            json!({
                "localSeq": local_seq, "reads": { "confirmed": [], "pending": [] }, "operations": operations,
            }),
        )
        .await
    }

    pub async fn commit(&mut self, space: &SpaceId, session: &str, commit: Json) -> Json {
        self.request(json!({
            "type": "transact", "requestId": "t", "space": space.as_str(), "sessionId": session, "commit": commit,
        }))
        .await
    }

    pub async fn query(&mut self, space: &SpaceId, session: &str, roots: Json) -> Json {
        self.request(json!({
            "type": "graph.query", "requestId": "q", "space": space.as_str(), "sessionId": session,
            "query": { "roots": roots },
        }))
        .await
    }

    /// The `value` of a document as its reader sees it.
    pub async fn document(&mut self, space: &SpaceId, session: &str, id: &str, scope: &str) -> Json {
        let roots = json!([{ "id": id, "scope": scope, "selector": { "path": [], "schema": true } }]);
        let answer = self.query(space, session, roots).await;
        answer["ok"]["entities"]
            .as_array()
            .and_then(|entities| entities.iter().find(|entity| entity["id"] == id))
            .map(|entity| entity["document"]["value"].clone())
            .unwrap_or_else(|| panic!("{id} is not there: {answer}"))
    }
}

fn challenge_in(holder: &Json) -> String {
    holder["sessionOpen"]["challenge"]["value"]
        .as_str()
        .unwrap_or_else(|| panic!("a challenge in {holder}"))
        .to_owned()
}

/// One HTTP exchange as it is on the wire; the answer with its head.
pub async fn http(address: SocketAddr, request: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(address).await.expect("listens");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    // A server that refuses early may reset the rest of the request.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Series of the error counter.
pub fn error_series(label: &str) -> String {
    format!("memory_errors_total{{name=\"{label}\"}}")
}

/// An answer's error, if the name is the one expected; the reason for a failed row otherwise.
pub fn judge(label: &str, answer: &Json, name: &str, message: &str) -> Result<(), String> {
    let error = &answer["error"];
    if error["name"] != name {
        return Err(format!("{label}: expected {name}, got {answer}"));
    }
    if !error["message"].as_str().unwrap_or_default().contains(message) {
        return Err(format!("{label}: expected {message:?} in {error}"));
    }
    Ok(())
}

/// The metric label of an error name.
pub fn metric_label(name: &str) -> &'static str {
    memory_wire::error::ErrorName::from_name(name)
        .expect("a listed name")
        .metric_label()
}
