//! A signed client over a real WebSocket. It keeps every frame it was ever sent, so that a test can search the
//! bytes, and one [`Mirror`] per session.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use futures_util::{SinkExt, StreamExt, stream::SplitSink, stream::SplitStream};
use memory_wire::auth::sign_session_open;
use memory_wire::flags::Flags;
use memory_wire::identity::Signer;
use memory_wire::message::{
    AppliedCommit, ClientCommit, ClientMessage, CommitParts, GraphQuery, Hello, RequestHeader, Root,
    ServerMessage, SessionDescriptor, SessionOpen, SessionOpenOk, Transact, Watch, WatchKind, WatchOk,
    WatchRequest, parse_server_message,
};
use memory_wire::{EntityId, LocalSeq, RequestId, Scope, Seq, SessionId, SpaceId, Value, WireError};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::mirror::Mirror;

/// Longest wait for a frame that must come. Generous, because it only bounds a broken run.
pub const PATIENCE: Duration = Duration::from_secs(60);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Flags of the reference client.
pub fn client_flags() -> Flags {
    Flags {
        sync_schema_table_v2: true,
        commit_preconditions: true,
        pending_read_stacks: true,
        verdict_catch_up_markers: true,
        entity_id_listing: true,
        entity_id_pagination: true,
        entity_id_lookup: true,
        ..Flags::default()
    }
}

/// One connection.
pub struct Client {
    sink: SplitSink<Socket, Message>,
    stream: SplitStream<Socket>,
    /// What the next session open on this connection has to sign.
    challenge: memory_wire::message::OpenChallenge,
    /// What the server advertised.
    pub server_flags: Flags,
    next_request: u64,
    /// Every text frame ever received, in order.
    pub received: Vec<String>,
    /// Frames that arrived while something else was waited for.
    waiting: VecDeque<ServerMessage>,
    mirrors: BTreeMap<(SpaceId, SessionId), Mirror>,
}

/// An open session.
#[derive(Clone, Debug)]
pub struct Session {
    /// Space.
    pub space: SpaceId,
    /// Session id.
    pub id: SessionId,
    /// Token for a resume.
    pub token: memory_wire::ids::SessionToken,
    /// Who it is.
    pub signer: Arc<Signer>,
    /// Next local sequence number.
    pub next_local: u64,
    /// What the open answered.
    pub opened: SessionOpenOk,
}

impl Session {
    fn header(&self, request_id: RequestId) -> RequestHeader {
        RequestHeader {
            request_id,
            space: self.space.clone(),
            session_id: self.id.clone(),
        }
    }
}

/// Unix seconds now.
pub fn now_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

impl Client {
    /// Connects and says hello.
    pub async fn connect(url: &str) -> Result<Client> {
        let (mut sink, mut stream) = Client::connect_raw(url).await?.split();
        sink.send(Message::text(
            ClientMessage::Hello(Hello::new(client_flags())).encode()?,
        ))
        .await?;
        let text = next_text(&mut stream).await?.context("closed before hello.ok")?;
        match parse_server_message(&text).map_err(|e| anyhow::anyhow!("unreadable frame {e:?}: {text}"))? {
            ServerMessage::HelloOk(ok) => Ok(Client {
                sink,
                stream,
                challenge: ok.session_open,
                server_flags: ok.flags,
                next_request: 1,
                received: vec![text],
                waiting: VecDeque::new(),
                mirrors: BTreeMap::new(),
            }),
            other => bail!("hello was answered {other:?}"),
        }
    }

    /// A bare socket, for hostile frames.
    pub async fn connect_raw(url: &str) -> Result<Socket> {
        Ok(tokio_tungstenite::connect_async(url)
            .await
            .with_context(|| format!("connecting to {url}"))?
            .0)
    }

    /// Opens a fresh session with a minted id.
    pub async fn open(&mut self, space: &SpaceId, signer: &Arc<Signer>) -> Result<Session> {
        let id = SessionId::from(uuid::Uuid::new_v4().to_string());
        self.open_as(space, signer, id, None, None)
            .await?
            .map_err(|e| anyhow::anyhow!("session.open refused: {e:?}"))
    }

    /// Resumes a session, on this or another connection, from `seen`.
    pub async fn resume(
        &mut self,
        session: &Session,
        seen: Seq,
    ) -> Result<std::result::Result<Session, WireError>> {
        let opened = self
            .open_as(
                &session.space,
                &session.signer,
                session.id.clone(),
                Some(session.token.clone()),
                Some(seen),
            )
            .await?;
        Ok(opened.map(|s| Session {
            next_local: session.next_local,
            ..s
        }))
    }

    /// `session.open` with everything spelled out.
    pub async fn open_as(
        &mut self,
        space: &SpaceId,
        signer: &Arc<Signer>,
        id: SessionId,
        token: Option<memory_wire::ids::SessionToken>,
        seen: Option<Seq>,
    ) -> Result<std::result::Result<Session, WireError>> {
        let descriptor = SessionDescriptor {
            session_id: Some(id),
            seen_seq: seen.map(|s| s.0 as f64),
            session_token: token,
            ..SessionDescriptor::default()
        };
        let (invocation, authorization) = sign_session_open(
            signer,
            space,
            &self.challenge.audience,
            &self.challenge.value,
            &descriptor.to_value(),
            now_seconds(),
        );
        let request_id = self.mint_request();
        let message = ClientMessage::SessionOpen(SessionOpen {
            request_id: request_id.clone(),
            space: space.clone(),
            session: descriptor,
            invocation: Some(invocation),
            authorization: Some(authorization),
        });
        self.send(&message).await?;
        match self.response(&request_id).await? {
            Err(error) => Ok(Err(error)),
            Ok(body) => {
                let opened =
                    SessionOpenOk::from_value(&body).map_err(|e| anyhow::anyhow!("{e:?} in {body:?}"))?;
                self.challenge = opened.session_open.clone();
                let session = Session {
                    space: space.clone(),
                    id: opened.session_id.clone(),
                    token: opened.session_token.clone(),
                    signer: Arc::clone(signer),
                    next_local: 1,
                    opened,
                };
                let mirror = self
                    .mirrors
                    .entry((space.clone(), session.id.clone()))
                    .or_default();
                if let Some(sync) = &session.opened.sync {
                    mirror.apply(sync);
                }
                Ok(Ok(session))
            }
        }
    }

    /// The challenge that the next open has to sign.
    pub fn challenge(&self) -> &memory_wire::message::OpenChallenge {
        &self.challenge
    }

    /// A request id not used before on this connection.
    pub fn mint_request(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId::from(format!("r{}", self.next_request))
    }

    /// Sends one message.
    pub async fn send(&mut self, message: &ClientMessage) -> Result<()> {
        self.send_text(message.encode()?).await
    }

    /// Sends one text frame as it is.
    pub async fn send_text(&mut self, text: String) -> Result<()> {
        Ok(self.sink.send(Message::text(text)).await?)
    }

    /// The next message of any kind.
    pub async fn next(&mut self) -> Result<ServerMessage> {
        if let Some(message) = self.waiting.pop_front() {
            return Ok(message);
        }
        self.receive().await
    }

    async fn receive(&mut self) -> Result<ServerMessage> {
        let text = next_text(&mut self.stream)
            .await?
            .context("the server closed the connection")?;
        let message =
            parse_server_message(&text).map_err(|e| anyhow::anyhow!("unreadable frame {e:?}: {text}"))?;
        self.received.push(text);
        if let ServerMessage::Effect(effect) = &message {
            self.mirrors
                .entry((effect.space.clone(), effect.session_id.clone()))
                .or_default()
                .apply(&effect.sync);
        }
        Ok(message)
    }

    /// The answer to one request; frames that come first are applied to their mirrors and kept for [`Client::next`].
    pub async fn response(
        &mut self,
        request_id: &RequestId,
    ) -> Result<std::result::Result<Value, WireError>> {
        loop {
            match self.receive().await? {
                ServerMessage::Response(response) if response.request_id == *request_id => {
                    return Ok(response.result);
                }
                other => self.waiting.push_back(other),
            }
        }
    }

    /// Sends a commit without waiting for its verdict.
    pub async fn submit(
        &mut self,
        session: &mut Session,
        parts: CommitParts,
    ) -> Result<(RequestId, LocalSeq)> {
        let local = LocalSeq(session.next_local);
        session.next_local += 1;
        let request = self
            .submit_value(session, ClientCommit::build(local, parts).value)
            .await?;
        Ok((request, local))
    }

    /// Sends a commit value as it is.
    pub async fn submit_value(&mut self, session: &Session, commit: Value) -> Result<RequestId> {
        let request_id = self.mint_request();
        self.send(&ClientMessage::Transact(Transact {
            header: session.header(request_id.clone()),
            commit,
        }))
        .await?;
        Ok(request_id)
    }

    /// Commits and waits for the verdict.
    pub async fn transact(
        &mut self,
        session: &mut Session,
        parts: CommitParts,
    ) -> Result<std::result::Result<AppliedCommit, WireError>> {
        let (request, _) = self.submit(session, parts).await?;
        match self.response(&request).await? {
            Ok(body) => Ok(Ok(
                AppliedCommit::from_value(&body).map_err(|e| anyhow::anyhow!("{e:?} in {body:?}"))?
            )),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Replaces the watches by one graph watch over `roots`.
    pub async fn watch(&mut self, session: &Session, roots: Vec<Root>) -> Result<WatchOk> {
        let watch = Watch {
            id: "w".into(),
            kind: WatchKind::Graph,
            query: GraphQuery::of(roots),
        };
        let request_id = self.mint_request();
        let message = ClientMessage::WatchSet(WatchRequest {
            header: session.header(request_id.clone()),
            watches: vec![watch.to_value()],
            views: None,
        });
        self.send(&message).await?;
        let body = self
            .response(&request_id)
            .await?
            .map_err(|e| anyhow::anyhow!("session.watch.set refused: {e:?}"))?;
        let ok = WatchOk::from_value(&body).map_err(|e| anyhow::anyhow!("{e:?} in {body:?}"))?;
        self.mirrors
            .entry((session.space.clone(), session.id.clone()))
            .or_default()
            .apply(&ok.sync);
        Ok(ok)
    }

    /// What a session holds.
    pub fn mirror(&self, session: &Session) -> &Mirror {
        static EMPTY: std::sync::OnceLock<Mirror> = std::sync::OnceLock::new();
        self.mirrors
            .get(&(session.space.clone(), session.id.clone()))
            .unwrap_or_else(|| EMPTY.get_or_init(Mirror::default))
    }

    /// Receives until `done` holds of the session's mirror.
    pub async fn until(
        &mut self,
        session: &Session,
        what: &str,
        done: impl Fn(&Mirror) -> bool,
    ) -> Result<()> {
        while !done(self.mirror(session)) {
            self.receive()
                .await
                .with_context(|| format!("waiting until {what}"))?;
        }
        Ok(())
    }

    /// Waits until the watermark has passed `seq`: everything computed from it has been pushed (SS-587). The
    /// session must watch the watermark document.
    pub async fn settled(&mut self, session: &Session, seq: Seq) -> Result<()> {
        let id = EntityId::from(memory_wire::well_known::WATERMARK_DOCUMENT);
        self.until(session, &format!("the watermark passes {seq}"), |mirror| {
            let w = mirror
                .value(&id, Scope::Space)
                .and_then(|v| v.member("seq"))
                .and_then(Value::as_u64);
            w.is_some_and(|w| w >= seq.0)
        })
        .await
    }

    /// True when `needle` occurs in any byte this connection was ever sent.
    pub fn was_ever_sent(&self, needle: &str) -> bool {
        self.received.iter().any(|frame| frame.contains(needle))
    }

    /// Drops the connection without a close handshake, as a lost network does.
    pub fn drop_connection(self) {}

    /// Receives until the server closes, and returns the close code.
    pub async fn closed(mut self) -> Result<Option<u16>> {
        loop {
            match tokio::time::timeout(PATIENCE, self.stream.next())
                .await
                .context("no close")?
            {
                Some(Ok(Message::Close(frame))) => return Ok(frame.map(|f| f.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Ok(None),
            }
        }
    }
}

/// The next text frame; `None` when the server closed. Keep-alive frames do not extend the wait.
async fn next_text(stream: &mut SplitStream<Socket>) -> Result<Option<String>> {
    let wanted = async {
        loop {
            match stream.next().await {
                Some(Ok(Message::Text(text))) => return Ok(Some(text.to_string())),
                Some(Ok(Message::Close(_))) | None => return Ok(None),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
            }
        }
    };
    tokio::time::timeout(PATIENCE, wanted)
        .await
        .context("no frame came")?
}
