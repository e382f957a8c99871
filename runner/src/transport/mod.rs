//! How text frames leave and enter this process (WIRE-701): one trait, two carriers.
//!
//! A transport never blocks and never touches runtime state: I/O runs elsewhere and frames cross by channel, because
//! everything above is single-threaded (RUN-1100). [`WebSocketConnector`] speaks to a remote server;
//! [`channel_pair`] joins two ends in one process, and hosts implement [`Transport`] for their own loopback.

mod channel;
mod websocket;

use std::sync::Arc;

use memory_wire::SpaceId;

pub use channel::{ChannelConnector, ChannelPeer, ChannelTransport, channel_pair};
pub use websocket::WebSocketConnector;

/// Called from any thread when a transport has something for [`Transport::poll`].
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// What a transport has for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// A text frame.
    Frame(String),
    /// The connection is gone (or never came up); nothing follows.
    Closed(String),
}

/// One connection. Frames sent before it is up wait inside; order is kept.
pub trait Transport {
    /// Queues a frame. Frames given to a closed transport are dropped: the close event tells.
    fn send(&mut self, frame: String);

    /// The next event, without blocking.
    fn poll(&mut self) -> Option<TransportEvent>;

    /// Ends the connection.
    fn close(&mut self);
}

/// Makes connections.
pub trait Connector {
    /// Starts one for `space`; failures arrive as [`TransportEvent::Closed`].
    fn connect(&self, space: &SpaceId, wake: Wake) -> Box<dyn Transport>;
}
