//! A line between browser and server that a test can cut: bytes pass through until it is cut, and then every
//! connection dies and none is taken.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) struct Line {
    address: SocketAddr,
    up: Arc<watch::Sender<bool>>,
}

impl Line {
    /// A line to `server`.
    pub(crate) async fn to(server: &str) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let up = Arc::new(watch::Sender::new(true));
        let (server, state) = (server.to_owned(), Arc::clone(&up));
        tokio::spawn(async move {
            while let Ok((inbound, _)) = listener.accept().await {
                let mut up = state.subscribe();
                if !*up.borrow() {
                    continue;
                }
                let server = server.clone();
                tokio::spawn(async move {
                    let Ok(outbound) = TcpStream::connect(&server).await else {
                        return;
                    };
                    tokio::select! {
                        // Either way both ends are dropped, which resets what was open.
                        _ = pass(inbound, outbound) => {}
                        _ = up.wait_for(|up| !*up) => {}
                    }
                });
            }
        });
        Line { address, up }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn cut(&self) {
        self.up.send_replace(false);
    }

    pub(crate) fn restore(&self) {
        self.up.send_replace(true);
    }
}

async fn pass(mut a: TcpStream, mut b: TcpStream) -> std::io::Result<(u64, u64)> {
    tokio::io::copy_bidirectional(&mut a, &mut b).await
}
