//! In-process connections (SRV §13): the same text frames, the same dispatcher, no socket. Used by the serving runtime.

use std::sync::Arc;
use std::time::Instant;

use memory_wire::message::parse_client_message;
use tokio::sync::{mpsc, oneshot};

use crate::connection::Connection;
use crate::outbound::{Closing, Next};
use crate::server::Server;
use crate::transport::Inbound;

/// The connection is gone, on one side or the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the loopback connection is closed")]
pub struct LoopbackClosed;

/// Both directions of an in-process connection.
#[derive(Debug)]
pub struct LoopbackConnection {
    sender: LoopbackSender,
    receiver: LoopbackReceiver,
}

/// The sending half; clones send on the same connection. It ends when all of them and the receiver are dropped.
#[derive(Debug, Clone)]
pub struct LoopbackSender {
    frames: mpsc::Sender<Inbound>,
    connection: Arc<Connection>,
    server: Arc<Server>,
}

/// The receiving half. Dropping it closes the connection.
#[derive(Debug)]
pub struct LoopbackReceiver {
    connection: Arc<Connection>,
    server: Arc<Server>,
}

/// What a peer held to a socket's bounds receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A protocol frame.
    Frame(String),
    /// The server asks whether everything before this has arrived; [`LoopbackReceiver::pong`] says so (SRV-314).
    Ping(Vec<u8>),
}

/// Opens an in-process connection.
///
/// # Errors
/// When the server is shutting down.
pub fn connect(server: &Arc<Server>) -> Result<LoopbackConnection, LoopbackClosed> {
    serve(server, server.admit_loopback())
}

/// Opens an in-process connection that is held to the bounds of a socket: a slow reader is skipped and then cut off
/// (SRV-704…706), and what it has not confirmed counts as undelivered when it ends (SRV-314). For peers that stand at the
/// end of another wire: relays, and tests of lost frames.
///
/// # Errors
/// When the server is shutting down.
pub fn connect_as_socket(server: &Arc<Server>) -> Result<LoopbackConnection, LoopbackClosed> {
    serve(server, server.admit_connection())
}

fn serve(
    server: &Arc<Server>,
    connection: Option<Arc<Connection>>,
) -> Result<LoopbackConnection, LoopbackClosed> {
    let connection = connection.ok_or(LoopbackClosed)?;
    let (frames, mut queue) = mpsc::channel::<Inbound>(server.config().limits.inbound_pending_frames.max(1));
    let (owner, served) = (Arc::clone(server), Arc::clone(&connection));
    server.tasks().spawn(async move {
        loop {
            // In this order: the same frames in the same order are always handled alike.
            let frame = tokio::select! {
                biased;
                _ = served.outbound.ending() => None,
                () = owner.draining() => None,
                frame = queue.recv() => frame,
            };
            let Some(frame) = frame else { break };
            frame.handle(&owner, &served).await;
        }
        // From here on senders are refused.
        drop(queue);
        served.outbound.close(Closing::PeerGone);
        owner.retire_connection(&served);
    });
    Ok(LoopbackConnection {
        sender: LoopbackSender {
            frames,
            connection: Arc::clone(&connection),
            server: Arc::clone(server),
        },
        receiver: LoopbackReceiver {
            connection,
            server: Arc::clone(server),
        },
    })
}

impl LoopbackConnection {
    /// Sends one frame; resolves when the server has handled it.
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn send(&self, frame: String) -> Result<(), LoopbackClosed> {
        self.sender.send(frame).await
    }

    /// The next frame from the server; `None` when the connection is closed.
    pub async fn recv(&mut self) -> Option<String> {
        self.receiver.recv().await
    }

    /// Splits the connection, so that one task sends while another receives.
    pub fn split(self) -> (LoopbackSender, LoopbackReceiver) {
        (self.sender, self.receiver)
    }
}

impl LoopbackSender {
    /// Sends one frame; resolves when the server has handled it. The frame is handled also when the future is dropped
    /// after it was accepted.
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn send(&self, frame: String) -> Result<(), LoopbackClosed> {
        let message = parse_client_message(&frame).ok();
        let pending = message.as_ref().and_then(|message| {
            message
                .header()
                .and_then(|header| self.server.pending_frame(&header.space))
                .map(|frame| self.connection.expect(frame))
        });
        let (handled, wait) = oneshot::channel();
        self.frames
            .send(Inbound {
                message,
                arrived: Instant::now(),
                pending,
                permit: None,
                handled: Some(handled),
            })
            .await
            .map_err(|_| LoopbackClosed)?;
        wait.await.map_err(|_| LoopbackClosed)
    }
}

impl LoopbackReceiver {
    /// The next frame from the server, never delivered from within a call of the peer (SRV-1302); `None` when the
    /// connection is closed.
    pub async fn recv(&mut self) -> Option<String> {
        loop {
            match self.receive().await? {
                Received::Frame(text) => return Some(text),
                // A frame handed over is received.
                Received::Ping(payload) => self.pong(&payload),
            }
        }
    }

    /// As [`LoopbackReceiver::recv`], for a peer that answers pings itself.
    pub async fn receive(&mut self) -> Option<Received> {
        match self.connection.outbound.next().await {
            Next::Frame(frame, text) => {
                if self.connection.outbound.written(frame) {
                    self.server.resume_fan_out(&self.connection);
                }
                Some(Received::Frame(text))
            }
            Next::Ping(payload) => Some(Received::Ping(payload)),
            Next::Close(_) => None,
        }
    }

    /// Confirms every frame received before the ping that carried `payload`.
    pub fn pong(&self, payload: &[u8]) {
        self.connection.outbound.pong(payload);
    }
}

impl Drop for LoopbackReceiver {
    fn drop(&mut self) {
        self.connection.outbound.close(Closing::PeerGone);
    }
}
