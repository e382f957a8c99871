//! The in-process carrier: two channels and a wake.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use memory_wire::SpaceId;

use super::{Connector, Transport, TransportEvent, Wake};

/// The client's end.
pub struct ChannelTransport {
    outgoing: Option<Sender<String>>,
    incoming: Receiver<String>,
    closed: bool,
}

/// The other end; `Send`, so a server task or thread can hold it.
pub struct ChannelPeer {
    outgoing: Sender<String>,
    incoming: Receiver<String>,
    wake: Wake,
}

/// Two joined ends; `wake` is called whenever the peer sends or hangs up.
pub fn channel_pair(wake: Wake) -> (ChannelTransport, ChannelPeer) {
    let (to_peer, from_client) = channel();
    let (to_client, from_peer) = channel();
    let transport = ChannelTransport {
        outgoing: Some(to_peer),
        incoming: from_peer,
        closed: false,
    };
    (
        transport,
        ChannelPeer {
            outgoing: to_client,
            incoming: from_client,
            wake,
        },
    )
}

impl Transport for ChannelTransport {
    fn send(&mut self, frame: String) {
        if let Some(outgoing) = &self.outgoing {
            // A hung-up peer shows as a close in `poll`.
            let _ = outgoing.send(frame);
        }
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        if self.closed {
            return None;
        }
        match self.incoming.try_recv() {
            Ok(frame) => Some(TransportEvent::Frame(frame)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.closed = true;
                Some(TransportEvent::Closed("peer hung up".into()))
            }
        }
    }

    fn close(&mut self) {
        self.outgoing = None;
        self.closed = true;
    }
}

impl ChannelPeer {
    /// Sends a frame to the client; false when it is gone.
    pub fn send(&self, frame: String) -> bool {
        let sent = self.outgoing.send(frame).is_ok();
        (self.wake)();
        sent
    }

    /// The next frame from the client, if one is here.
    pub fn try_recv(&self) -> Option<String> {
        self.incoming.try_recv().ok()
    }

    /// Waits for the next frame; `None` when the client is gone.
    pub fn recv(&self) -> Option<String> {
        self.incoming.recv().ok()
    }

    /// Waits for the next frame up to `timeout`; `Err(())` when the client is gone.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<String>, PeerGone> {
        match self.incoming.recv_timeout(timeout) {
            Ok(frame) => Ok(Some(frame)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(PeerGone),
        }
    }
}

impl Drop for ChannelPeer {
    fn drop(&mut self) {
        // Replace the sender first, so that the client sees the hang-up when it wakes.
        let (gone, _) = channel();
        self.outgoing = gone;
        (self.wake)();
    }
}

/// The client's end was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerGone;

type Accept = dyn Fn(&SpaceId, ChannelPeer);

/// Connects by handing the other end of a fresh pair to `accept`.
pub struct ChannelConnector {
    accept: Box<Accept>,
}

impl ChannelConnector {
    /// A connector whose peers go to `accept`.
    pub fn new(accept: impl Fn(&SpaceId, ChannelPeer) + 'static) -> ChannelConnector {
        ChannelConnector {
            accept: Box::new(accept),
        }
    }
}

impl Connector for ChannelConnector {
    fn connect(&self, space: &SpaceId, wake: Wake) -> Box<dyn Transport> {
        let (transport, peer) = channel_pair(wake);
        (self.accept)(space, peer);
        Box::new(transport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn frames_cross_in_order_and_hang_up_shows_once() {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let (mut client, peer) = channel_pair(Arc::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        }));
        client.send("a".into());
        assert_eq!(peer.try_recv().as_deref(), Some("a"));
        assert!(peer.send("b".into()));
        drop(peer);
        assert_eq!(client.poll(), Some(TransportEvent::Frame("b".into())));
        assert!(matches!(client.poll(), Some(TransportEvent::Closed(_))));
        assert_eq!(client.poll(), None);
        assert_eq!(woken.load(Ordering::SeqCst), 2);
    }
}
