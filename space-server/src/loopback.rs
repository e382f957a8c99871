//! The runner's transport over the server's in-process connections: same frames, same signatures, same access checks,
//! no socket (SRV-1301). Frames to the server cross by channel; frames from it are taken from the connection's own
//! queue when the runtime pumps, so that what the server queued by now is what the runtime sees now (SS-555).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake as TaskWake, Waker};

use memory_server::Server;
use memory_server::loopback::{self, LoopbackReceiver, LoopbackSender};
use memory_wire::SpaceId;
use runner::transport::{Connector, Transport, TransportEvent, Wake};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// Connects runtimes of this process to its server. What they send is pumped on the server's executor.
#[derive(Clone, Debug)]
pub struct LoopbackConnector {
    server: Arc<Server>,
    executor: Handle,
}

impl LoopbackConnector {
    /// A connector whose frames are pumped on `executor`.
    pub fn new(server: Arc<Server>, executor: Handle) -> LoopbackConnector {
        LoopbackConnector { server, executor }
    }
}

impl Connector for LoopbackConnector {
    fn connect(&self, _space: &SpaceId, wake: Wake) -> Box<dyn Transport> {
        match loopback::connect(&self.server) {
            Ok(connection) => {
                let (sender, receiver) = connection.split();
                let (outgoing, to_server) = mpsc::unbounded_channel();
                self.executor.spawn(pump_out(sender, to_server));
                Box::new(Loopback {
                    outgoing: Some(outgoing),
                    incoming: Some(receive(receiver)),
                    waker: Waker::from(Arc::new(Ring(wake))),
                    failure: None,
                })
            }
            Err(closed) => {
                wake();
                Box::new(Loopback {
                    outgoing: None,
                    incoming: None,
                    waker: Waker::noop().clone(),
                    failure: Some(closed.to_string()),
                })
            }
        }
    }
}

async fn pump_out(sender: LoopbackSender, mut frames: UnboundedReceiver<String>) {
    while let Some(frame) = frames.recv().await {
        if sender.send(frame).await.is_err() {
            return;
        }
    }
}

/// The next frame, with the receiver it came from.
type Receive = Pin<Box<dyn Future<Output = (LoopbackReceiver, Option<String>)> + Send>>;

fn receive(mut receiver: LoopbackReceiver) -> Receive {
    // What is queued is taken now, however much the loop's task has done in this turn of its executor.
    Box::pin(tokio::task::unconstrained(async move {
        let frame = receiver.recv().await;
        (receiver, frame)
    }))
}

/// Wakes the runtime's thread when a frame is there to be polled.
struct Ring(Wake);

impl TaskWake for Ring {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// The runtime's end. Dropping or closing it closes the connection.
struct Loopback {
    outgoing: Option<UnboundedSender<String>>,
    incoming: Option<Receive>,
    waker: Waker,
    /// Why there never was a connection, until it is told.
    failure: Option<String>,
}

impl Transport for Loopback {
    fn send(&mut self, frame: String) {
        if let Some(outgoing) = &self.outgoing {
            // A connection that is gone tells through its close event.
            let _ = outgoing.send(frame);
        }
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        if let Some(failure) = self.failure.take() {
            return Some(TransportEvent::Closed(failure));
        }
        match self
            .incoming
            .as_mut()?
            .as_mut()
            .poll(&mut Context::from_waker(&self.waker))
        {
            Poll::Pending => None,
            Poll::Ready((receiver, Some(frame))) => {
                self.incoming = Some(receive(receiver));
                Some(TransportEvent::Frame(frame))
            }
            Poll::Ready((_, None)) => {
                self.incoming = None;
                self.outgoing = None;
                Some(TransportEvent::Closed("the server closed the connection".into()))
            }
        }
    }

    fn close(&mut self) {
        self.outgoing = None;
        self.incoming = None;
        self.failure = None;
    }
}
