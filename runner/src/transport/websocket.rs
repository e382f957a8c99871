//! The WebSocket carrier (WIRE-701, WIRE-702): tokio-tungstenite on an I/O runtime of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use futures_util::{SinkExt, StreamExt};
use memory_wire::SpaceId;
use memory_wire::scope_key::encode_component;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_tungstenite::tungstenite::protocol::{
    CloseFrame, Message, WebSocketConfig, frame::coding::CloseCode,
};

use super::{Connector, Transport, TransportEvent, Wake};
use crate::error::RunnerError;

/// Path of the socket on the server (WIRE-701).
const SOCKET_PATH: &str = "/api/storage/memory";
/// Largest message taken from a server, in bytes.
const MAX_MESSAGE: usize = 128 << 20;

/// Connects to one server. I/O runs on the given tokio runtime, or on a thread of the connector's own.
pub struct WebSocketConnector {
    url: String,
    handle: Handle,
    /// Keeps the I/O thread of [`WebSocketConnector::spawned`] alive.
    _io: Option<Arc<Runtime>>,
}

impl WebSocketConnector {
    /// A connector whose I/O runs on `handle`. `base` is the server's origin, e.g. `ws://127.0.0.1:8000`.
    pub fn on(handle: Handle, base: &str) -> WebSocketConnector {
        WebSocketConnector {
            url: socket_url(base),
            handle,
            _io: None,
        }
    }

    /// A connector with one I/O thread of its own.
    pub fn spawned(base: &str) -> Result<WebSocketConnector, RunnerError> {
        let io = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("runner-io")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|e| RunnerError::InvalidValue {
                operation: "start I/O thread",
                reason: e.to_string(),
            })?;
        Ok(WebSocketConnector {
            url: socket_url(base),
            handle: io.handle().clone(),
            _io: Some(Arc::new(io)),
        })
    }
}

fn socket_url(base: &str) -> String {
    let base = base.trim_end_matches('/');
    let base = match base.split_once("://") {
        Some(("http", rest)) => format!("ws://{rest}"),
        Some(("https", rest)) => format!("wss://{rest}"),
        Some(_) | None => base.to_owned(),
    };
    format!("{base}{SOCKET_PATH}")
}

impl Connector for WebSocketConnector {
    fn connect(&self, space: &SpaceId, wake: Wake) -> Box<dyn Transport> {
        let url = format!("{}?space={}", self.url, encode_component(space.as_str()));
        let (to_socket, outgoing) = unbounded_channel();
        let (to_client, incoming) = channel();
        self.handle.spawn(async move {
            let reason = carry(&url, outgoing, |event| {
                let delivered = to_client.send(event).is_ok();
                wake();
                delivered
            })
            .await;
            let _ = to_client.send(TransportEvent::Closed(reason));
            wake();
        });
        Box::new(WebSocketTransport {
            outgoing: Some(to_socket),
            incoming,
            closed: false,
        })
    }
}

/// A sync frame carries whole documents and is never split, so frames may be as large as messages.
fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}

/// Runs one socket to its end; answers why it ended.
async fn carry(
    url: &str,
    mut outgoing: UnboundedReceiver<String>,
    deliver: impl Fn(TransportEvent) -> bool,
) -> String {
    let (mut sink, mut stream) =
        match tokio_tungstenite::connect_async_with_config(url, Some(limits()), true).await {
            Ok((socket, _)) => socket.split(),
            Err(error) => return format!("connect failed: {error}"),
        };
    loop {
        tokio::select! {
            frame = outgoing.recv() => match frame {
                Some(frame) => {
                    if let Err(error) = sink.send(Message::text(frame)).await {
                        return format!("send failed: {error}");
                    }
                }
                None => {
                    let close = CloseFrame { code: CloseCode::Normal, reason: "client closed".into() };
                    let _ = sink.send(Message::Close(Some(close))).await;
                    return "closed by client".into();
                }
            },
            message = stream.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    if !deliver(TransportEvent::Frame(text.as_str().to_owned())) {
                        return "client gone".into();
                    }
                }
                Some(Ok(Message::Close(frame))) => {
                    return match frame {
                        Some(frame) => format!("closed by server: {} {}", u16::from(frame.code), frame.reason),
                        None => "closed by server".into(),
                    };
                }
                Some(Ok(Message::Binary(_))) => return "server sent a binary frame".into(),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Err(error)) => return format!("receive failed: {error}"),
                None => return "socket ended".into(),
            },
        }
    }
}

struct WebSocketTransport {
    /// `None` once closed: dropping it ends the socket task.
    outgoing: Option<UnboundedSender<String>>,
    incoming: Receiver<TransportEvent>,
    closed: bool,
}

impl Transport for WebSocketTransport {
    fn send(&mut self, frame: String) {
        if let Some(outgoing) = &self.outgoing {
            // A socket that ended shows as a close in `poll`.
            let _ = outgoing.send(frame);
        }
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        if self.closed {
            return None;
        }
        let event = match self.incoming.try_recv() {
            Ok(event) => event,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => TransportEvent::Closed("I/O task ended".into()),
        };
        self.closed = matches!(event, TransportEvent::Closed(_));
        Some(event)
    }

    fn close(&mut self) {
        self.outgoing = None;
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_origins() {
        assert_eq!(
            socket_url("http://127.0.0.1:8000/"),
            "ws://127.0.0.1:8000/api/storage/memory"
        );
        assert_eq!(socket_url("wss://host"), "wss://host/api/storage/memory");
    }
}
