//! Faults that users of systems like this one met, each by its symptom: nothing here may happen. What concerns sockets,
//! the store or the serving loop alone is tested beside those (`sockets`, `pushes`, memory-engine, space-server).

#[path = "../support/mod.rs"]
mod support;

mod consumers;
mod identity;
mod pushes;
mod reconnect;
mod serving;
mod values;

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use memory_engine::StoreRoot;
use memory_server::{Server, ServerConfig, ServingPlane, Stores};
use serde_json::{Value as Json, json};
use support::peer::{Peer, Wire};
use support::{Injected, ManualClock, SPACE};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const START: i64 = 1_760_000_000_000;

fn server(adjust: impl FnOnce(&mut ServerConfig)) -> (Arc<Server>, Arc<ManualClock>) {
    let mut injected = Injected::new("did:key:z6Mk-audience", START);
    adjust(&mut injected.config);
    let server = Server::new(injected.config).expect("inside a runtime");
    (server, injected.clock)
}

/// A server on the stores of a directory, as after a restart: it knows no session.
fn started_on(directory: &Path) -> Arc<Server> {
    let root = StoreRoot::direct(directory).expect("a directory");
    server(|config| config.stores = Stores::Files(root)).0
}

/// A peer with an open session.
async fn opened(server: &Arc<Server>, wire: Wire, session: &str, principal: &str) -> Peer {
    let mut peer = Peer::connect(server, wire).await;
    let answer = peer.open(session, principal, None, 0).await.expect("connected");
    assert_eq!(answer["ok"]["sessionId"], session, "{answer}");
    peer
}

/// The server flushes, and the peer hears all there is. Returns the effects it was sent since `from` frames.
async fn effects_since(server: &Arc<Server>, peer: &mut Peer, session: &str, from: usize) -> Vec<Json> {
    server.flush(None).await.expect("flushes");
    peer.drain(session).await;
    peer.heard[from..]
        .iter()
        .filter(|message| message["type"] == "session/effect")
        .map(|message| message["effect"].clone())
        .collect()
}

/// Waits until so many connections are left; their sessions are then detached.
async fn until_connections(server: &Arc<Server>, count: usize) {
    while server.connection_count() > count {
        tokio::task::yield_now().await;
    }
    server.idle().await.expect("turns end");
}

/// A place in the server where whoever comes by waits until it is let go.
struct Gate {
    came: UnboundedSender<()>,
    opens: Mutex<Receiver<()>>,
}

/// Its other side. Opens the gate when dropped.
struct GateKeeper {
    arrivals: UnboundedReceiver<()>,
    _open: Sender<()>,
}

impl Gate {
    fn new() -> (Arc<Gate>, GateKeeper) {
        let (came, arrivals) = unbounded_channel();
        let (open, opens) = channel();
        let gate = Gate {
            came,
            opens: Mutex::new(opens),
        };
        (
            Arc::new(gate),
            GateKeeper {
                arrivals,
                _open: open,
            },
        )
    }

    fn pass(&self) {
        // Nobody keeps a gate that is open.
        if self.came.send(()).is_ok() {
            let _ = self.opens.lock().expect("not poisoned").recv();
        }
    }
}

impl GateKeeper {
    async fn somebody_waits(&mut self) {
        self.arrivals.recv().await.expect("the gate stands");
    }
}

/// What a query of one document answers.
async fn stored(peer: &mut Peer, session: &str, id: &str) -> Json {
    let query = json!({
        "type": "graph.query", "space": SPACE, "sessionId": session,
        "query": { "roots": [{ "id": id, "selector": { "path": [], "schema": false } }] },
    });
    let answer = peer.request(query).await.expect("connected");
    answer["ok"]["entities"][0].clone()
}

/// Ids of a sync's entries with their content; deleted ones are null.
fn upserts(sync: &Json) -> Vec<(String, Json)> {
    let entries = sync["upserts"].as_array().into_iter().flatten();
    entries
        .map(|entry| {
            (
                entry["id"].as_str().unwrap_or_default().to_owned(),
                entry["doc"]["value"].clone(),
            )
        })
        .collect()
}

fn removes(sync: &Json) -> Vec<String> {
    let entries = sync["removes"].as_array().into_iter().flatten();
    entries
        .map(|entry| entry["id"].as_str().unwrap_or_default().to_owned())
        .collect()
}
