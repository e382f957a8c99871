//! TCP connections before there is a socket: how many there may be, and how long they may take to ask for something. The
//! host hands its listener over; axum's own loop would wait for a slow request for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
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
        let places = Arc::new(Semaphore::new(self.config().limits.max_connections));
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
    let place = Arc::new(place);
    let kept = Arc::clone(&place);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        // A socket outlives this conversation: its place goes with it.
        request.extensions_mut().insert(Place(Arc::clone(&kept)));
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
    drop(place);
}

/// The place of a connection among [`crate::Limits::max_connections`], held until its last holder is gone.
#[derive(Debug, Clone)]
pub(crate) struct Place(#[allow(dead_code, reason = "held, never looked at")] Arc<OwnedSemaphorePermit>);
