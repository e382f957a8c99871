//! TCP connections before there is a socket: how many there may be, and how long they may take to ask for something. The
//! host hands its listener over; axum's own loop would wait for a slow request for ever.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tower_service::Service;

use crate::server::Server;
use crate::statistics::TurnedAway;

/// Pause after the system refused to accept: usually it is out of file descriptors, and only time gives some back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

impl Server {
    /// Serves `router` on `listener` until `ending` resolves, then stops accepting, lets requests under way finish and
    /// returns. Sockets are ended by [`Server::shut_down`]. Small frames leave at once (no Nagle delay).
    ///
    /// # Errors
    /// None today: what fails is one connection, or passes.
    pub async fn serve(
        self: &Arc<Server>,
        listener: TcpListener,
        router: Router,
        ending: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let places = Arc::new(Semaphore::new(
            self.config().limits.max_connections.min(Semaphore::MAX_PERMITS),
        ));
        let mut connections = JoinSet::new();
        let mut ending = std::pin::pin!(ending);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                () = &mut ending => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_the_peers_fault(&error) => continue,
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                self.statistics().count_turned_away(TurnedAway::Full);
                continue;
            };
            connections.spawn(converse(Arc::clone(self), router.clone(), stream, peer, place));
        }
        drop(listener);
        let grace = self.config().limits.shutdown_grace;
        // What does not end in time is dropped with the set.
        let _ = tokio::time::timeout(grace, async { while connections.join_next().await.is_some() {} }).await;
        Ok(())
    }
}

/// The peer was gone before it was accepted.
fn is_the_peers_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// Answers the requests of one connection; a socket that one of them became takes the place along.
async fn converse(
    server: Arc<Server>,
    router: Router,
    stream: TcpStream,
    peer: SocketAddr,
    place: OwnedSemaphorePermit,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "small frames may be delayed");
    }
    let line = Line {
        allowance: Arc::new(Allowance::unlimited()),
        _place: Arc::new(place),
    };
    let stream = Bounded {
        stream,
        allowance: Arc::clone(&line.allowance),
        stall: server.config().limits.outbound_stall,
        stalled: None,
    };
    let kept = line.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        // A socket outlives this conversation: its place goes with it.
        request.extensions_mut().insert(kept.clone());
        router.clone().call(request)
    });
    let mut draining = std::pin::pin!(server.draining());
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(server.config().limits.request_head)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = &mut draining => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        if error.is_timeout() || error.is_parse() || error.is_incomplete_message() {
            server.statistics().count_turned_away(TurnedAway::NoRequest);
        }
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// A TCP connection, as the socket that it becomes knows it.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) allowance: Arc<Allowance>,
    /// Its place among [`crate::Limits::max_connections`], held until its last holder is gone.
    _place: Arc<OwnedSemaphorePermit>,
}

/// What a TCP connection may take. Bytes that may still be read: a message is put together before anybody sees it, so a socket on which nobody has
/// opened a session is bounded here, where its bytes come in.
#[derive(Debug)]
pub(crate) struct Allowance {
    bytes: AtomicUsize,
    /// The connection has become a socket, which looks after its own writes.
    socket: AtomicBool,
}

impl Allowance {
    const UNLIMITED: usize = usize::MAX;

    fn unlimited() -> Allowance {
        Allowance {
            bytes: AtomicUsize::new(Allowance::UNLIMITED),
            socket: AtomicBool::new(false),
        }
    }

    /// The connection becomes a socket, which may send so much before a session is opened on it.
    pub(crate) fn becomes_socket(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.socket.store(true, Ordering::Relaxed);
    }

    pub(crate) fn lift(&self) {
        self.bytes.store(Allowance::UNLIMITED, Ordering::Relaxed);
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    fn take(&self, bytes: usize) {
        let left = self.bytes.load(Ordering::Relaxed);
        if left != Allowance::UNLIMITED {
            // Only the one reader takes; that the bound is lifted meanwhile must stand.
            let taken = left.saturating_sub(bytes);
            let _ = self
                .bytes
                .compare_exchange(left, taken, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// A stream that ends when its allowance does, and when its peer takes nothing of an answer for too long.
struct Bounded {
    stream: TcpStream,
    allowance: Arc<Allowance>,
    stall: Duration,
    /// Runs while the peer takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Bounded {
    /// Passes the outcome of a write on, unless nothing has come of writes for so long that the peer is given up.
    fn unless_stalled(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() || self.allowance.socket.load(Ordering::Relaxed) {
            self.stalled = None;
            return written;
        }
        let stall = self.stall;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.allowance.is_exhausted() {
            return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.allowance.take(buf.filled().len() - before);
        polled
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.unless_stalled(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.unless_stalled(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
