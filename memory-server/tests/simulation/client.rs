//! One client: a session that outlives its connections, with what it wants watched and what it has yet to hear.

use std::sync::Arc;

use futures_util::FutureExt;
use memory_server::Server;
use serde_json::{Value as Json, json};

use crate::content::owners;
use crate::support::SPACE;
use crate::support::peer::{Peer, Told, Wire};

/// A client.
pub(crate) struct Client {
    pub(crate) session: String,
    pub(crate) principal: String,
    /// The serving loop's own session names instances and reads those of others while its process holds the lease.
    pub(crate) serves: bool,
    wire: Wire,
    peer: Option<Peer>,
    /// What it had been told when the present connection began.
    before: Told,
    /// Frames of the present connection that were searched for foreign content.
    searched: usize,
    /// Requests whose answers were lost with an earlier connection.
    lost: Vec<Json>,
    /// Watches by id, with their roots.
    pub(crate) watches: Vec<(String, Json)>,
    next_local: u64,
    /// The server told it that its session has ended.
    pub(crate) ended: bool,
}

impl Client {
    pub(crate) fn new(session: &str, principal: &str, wire: Wire, serves: bool) -> Client {
        Client {
            session: session.to_owned(),
            principal: principal.to_owned(),
            serves,
            wire,
            peer: None,
            before: fresh(session),
            searched: 0,
            lost: Vec::new(),
            watches: Vec::new(),
            next_local: 1,
            ended: false,
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    /// What it has been told so far.
    pub(crate) fn told(&self) -> Told {
        let mut told = self.before.clone();
        if let Some(peer) = &self.peer {
            told.read(&peer.asked, &peer.heard);
        }
        told
    }

    pub(crate) fn take_local_seq(&mut self) -> u64 {
        self.next_local += 1;
        self.next_local - 1
    }

    /// Sends a request; its answer is heard sometime.
    pub(crate) async fn ask(&mut self, body: Json) {
        match &mut self.peer {
            Some(peer) => {
                if peer.ask(body.clone()).await.is_err() {
                    // The server had ended the connection; the request is sent again over the next one.
                    self.lose(0).await;
                }
            }
            None => self.lost.push(body),
        }
    }

    /// Sends a request and hears everything up to its answer.
    pub(crate) async fn request(&mut self, body: Json) -> Option<Json> {
        let answer = match &mut self.peer {
            Some(peer) => peer.request(body).await,
            None => None,
        };
        self.look();
        if answer.is_none() && self.peer.is_some() {
            self.lose(0).await;
        }
        answer
    }

    /// Hears up to `most` frames that are there.
    pub(crate) async fn hear(&mut self, most: usize) {
        for _ in 0..most {
            let Some(peer) = &mut self.peer else { return };
            match peer.hear().now_or_never() {
                None => break,
                Some(Some(_)) => {}
                Some(None) => {
                    self.look();
                    return self.lose(0).await;
                }
            }
        }
        self.look();
    }

    /// Says how far it has come; the server then knows that everything up to there has arrived.
    pub(crate) async fn acknowledge(&mut self) {
        self.hear(usize::MAX).await;
        let position = self.told().position;
        let session = self.session.clone();
        let acknowledgement =
            json!({ "type": "session.ack", "space": SPACE, "sessionId": session, "seenSeq": position });
        if self.request(acknowledgement).await.is_some()
            && let Some(peer) = &mut self.peer
        {
            peer.confirmed = peer.heard.len();
        }
    }

    /// The connection dies; of the frames the server does not know to have arrived, the last `lost` had not.
    pub(crate) async fn lose(&mut self, lost: usize) {
        let Some(peer) = self.peer.take() else { return };
        let sure = if self.wire == Wire::AsSocket {
            peer.confirmed
        } else {
            peer.heard.len()
        };
        let heard = peer.heard.len().saturating_sub(lost).max(sure);
        for request in peer.unanswered(heard) {
            if request["type"] == "transact"
                || request["type"]
                    .as_str()
                    .is_some_and(|kind| kind.starts_with("session.watch"))
            {
                self.lost.push(request);
            }
        }
        let log = peer.hang_up();
        self.before.read(&log.asked, &log.heard[..heard]);
        self.searched = 0;
        if self.before.is_revoked() {
            self.end();
        }
        self.before.next_connection();
        // The server notices in its own time, but before the next thing happens.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }

    /// The session is over; a new one begins with nothing but what is yet to be sent.
    fn end(&mut self) {
        self.ended = true;
        self.before.forget();
    }

    /// Opens or resumes the session over a new connection, while an old one may still look alive, and sends again what may
    /// not have arrived. False when access is refused.
    pub(crate) async fn connect(&mut self, server: &Arc<Server>, lost: usize) -> bool {
        let standing = match (&self.peer, self.wire) {
            // Abandoned, not hung up: the server learns of its end by the take-over.
            (Some(_), _) => self.abandon(lost),
            (None, _) => None,
        };
        let mut peer = Peer::connect(server, self.wire).await;
        let token = self.before.token.clone();
        let answer = peer
            .open(
                &self.session,
                &self.principal,
                token.as_deref(),
                self.before.position,
            )
            .await
            .expect("a new connection is served");
        drop(standing);
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        // A client that never learns its new token cannot come back to the session: there is nothing to lose here.
        peer.confirmed = peer.heard.len();
        let Some(ok) = answer.get("ok") else {
            let name = answer["error"]["name"].as_str().unwrap_or_default();
            assert!(
                name == "AuthorizationError" || (name == "SessionRevokedError" && token.is_some()),
                "an open is refused for want of access or because the session went to another: {answer}"
            );
            drop(peer);
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            self.end();
            return false;
        };
        let resumed = ok["resumed"] == true;
        self.ended = false;
        self.searched = 0;
        self.peer = Some(peer);
        self.look();
        let lost = std::mem::take(&mut self.lost);
        let mut anew = !resumed;
        for request in &lost {
            if request["type"] == "transact" {
                self.ask(request.clone()).await;
            }
            anew |= request["type"] == "session.watch.set";
        }
        if anew {
            let list = self.watch_list();
            self.ask(list).await;
        } else {
            for request in lost
                .into_iter()
                .filter(|request| request["type"] == "session.watch.add")
            {
                self.ask(request).await;
            }
        }
        true
    }

    fn abandon(&mut self, lost: usize) -> Option<Peer> {
        let mut peer = self.peer.take()?;
        let sure = if self.wire == Wire::AsSocket {
            peer.confirmed
        } else {
            peer.heard.len()
        };
        let heard = peer.heard.len().saturating_sub(lost).max(sure);
        for request in peer.unanswered(heard) {
            if request["type"] == "transact"
                || request["type"]
                    .as_str()
                    .is_some_and(|kind| kind.starts_with("session.watch"))
            {
                self.lost.push(request);
            }
        }
        peer.heard.truncate(heard);
        self.before.read(&peer.asked, &peer.heard);
        if self.before.is_revoked() {
            self.end();
        }
        self.before.next_connection();
        Some(peer)
    }

    /// The whole watch list as a request.
    pub(crate) fn watch_list(&self) -> Json {
        let watches: Vec<Json> = self.watches.iter().map(|(id, roots)| watch(id, roots)).collect();
        json!({ "type": "session.watch.set", "space": SPACE, "sessionId": self.session, "watches": watches })
    }

    /// One further watch as a request.
    pub(crate) fn watch_more(&self, id: &str, roots: &Json) -> Json {
        json!({ "type": "session.watch.add", "space": SPACE, "sessionId": self.session, "watches": [watch(id, roots)] })
    }

    /// Searches what was heard since the last look for what the session may not see.
    fn look(&mut self) {
        let Some(peer) = &self.peer else { return };
        for text in &peer.texts[self.searched..] {
            for owner in owners(text) {
                let may_see = owner == "everyone"
                    || owner == self.principal
                    || owner == format!("{}/{}", self.principal, self.session)
                    || self.serves;
                assert!(
                    may_see,
                    "no foreign row: {} of {} was told content of {owner}: {text}",
                    self.session, self.principal
                );
            }
        }
        self.searched = peer.texts.len();
        // Every promise of the protocol is held against the log at each look.
        let told = self.told();
        if told.is_revoked() {
            self.ended = true;
        }
    }

    /// Texts heard over the present connection from the `from`th on.
    pub(crate) fn texts_from(&self, from: usize) -> &[String] {
        self.peer.as_ref().map_or(&[], |peer| &peer.texts[from..])
    }

    pub(crate) fn heard(&self) -> usize {
        self.peer.as_ref().map_or(0, |peer| peer.texts.len())
    }
}

fn fresh(session: &str) -> Told {
    let mut told = Told::new(session);
    told.lossy = true;
    told
}

fn watch(id: &str, roots: &Json) -> Json {
    json!({ "id": id, "kind": "graph", "query": { "roots": roots } })
}
