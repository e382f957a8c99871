//! WebSocket transport: one reader, one dispatcher and one writer task per socket (SRV-101…109, SRV-704…707). The
//! reader parses frames as they arrive and stops reading while too many wait; the dispatcher handles them strictly in
//! order; the writer drains the outbound queue, pings, and closes. Clients ignore close codes and reconnect (SRV-108): they
//! are for people and metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use memory_wire::error::SocketClose;
use memory_wire::message::{ClientMessage, parse_client_message};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::{self, error::ProtocolError};

use crate::connection::{Connection, Negotiation};
use crate::listener::Line;
use crate::outbound::{Closing, Next};
use crate::server::Server;
use crate::space::PendingFrame;
use crate::spans;

/// Where the socket is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mount {
    /// The production route, with its first-frame stage (SRV-101, SRV-103).
    Production,
    /// A test or embedded host without first-frame stage (SRV-109).
    Standalone,
}

impl Mount {
    /// A close reason as this mount spells it: the standalone host's begin in lower case (WIRE-702).
    fn spelled(self, reason: &str) -> String {
        match self {
            Mount::Production => reason.to_owned(),
            Mount::Standalone => reason.replacen("Memory", "memory", 1),
        }
    }
}

/// Frames larger than this are parsed off the network threads.
const PARSE_INLINE: usize = 256 * 1024;

/// Time a closing handshake may take before the socket is dropped.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// A frame on its way to the dispatcher.
pub(crate) struct Inbound {
    /// `None` when the text is no message (SRV-111).
    pub(crate) message: Option<ClientMessage>,
    pub(crate) arrived: Instant,
    /// Counts as pending in its space until handled (SRV-110).
    pub(crate) pending: Option<Arc<PendingFrame>>,
    /// Share of the connection's inbound byte bound (SRV-707).
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// Told when the frame has been handled.
    pub(crate) handled: Option<oneshot::Sender<()>>,
}

/// Answers an upgrade request, or what is not one.
pub(crate) fn upgrade(
    server: Arc<Server>,
    mount: Mount,
    line: Option<Extension<Line>>,
    request: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match request {
        Ok(upgrade) => upgrade,
        Err(_) => {
            return match mount {
                Mount::Production => (
                    StatusCode::UPGRADE_REQUIRED,
                    [(header::UPGRADE, "websocket"), (header::CONNECTION, "upgrade")],
                    "memory websocket endpoint",
                )
                    .into_response(),
                Mount::Standalone => "memory websocket endpoint".into_response(),
            };
        }
    };
    let admitted = server.admit_connection();
    server.statistics().count_upgrade(admitted.is_some());
    let Some(connection) = admitted else {
        return (StatusCode::SERVICE_UNAVAILABLE, "memory server is going away").into_response();
    };
    let limits = &server.config().limits;
    let limit = limits.max_inbound_message;
    let line = line.map(|Extension(line)| line);
    if let Some(line) = &line {
        line.allowance.becomes_socket(limits.unopened_bytes);
        connection.bound_by(Arc::clone(&line.allowance));
    }
    upgrade
        .read_buffer_size(limits.read_buffer.max(1024))
        .write_buffer_size(0)
        .max_message_size(limit)
        .max_frame_size(limit)
        .on_failed_upgrade({
            let (server, connection) = (Arc::clone(&server), Arc::clone(&connection));
            move |error| {
                tracing::debug!(connection = %connection.id, %error, "upgrade failed");
                server.retire_connection(&connection);
            }
        })
        .on_upgrade(async move |socket| {
            serve(server, connection, socket, mount).await;
            drop(line);
        })
}

async fn serve(server: Arc<Server>, connection: Arc<Connection>, socket: WebSocket, mount: Mount) {
    let setup = spans::socket_setup();
    let (sink, stream) = socket.split();
    let (frames, queue) = mpsc::channel(server.config().limits.inbound_pending_frames.max(1));
    let writer = tokio::spawn(write(Arc::clone(&server), Arc::clone(&connection), sink, mount));
    let dispatcher = spawn_dispatcher(Arc::clone(&server), Arc::clone(&connection), queue);
    drop(setup);
    let end = Reader {
        server: &server,
        connection: &connection,
        frames,
        mount,
    }
    .run(stream)
    .await;
    // Frames that arrived before the end are still executed, in order; their answers may be lost (SRV-107).
    if let Err(error) = dispatcher.await {
        tracing::error!(connection = %connection.id, %error, "dispatcher ended abnormally");
    }
    connection.outbound.close(end);
    if let Err(error) = writer.await {
        tracing::error!(connection = %connection.id, %error, "writer ended abnormally");
    }
    server.retire_connection(&connection);
}

/// Handles a connection's frames one at a time, in arrival order, until no more can come (SRV-110).
fn spawn_dispatcher(
    server: Arc<Server>,
    connection: Arc<Connection>,
    mut queue: mpsc::Receiver<Box<Inbound>>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(frame) = queue.recv().await {
            // On the heap while it runs: most connections are idle most of the time, and would keep its place.
            Box::pin(frame.handle(&server, &connection)).await;
        }
    })
}

impl Inbound {
    /// Has the frame answered, and accounts for it.
    pub(crate) async fn handle(self, server: &Arc<Server>, connection: &Arc<Connection>) {
        let Inbound {
            message,
            arrived,
            pending,
            permit,
            handled,
        } = self;
        let started = Instant::now();
        server.note_frame_wait(started.duration_since(arrived));
        crate::dispatch::handle(server, connection, message).await;
        server.note_frame_work(started.elapsed());
        drop((pending, permit));
        if let Some(handled) = handled {
            // The waiter may have gone; nothing depends on it then.
            let _ = handled.send(());
        }
    }
}

/// How far the first-frame stage has come (SRV-103). `First → Negotiating → Open`; standalone starts at `Open`.
enum Stage {
    First,
    Negotiating {
        buffered: usize,
        handled: oneshot::Receiver<()>,
    },
    Open,
}

/// True while the first frame is being handled.
fn is_pending(handled: &mut oneshot::Receiver<()>) -> bool {
    matches!(handled.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

struct Reader<'a> {
    server: &'a Arc<Server>,
    connection: &'a Arc<Connection>,
    /// Boxed, because the channel keeps room for a block of them for as long as the connection lives.
    frames: mpsc::Sender<Box<Inbound>>,
    mount: Mount,
}

impl Reader<'_> {
    /// Reads until the socket, the peer or the server ends; returns how the writer is to finish.
    async fn run(self, mut stream: SplitStream<WebSocket>) -> Closing {
        let limits = &self.server.config().limits;
        let bytes = Arc::new(Semaphore::new(
            limits.inbound_pending_bytes.min(Semaphore::MAX_PERMITS),
        ));
        let mut stage = match self.mount {
            Mount::Production => Stage::First,
            Mount::Standalone => Stage::Open,
        };
        let mut pinged = false;
        let mut deadline = tokio::time::Instant::now() + limits.keep_alive;
        let hello = tokio::time::Instant::now() + limits.hello_deadline;
        let mut greeted = false;
        loop {
            greeted = greeted || self.connection.negotiation() != Negotiation::AwaitHello;
            let message = tokio::select! {
                message = stream.next() => message,
                () = tokio::time::sleep_until(deadline) => {
                    if pinged {
                        return Closing::Now(SocketClose::NoPong);
                    }
                    pinged = true;
                    deadline = tokio::time::Instant::now() + limits.keep_alive;
                    self.connection.outbound.ask_ping();
                    continue;
                }
                // Pings that are answered keep a socket alive; they do not excuse it from saying what it wants.
                () = tokio::time::sleep_until(hello), if !greeted => {
                    if self.connection.negotiation() == Negotiation::AwaitHello {
                        return Closing::Now(SocketClose::NoHello);
                    }
                    continue;
                }
                closing = self.connection.outbound.ending() => return closing,
                () = self.server.draining() => return Closing::AfterQueue(SocketClose::GoingAway),
            };
            let message = match message {
                Some(Ok(message)) => message,
                Some(Err(error)) => return self.read_failure(error),
                None => return Closing::PeerGone,
            };
            pinged = false;
            deadline = tokio::time::Instant::now() + limits.keep_alive;
            match message {
                Message::Text(text) => match self.receive(text.as_str(), &mut stage, &bytes).await {
                    Ok(()) => {}
                    Err(closing) => return closing,
                },
                Message::Binary(_) => {
                    let ignored = match &mut stage {
                        Stage::First => return Closing::Now(SocketClose::SetupFailure),
                        Stage::Negotiating { handled, .. } => is_pending(handled),
                        Stage::Open => false,
                    };
                    if !ignored {
                        return Closing::Now(SocketClose::BinaryFrame);
                    }
                }
                Message::Pong(payload) => self.connection.outbound.pong(&payload),
                Message::Ping(_) => {}
                Message::Close(_) => return Closing::PeerGone,
            }
        }
    }

    async fn receive(&self, text: &str, stage: &mut Stage, bytes: &Arc<Semaphore>) -> Result<(), Closing> {
        let limits = &self.server.config().limits;
        let arrived = Instant::now();
        self.server.statistics().count_received(text.len());
        if self.connection.is_guest() && self.connection.outbound.queued_bytes() > limits.negotiation_buffer {
            // Whoever is not even known yet may not have answers pile up either.
            return Err(Closing::Now(SocketClose::OutboundBuffer));
        }
        let message = parse(self.server, text).await;
        let mut handled = None;
        match stage {
            Stage::First => {
                if message.is_none() {
                    return Err(Closing::Now(SocketClose::NotMemoryProtocol));
                }
                let (done, wait) = oneshot::channel();
                handled = Some(done);
                *stage = Stage::Negotiating {
                    buffered: 0,
                    handled: wait,
                };
            }
            Stage::Negotiating {
                buffered,
                handled: wait,
            } => {
                if is_pending(wait) {
                    *buffered += text.len();
                    if *buffered > limits.negotiation_buffer {
                        return Err(Closing::Now(SocketClose::NegotiationBuffer));
                    }
                } else {
                    *stage = Stage::Open;
                }
            }
            Stage::Open => {}
        }
        // A frame above the bound takes all of it.
        let share = u32::try_from(text.len().min(limits.inbound_pending_bytes)).unwrap_or(u32::MAX);
        let permit = Arc::clone(bytes).acquire_many_owned(share).await.ok();
        let pending = message
            .as_ref()
            .and_then(ClientMessage::header)
            // Whoever has no session in a space cannot hold up its pushes.
            .filter(|header| {
                self.connection
                    .session(&header.space, &header.session_id)
                    .is_some()
            })
            .and_then(|header| self.server.pending_frame(&header.space))
            .map(|frame| self.connection.expect(frame));
        self.frames
            .send(Box::new(Inbound {
                message,
                arrived,
                pending,
                permit,
                handled,
            }))
            .await
            .map_err(|_| Closing::Now(SocketClose::ReceiveFailure))
    }

    fn read_failure(&self, error: axum::Error) -> Closing {
        tracing::debug!(connection = %self.connection.id, %error, "read failed");
        if self.connection.is_over_its_allowance() {
            return Closing::Now(SocketClose::NegotiationBuffer);
        }
        fault_of(error).map_or(Closing::PeerGone, Closing::Now)
    }
}

/// What the peer did against the protocol, as the library beneath has noticed; `None` when the socket merely died.
fn fault_of(error: axum::Error) -> Option<SocketClose> {
    match *error.into_inner().downcast::<tungstenite::Error>().ok()? {
        tungstenite::Error::Capacity(_) => Some(SocketClose::MessageTooLarge),
        tungstenite::Error::Utf8(_) => Some(SocketClose::InvalidText),
        // Networks do that.
        tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        tungstenite::Error::Protocol(_) | tungstenite::Error::AttackAttempt => Some(SocketClose::BadFrame),
        _ => None,
    }
}

/// Parses a frame. A large one is many times as large as a value, so only so many of them are parsed at once: strangers
/// may send them too.
async fn parse(server: &Server, text: &str) -> Option<ClientMessage> {
    if text.len() <= PARSE_INLINE {
        return parse_client_message(text).ok();
    }
    let place = server.large_parse_permit().await;
    let text = text.to_owned();
    tokio::task::spawn_blocking(move || {
        let message = parse_client_message(&text).ok();
        drop(place);
        message
    })
    .await
    .ok()
    .flatten()
}

async fn write(
    server: Arc<Server>,
    connection: Arc<Connection>,
    mut sink: SplitSink<WebSocket, Message>,
    mount: Mount,
) {
    let limits = &server.config().limits;
    loop {
        match connection.outbound.next().await {
            Next::Frame(frame, text) => {
                let bytes = text.len();
                let stall = limits.patience_with(bytes);
                let sent = tokio::select! {
                    sent = tokio::time::timeout(stall, sink.send(Message::Text(text.into()))) => sent,
                    closing = connection.outbound.ending() => {
                        connection.outbound.write_failed(frame);
                        return finish(&server, &connection, sink, closing, mount).await;
                    }
                };
                match sent {
                    Ok(Ok(())) => {
                        server.statistics().count_sent(bytes);
                        if connection.outbound.written(frame) {
                            server.resume_fan_out(&connection);
                        }
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(connection = %connection.id, %error, "write failed");
                        connection.outbound.write_failed(frame);
                        return;
                    }
                    Err(_) => {
                        connection.outbound.write_failed(frame);
                        return finish(
                            &server,
                            &connection,
                            sink,
                            Closing::Now(SocketClose::OutboundBuffer),
                            mount,
                        )
                        .await;
                    }
                }
            }
            Next::Ping(payload) => {
                let ping = sink.send(Message::Ping(payload.into()));
                if !matches!(
                    tokio::time::timeout(limits.outbound_stall, ping).await,
                    Ok(Ok(()))
                ) {
                    connection.outbound.close(Closing::PeerGone);
                    return;
                }
            }
            Next::Close(closing) => return finish(&server, &connection, sink, closing, mount).await,
        }
    }
}

/// Ends the socket: with a close frame where the server decided, silently where the peer is gone.
async fn finish(
    server: &Server,
    connection: &Connection,
    mut sink: SplitSink<WebSocket, Message>,
    closing: Closing,
    mount: Mount,
) {
    let close = match closing {
        Closing::Now(close) | Closing::AfterQueue(close) => close,
        Closing::PeerGone => return,
    };
    server.statistics().count_close(close);
    tracing::debug!(connection = %connection.id, code = close.code(), reason = close.reason(), "closing");
    let frame = Message::Close(Some(CloseFrame {
        code: close.code(),
        reason: mount.spelled(close.reason()).into(),
    }));
    // A peer that does not read cannot be told why.
    let _ = tokio::time::timeout(CLOSE_GRACE, sink.send(frame)).await;
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::config::{ServerConfig, Stores};

    #[tokio::test]
    async fn only_so_many_large_frames_are_parsed_at_once() {
        let config = ServerConfig::new("did:key:z".into(), Stores::Memory);
        let server = Server::new(config).expect("inside a runtime");
        let frame = |padding: usize| {
            let padding = "x".repeat(padding);
            format!(r#"fvj1:{{"type":"hello","protocol":"memory","flags":{{}},"x":"{padding}"}}"#)
        };
        let mut places = Vec::new();
        while let Some(place) = server.large_parse_permit().now_or_never() {
            places.push(place);
        }
        assert!(!places.is_empty(), "some may be parsed");
        let large = frame(PARSE_INLINE);
        assert!(parse(&server, &large).now_or_never().is_none(), "waits");
        assert!(
            parse(&server, &frame(1)).await.is_some(),
            "small ones do not wait"
        );
        drop(places);
        assert!(parse(&server, &large).await.is_some());
    }
}
