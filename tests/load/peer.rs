//! A client that costs little, so that one process can hold ten thousand: small buffers, no mirror, frames read as text.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use futures_util::{SinkExt, StreamExt};
use memory_wire::auth::sign_session_open;
use memory_wire::identity::Signer;
use memory_wire::message::{
    ClientCommit, ClientMessage, CommitParts, GraphQuery, Hello, OpenChallenge, RequestHeader, Root,
    ServerMessage, SessionDescriptor, SessionOpen, SessionOpenOk, Transact, Watch, WatchKind, WatchRequest,
    parse_server_message,
};
use memory_wire::{LocalSeq, RequestId, SessionId, SpaceId};
use tests::client::{client_flags, now_seconds};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// How a connection is made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dial {
    /// Size asked of the kernel for the receive buffer; `None` leaves it to the kernel.
    pub(crate) receive_buffer: Option<u32>,
}

/// One connection with at most one session.
pub(crate) struct Peer {
    socket: WebSocketStream<TcpStream>,
    challenge: OpenChallenge,
    next_request: u64,
    next_local: u64,
    session: Option<(SpaceId, SessionId)>,
}

/// Addresses connections come from in turn: closed ones hold their port for a minute, and one address has only so many.
const SOURCES: u32 = 200;

fn next_source() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed) % SOURCES;
    Ipv4Addr::new(127, 0, 1, 1 + u8::try_from(n).unwrap_or_default())
}

/// A WebSocket to `path` of `server`.
pub(crate) async fn dial(server: SocketAddr, path: &str, how: Dial) -> Result<WebSocketStream<TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    if let Some(size) = how.receive_buffer {
        socket.set_recv_buffer_size(size)?;
    }
    socket.bind((next_source(), 0).into())?;
    let stream = socket.connect(server).await.context("connecting")?;
    stream.set_nodelay(true)?;
    let config = WebSocketConfig::default()
        .read_buffer_size(4 * 1024)
        .write_buffer_size(0);
    let (socket, _) =
        tokio_tungstenite::client_async_with_config(format!("ws://{server}{path}"), stream, Some(config))
            .await
            .context("the upgrade")?;
    Ok(socket)
}

impl Peer {
    /// Connects and says hello.
    pub(crate) async fn connect(server: SocketAddr, how: Dial) -> Result<Peer> {
        let mut socket = dial(server, "/api/storage/memory", how).await?;
        socket
            .send(Message::text(
                ClientMessage::Hello(Hello::new(client_flags())).encode()?,
            ))
            .await?;
        let text = next_text(&mut socket).await?;
        match parse_server_message(&text) {
            Ok(ServerMessage::HelloOk(ok)) => Ok(Peer {
                socket,
                challenge: ok.session_open,
                next_request: 0,
                next_local: 1,
                session: None,
            }),
            other => bail!("hello was answered {other:?}"),
        }
    }

    /// Opens a session, or resumes it with `token`.
    pub(crate) async fn open(
        &mut self,
        space: &SpaceId,
        signer: &Signer,
        id: &SessionId,
        token: Option<memory_wire::ids::SessionToken>,
    ) -> Result<SessionOpenOk> {
        let descriptor = SessionDescriptor {
            session_id: Some(id.clone()),
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
        let request_id = self.mint();
        let body = self
            .ask(
                &request_id,
                &ClientMessage::SessionOpen(SessionOpen {
                    request_id: request_id.clone(),
                    space: space.clone(),
                    session: descriptor,
                    invocation: Some(invocation),
                    authorization: Some(authorization),
                }),
            )
            .await?;
        let opened = SessionOpenOk::from_value(&body).map_err(|e| anyhow::anyhow!("{e:?} in {body:?}"))?;
        self.challenge = opened.session_open.clone();
        self.session = Some((space.clone(), opened.session_id.clone()));
        Ok(opened)
    }

    /// Replaces the watches by one over `roots`.
    pub(crate) async fn watch(&mut self, roots: Vec<Root>) -> Result<()> {
        let watch = Watch {
            id: "w".into(),
            kind: WatchKind::Graph,
            query: GraphQuery::of(roots),
        };
        let request_id = self.mint();
        let message = ClientMessage::WatchSet(WatchRequest {
            header: self.header(&request_id)?,
            watches: vec![watch.to_value()],
            views: None,
        });
        self.ask(&request_id, &message).await.map(drop)
    }

    /// A commit as the frame that carries it.
    pub(crate) fn commit_text(&mut self, parts: CommitParts) -> Result<(RequestId, String)> {
        let local = LocalSeq(self.next_local);
        self.next_local += 1;
        let request_id = self.mint();
        let message = ClientMessage::Transact(Transact {
            header: self.header(&request_id)?,
            commit: ClientCommit::build(local, parts).value,
        });
        Ok((request_id, message.encode()?))
    }

    /// Commits and waits for the verdict; returns its seq.
    pub(crate) async fn commit(&mut self, parts: CommitParts) -> Result<u64> {
        let (request_id, text) = self.commit_text(parts)?;
        self.send(text).await?;
        self.verdict(&request_id).await
    }

    /// The seq in the verdict of a commit.
    pub(crate) async fn verdict(&mut self, request_id: &RequestId) -> Result<u64> {
        let body = self.response(request_id).await?;
        body.member("seq")
            .and_then(memory_wire::Value::as_u64)
            .with_context(|| format!("no seq in {body:?}"))
    }

    /// Sends one frame.
    pub(crate) async fn send(&mut self, text: String) -> Result<()> {
        Ok(self.socket.send(Message::text(text)).await?)
    }

    /// The next text frame.
    pub(crate) async fn next_text(&mut self) -> Result<String> {
        next_text(&mut self.socket).await
    }

    /// Answers pings and drops frames until the connection ends.
    pub(crate) async fn stay(mut self) {
        while let Some(Ok(_)) = self.socket.next().await {}
    }

    /// Says goodbye and goes, without waiting for the answer.
    pub(crate) async fn leave(mut self) -> Result<()> {
        Ok(self.socket.close(None).await?)
    }

    fn header(&self, request_id: &RequestId) -> Result<RequestHeader> {
        let (space, session_id) = self.session.clone().context("no session is open")?;
        Ok(RequestHeader {
            request_id: request_id.clone(),
            space,
            session_id,
        })
    }

    fn mint(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId::from(format!("r{}", self.next_request))
    }

    async fn ask(&mut self, request_id: &RequestId, message: &ClientMessage) -> Result<memory_wire::Value> {
        self.send(message.encode()?).await?;
        self.response(request_id).await
    }

    async fn response(&mut self, request_id: &RequestId) -> Result<memory_wire::Value> {
        loop {
            let text = self.next_text().await?;
            if let Ok(ServerMessage::Response(response)) = parse_server_message(&text)
                && response.request_id == *request_id
            {
                return response
                    .result
                    .map_err(|error| anyhow::anyhow!("refused: {error}"));
            }
        }
    }
}

async fn next_text(socket: &mut WebSocketStream<TcpStream>) -> Result<String> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
            Some(Ok(Message::Close(frame))) => bail!("the server closed: {frame:?}"),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => bail!("the connection ended"),
        }
    }
}

/// `toSeq` of an effect frame, without decoding it.
pub(crate) fn effect_seq(text: &str) -> Option<u64> {
    if !text.contains("\"session/effect\"") {
        return None;
    }
    let (_, rest) = text.rsplit_once("\"toSeq\":")?;
    let digits: &str = &rest[..rest.find(|c: char| !c.is_ascii_digit())?];
    digits.parse().ok()
}
