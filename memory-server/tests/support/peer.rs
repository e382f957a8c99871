//! A peer without a socket, and what it must find true of everything it was ever sent. The peer writes down every request
//! and every frame; [`Told`] reads the log and fails at the first broken promise.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memory_server::Server;
use memory_server::loopback::{self, LoopbackClosed, LoopbackReceiver, LoopbackSender, Received};
use serde_json::{Value as Json, json};

use super::{SPACE, frame, json as parsed};

/// How a peer is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// What is handed over is delivered.
    InProcess,
    /// Held to a socket's bounds.
    AsSocket,
}

/// One connection with everything that went over it.
pub struct Peer {
    sender: LoopbackSender,
    receiver: LoopbackReceiver,
    /// Requests sent, by their id.
    pub asked: BTreeMap<String, Json>,
    /// Frames received, in order.
    pub heard: Vec<Json>,
    /// Their text.
    pub texts: Vec<String>,
    /// Frames the server knows to have arrived.
    pub confirmed: usize,
    challenge: String,
    next: u64,
}

/// What a peer leaves behind.
#[derive(Default)]
pub struct Log {
    pub asked: BTreeMap<String, Json>,
    pub heard: Vec<Json>,
    pub texts: Vec<String>,
}

impl Peer {
    /// Connects and says hello.
    pub async fn connect(server: &Arc<Server>, wire: Wire) -> Peer {
        let connection = match wire {
            Wire::InProcess => loopback::connect(server),
            Wire::AsSocket => loopback::connect_as_socket(server),
        };
        let (sender, receiver) = connection.expect("the server is not ending").split();
        let mut peer = Peer {
            sender,
            receiver,
            asked: BTreeMap::new(),
            heard: Vec::new(),
            texts: Vec::new(),
            confirmed: 0,
            challenge: String::new(),
            next: 0,
        };
        peer.sender.send(super::hello()).await.expect("connected");
        let hello = peer.hear().await.expect("an answer to hello");
        peer.take_challenge(&hello["sessionOpen"]);
        peer
    }

    fn take_challenge(&mut self, session_open: &Json) {
        if let Some(value) = session_open["challenge"]["value"].as_str() {
            self.challenge = value.to_owned();
        }
    }

    /// The next frame; `None` when the connection has ended. Pings are answered once everything before them is in the log.
    pub async fn hear(&mut self) -> Option<Json> {
        loop {
            match self.receiver.receive().await? {
                Received::Frame(text) => {
                    let message = parsed(&text);
                    self.heard.push(message.clone());
                    self.texts.push(text);
                    return Some(message);
                }
                Received::Ping(payload) => {
                    self.confirmed = self.heard.len();
                    self.receiver.pong(&payload);
                }
            }
        }
    }

    /// Sends a request without waiting for its answer; resolves when the server has handled it. Returns its id.
    pub async fn ask(&mut self, body: Json) -> Result<String, LoopbackClosed> {
        let (id, text) = self.prepare(body);
        self.sender.send(text).await?;
        Ok(id)
    }

    /// A request to be sent by [`Peer::sender`], written down as asked.
    pub fn prepare(&mut self, mut body: Json) -> (String, String) {
        self.next += 1;
        let id = format!("r{}", self.next);
        body["requestId"] = id.clone().into();
        let text = frame(&body);
        self.asked.insert(id.clone(), body);
        (id, text)
    }

    /// A sender on the same connection.
    pub fn sender(&self) -> LoopbackSender {
        self.sender.clone()
    }

    /// Sends a request and reads until its answer.
    pub async fn request(&mut self, body: Json) -> Option<Json> {
        let id = self.ask(body).await.ok()?;
        self.answer(&id).await
    }

    /// Reads until the answer to a request.
    pub async fn answer(&mut self, id: &str) -> Option<Json> {
        loop {
            let message = self.hear().await?;
            if message["type"] == "response" && message["requestId"] == id {
                self.take_challenge(&message["ok"]["sessionOpen"]);
                return Some(message);
            }
        }
    }

    /// Opens or resumes a session.
    pub async fn open(
        &mut self,
        session: &str,
        principal: &str,
        token: Option<&str>,
        seen: u64,
    ) -> Option<Json> {
        let mut descriptor = json!({ "sessionId": session });
        if let Some(token) = token {
            descriptor["sessionToken"] = token.into();
            descriptor["seenSeq"] = seen.into();
        }
        let challenge = std::mem::take(&mut self.challenge);
        self.request(json!({
            "type": "session.open", "space": SPACE, "session": descriptor, "authorization": {},
            "invocation": { "aud": "did:key:z6Mk-audience", "challenge": challenge, "iss": principal },
        }))
        .await
    }

    /// Reads everything queued by now.
    pub async fn drain(&mut self, session: &str) {
        let probe =
            json!({ "type": "entity-id.exists", "space": SPACE, "sessionId": session, "id": "of:probe" });
        self.request(probe).await;
    }

    /// What was asked and, by the first `heard` frames, is not answered; in the order of asking.
    pub fn unanswered(&self, heard: usize) -> Vec<Json> {
        let answered: BTreeSet<&str> = self.heard[..heard]
            .iter()
            .filter(|message| message["type"] == "response")
            .filter_map(|message| message["requestId"].as_str())
            .collect();
        let mut open: Vec<(u64, &Json)> = self
            .asked
            .iter()
            .filter(|(id, _)| !answered.contains(id.as_str()))
            .map(|(id, request)| (id[1..].parse().expect("ids are numbered"), request))
            .collect();
        open.sort_by_key(|(number, _)| *number);
        open.into_iter().map(|(_, request)| request.clone()).collect()
    }

    /// Ends the connection; what was not read is lost.
    pub fn hang_up(self) -> Log {
        Log {
            asked: self.asked,
            heard: self.heard,
            texts: self.texts,
        }
    }
}

/// A commit of whole documents; `null` deletes.
pub fn commit(session: &str, local_seq: u64, documents: &[(&str, Json)]) -> Json {
    let operations: Vec<Json> = documents
        .iter()
        .map(|(id, value)| match value {
            Json::Null => json!({ "op": "delete", "id": id }),
            value => json!({ "op": "set", "id": id, "value": { "value": value } }),
        })
        .collect();
    commit_of(session, local_seq, &json!(operations))
}

/// A commit of given operations.
pub fn commit_of(session: &str, local_seq: u64, operations: &Json) -> Json {
    json!({
        "type": "transact", "space": SPACE, "sessionId": session,
        "commit": { "localSeq": local_seq, "reads": { "confirmed": [], "pending": [] }, "operations": operations },
    })
}

/// A watch request over documents of the space's own scope, not descended into.
pub fn watching(kind: &str, session: &str, watch: &str, ids: &[&str]) -> Json {
    let roots: Vec<Json> = ids
        .iter()
        .map(|id| json!({ "id": id, "selector": { "path": [], "schema": false } }))
        .collect();
    watching_roots(kind, session, watch, &json!(roots))
}

/// A watch request of one watch.
pub fn watching_roots(kind: &str, session: &str, watch: &str, roots: &Json) -> Json {
    json!({
        "type": kind, "space": SPACE, "sessionId": session,
        "watches": [{ "id": watch, "kind": "graph", "query": { "roots": roots } }],
    })
}

/// Name of an instance as its session sees it: scope and id, with the key where frames carry it.
pub type Name = (String, String, String);

/// What one session has been told over all its connections.
#[derive(Debug, Default, Clone)]
pub struct Told {
    session: String,
    /// Position and content of everything held; no content is a deletion.
    pub held: BTreeMap<Name, (u64, Option<Json>)>,
    /// The same of what its own accepted commits wrote whole, watched or not.
    own: BTreeMap<Name, (u64, Option<Json>)>,
    /// `toSeq` of the last sync.
    pub position: u64,
    pub marker: u64,
    pub token: Option<String>,
    /// Seqs of accepted commits by local seq.
    pub accepted: BTreeMap<u64, u64>,
    /// Accepted commits that the session as it now is owes a marker for.
    pub covered: BTreeSet<u64>,
    /// Local seqs that were refused.
    pub refused: BTreeSet<u64>,
    /// Local seqs sent over earlier connections: their verdicts may have been lost.
    sent_before: BTreeSet<u64>,
    /// Verdicts of this connection: local seq, place in the log, seq.
    verdicts: Vec<(u64, usize, Option<u64>)>,
    revoked: bool,
    /// Frames may have been lost: the same content may then come again.
    pub lossy: bool,
}

impl Told {
    pub fn new(session: &str) -> Told {
        Told {
            session: session.to_owned(),
            ..Told::default()
        }
    }

    /// Reads a connection's log from its `from`th frame on.
    pub fn read(&mut self, asked: &BTreeMap<String, Json>, heard: &[Json]) {
        let mut answered: BTreeSet<&str> = BTreeSet::new();
        self.verdicts = verdicts(asked, heard, &self.session);
        self.verdicts
            .retain(|(local, ..)| !self.sent_before.contains(local));
        for (place, message) in heard.iter().enumerate() {
            match message["type"].as_str() {
                Some("response") => {
                    let id = message["requestId"].as_str().unwrap_or_default();
                    assert!(answered.insert(id), "two answers to one request: {message}");
                    let Some(request) = asked.get(id) else {
                        panic!("an answer to no request: {message}");
                    };
                    if concerns(request, &self.session) {
                        self.answered(request, message);
                    }
                }
                Some("session/effect") if message["sessionId"] == self.session.as_str() => {
                    assert!(!self.revoked, "a frame after the session's end: {message}");
                    self.frame(place, &message["effect"]);
                }
                Some("session/revoked") if message["sessionId"] == self.session.as_str() => {
                    assert!(!self.revoked, "a session ends once: {message}");
                    self.revoked = true;
                }
                _ => {}
            }
        }
        let sent = asked.values().filter(|request| concerns(request, &self.session));
        self.sent_before
            .extend(sent.filter_map(|request| request["commit"]["localSeq"].as_u64()));
    }

    /// Reads on until `done` holds of everything heard.
    pub async fn hear_until(&mut self, peer: &mut Peer, done: impl Fn(&Told) -> bool) {
        loop {
            let mut told = Told::new(&self.session);
            told.read(&peer.asked, &peer.heard);
            if done(&told) {
                *self = told;
                return;
            }
            assert!(peer.hear().await.is_some(), "the connection ended: {told:?}");
        }
    }

    /// The session is over; what comes next under its name is another.
    pub fn forget(&mut self) {
        self.held.clear();
        self.own.clear();
        self.covered.clear();
        self.token = None;
        self.position = 0;
        self.marker = 0;
        self.revoked = false;
    }

    /// The session goes on over another connection.
    pub fn next_connection(&mut self) {
        self.revoked = false;
    }

    pub fn is_revoked(&self) -> bool {
        self.revoked
    }

    fn answered(&mut self, request: &Json, message: &Json) {
        let Some(ok) = message.get("ok") else {
            if request["type"] == "transact" && message["error"]["name"] != "SessionError" {
                self.refused
                    .insert(request["commit"]["localSeq"].as_u64().unwrap_or_default());
            }
            return;
        };
        assert!(
            !self.revoked || request["type"] == "session.open",
            "an answer with content after the session's end: {message}"
        );
        match request["type"].as_str() {
            Some("session.open") => {
                self.revoked = false;
                self.token = ok["sessionToken"].as_str().map(str::to_owned);
                if ok["resumed"] != true {
                    self.held.clear();
                    self.covered.clear();
                    self.marker = 0;
                }
                self.marker = self.marker.max(ok["caughtUpLocalSeq"].as_u64().unwrap_or(0));
                if let Some(sync) = ok.get("sync") {
                    self.marker_of(sync);
                    self.take(sync, true);
                }
            }
            Some("session.watch.set") => {
                self.take(&ok["sync"], true);
                // The whole, not a difference: what it does not have is not held any more (SRV-501).
                let told: BTreeSet<Name> = ok["sync"]["upserts"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(name_of)
                    .collect();
                self.held.retain(|name, _| told.contains(name));
            }
            Some("session.watch.add") => self.take(&ok["sync"], false),
            Some("transact") => self.verdict(request, ok),
            _ => {}
        }
    }

    fn verdict(&mut self, request: &Json, ok: &Json) {
        let local = request["commit"]["localSeq"].as_u64().expect("sent by us");
        let seq = ok["seq"].as_u64().expect("a verdict has a seq");
        self.covered.insert(local);
        let before = self.accepted.insert(local, seq);
        assert!(
            before.is_none_or(|before| before == seq),
            "one commit, two seqs: {before:?} and {seq}"
        );
        let elided: Vec<u64> = ok["elidedOpIndexes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Json::as_u64)
            .collect();
        for (index, operation) in request["commit"]["operations"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            if elided.contains(&(index as u64)) {
                continue;
            }
            let content = match operation["op"].as_str() {
                Some("set") => Some(operation["value"]["value"].clone()),
                Some("delete") => None,
                _ => continue,
            };
            let scope = operation["scope"].as_str().unwrap_or("space");
            let name = (
                scope.to_owned(),
                operation["id"].as_str().unwrap_or_default().to_owned(),
                String::new(),
            );
            let own = self.own.entry(name).or_insert((0, None));
            if own.0 < seq {
                *own = (seq, content);
            }
        }
    }

    /// What the session has of an instance: the newer of what it was told and what it wrote.
    pub fn holds(&self, name: &Name) -> Option<&(u64, Option<Json>)> {
        let (told, own) = (self.held.get(name), self.own.get(name));
        match (told, own) {
            (Some(told), Some(own)) => Some(if own.0 > told.0 { own } else { told }),
            (told, own) => told.or(own),
        }
    }

    fn marker_of(&mut self, sync: &Json) {
        if let Some(marker) = sync["caughtUpLocalSeq"].as_u64() {
            self.marker = self.marker.max(marker);
        }
    }

    fn frame(&mut self, place: usize, sync: &Json) {
        let to = sync["toSeq"].as_u64().expect("a frame has an end");
        let from = sync["fromSeq"].as_u64().expect("a frame has a beginning");
        assert!(from <= to, "a frame that goes back: {sync}");
        assert!(
            to >= self.position,
            "a frame ends at {to}, the one before at {}: {sync}",
            self.position
        );
        if let Some(marker) = sync["caughtUpLocalSeq"].as_u64() {
            assert!(
                marker > self.marker || self.lossy,
                "a marker of {marker} after one of {}: {sync}",
                self.marker
            );
            for (local, verdict, _) in &self.verdicts {
                assert!(
                    *local > marker || *verdict < place,
                    "a marker of {marker} overtook the verdict of {local}: {sync}"
                );
            }
            self.marker = self.marker.max(marker);
        }
        for (local, verdict, seq) in &self.verdicts {
            assert!(
                seq.is_none_or(|seq| seq > to) || *verdict < place,
                "a frame to {to} overtook the verdict of {local}, which landed at {seq:?}: {sync}"
            );
        }
        self.take(sync, false);
    }

    /// Applies a sync. `anew`: it repeats what is held.
    fn take(&mut self, sync: &Json, anew: bool) {
        let to = sync["toSeq"].as_u64().unwrap_or(self.position);
        for remove in sync["removes"].as_array().into_iter().flatten() {
            let name = name_of(remove);
            let gone = self.held.remove(&name).or_else(|| self.own.remove(&name));
            assert!(
                gone.is_some() || anew || self.lossy,
                "a removal of what is not held: {remove}"
            );
        }
        for upsert in sync["upserts"].as_array().into_iter().flatten() {
            let name = name_of(upsert);
            let seq = upsert["seq"].as_u64().expect("an entry has a seq");
            assert!(seq <= to, "an entry from after its frame: {upsert} in {sync}");
            let content = match upsert.get("deleted") {
                Some(Json::Bool(true)) => None,
                _ => Some(upsert["doc"]["value"].clone()),
            };
            if let Some((held, known)) = self.held.get(&name) {
                assert!(seq >= *held, "{name:?} went back from {held} to {seq}: {sync}");
                if seq == *held {
                    assert_eq!(&content, known, "two contents of {name:?} at {seq}");
                    let own = self.accepted.values().any(|own| *own == seq);
                    assert!(
                        anew || own || self.lossy,
                        "{name:?} at {seq} was told twice: {sync}"
                    );
                }
            }
            self.held.insert(name, (seq, content));
        }
        self.position = self.position.max(to);
    }
}

/// Where the verdicts of a session's commits are in a log.
fn verdicts(asked: &BTreeMap<String, Json>, heard: &[Json], session: &str) -> Vec<(u64, usize, Option<u64>)> {
    let mut found = Vec::new();
    for (place, message) in heard.iter().enumerate() {
        let Some(request) = message["requestId"].as_str().and_then(|id| asked.get(id)) else {
            continue;
        };
        if request["type"] == "transact" && concerns(request, session) {
            let local = request["commit"]["localSeq"].as_u64().unwrap_or_default();
            found.push((local, place, message["ok"]["seq"].as_u64()));
        }
    }
    found
}

fn concerns(request: &Json, session: &str) -> bool {
    request["sessionId"] == session || request["session"]["sessionId"] == session
}

fn name_of(entry: &Json) -> Name {
    (
        entry["scope"].as_str().unwrap_or("space").to_owned(),
        entry["id"].as_str().unwrap_or_default().to_owned(),
        entry["scopeKey"].as_str().unwrap_or_default().to_owned(),
    )
}
