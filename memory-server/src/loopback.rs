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
    server: Arc<Server>,
}

/// The receiving half. Dropping it closes the connection.
#[derive(Debug)]
pub struct LoopbackReceiver {
    connection: Arc<Connection>,
}

/// Opens an in-process connection.
///
/// # Errors
/// When the server is shutting down.
pub fn connect(server: &Arc<Server>) -> Result<LoopbackConnection, LoopbackClosed> {
    let connection = server.admit_loopback().ok_or(LoopbackClosed)?;
    let (frames, mut queue) = mpsc::channel::<Inbound>(server.config().limits.inbound_pending_frames);
    let (owner, served) = (Arc::clone(server), Arc::clone(&connection));
    server.runtime().spawn(async move {
        loop {
            let frame = tokio::select! {
                frame = queue.recv() => frame,
                _ = served.outbound.ending() => None,
                () = owner.draining() => None,
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
            server: Arc::clone(server),
        },
        receiver: LoopbackReceiver { connection },
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
            match self.connection.outbound.next().await {
                Next::Frame(frame, text) => {
                    self.connection.outbound.written(frame);
                    return Some(text);
                }
                // In process a frame handed over is received.
                Next::Ping(_) => {}
                Next::Close(_) => return None,
            }
        }
    }
}

impl Drop for LoopbackReceiver {
    fn drop(&mut self) {
        self.connection.outbound.close(Closing::PeerGone);
    }
}
