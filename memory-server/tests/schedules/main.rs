//! Interleavings of the publication turn, watch installation, resume, take-over and revocation. The server itself runs
//! here, with its locks, threads and tasks under a scheduler (feature `schedules`); a seed is a block of schedules of one
//! scenario.
//!
//! `cargo test -p memory-server --features schedules --test schedules`

#[path = "../support/mod.rs"]
mod support;

mod resume;
mod revocation;
mod take_over;
mod watch;

use std::path::Path;
use std::sync::Arc;

use memory_engine::{Durability, StoreRoot};
use memory_server::{FlushTiming, Server, ServerConfig, ServingPlane, Stores};
use serde_json::{Value as Json, json};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner};
use support::peer::{Peer, Told, Wire};
use support::{Injected, SPACE, seeds};
use tempfile::TempDir;

/// Schedules in a block.
const BLOCK: usize = 8;
/// Preemptions that a priority schedule inserts.
const DEPTH: usize = 4;

/// The scenarios, each a function that is run once per schedule.
const SCENARIOS: &[(&str, fn())] = &[
    ("watch installation", watch::run),
    ("watch installation beside the turn", watch::run_beside),
    ("resume", resume::run),
    ("resume beside the turn", resume::run_beside),
    ("take-over", take_over::run),
    ("revocation", revocation::run),
    ("revocation beside the turn", revocation::run_beside),
];

#[test]
fn interleavings_keep_every_promise() {
    seeds::run("schedules", 2 * SCENARIOS.len() as u64, |seed| {
        let (name, scenario) = SCENARIOS[seed as usize % SCENARIOS.len()];
        let by_priority = seed as usize / SCENARIOS.len() % 2 == 1;
        eprintln!(
            "seed {seed}: {name}, {}",
            if by_priority { "priorities" } else { "random" }
        );
        let mut config = Config::new();
        // The store and the codec run on these stacks.
        config.stack_size = 1 << 20;
        config.failure_persistence = FailurePersistence::None;
        config.silence_warnings = true;
        if by_priority {
            Runner::new(PctScheduler::new_from_seed(seed, DEPTH, BLOCK), config).run(scenario);
        } else {
            Runner::new(RandomScheduler::new_from_seed(seed, BLOCK), config).run(scenario);
        }
    });
}

/// A server whose flushes come when the schedule says.
fn server(adjust: impl FnOnce(&mut ServerConfig)) -> Arc<Server> {
    let mut config = Injected::new("did:key:z6Mk-audience", 1_000).config;
    config.flush = FlushTiming::Timed;
    adjust(&mut config);
    Server::new(config).expect("no runtime is needed")
}

/// A place for the files of one schedule. In memory where the system has such a place: a schedule makes, fills and removes
/// a few small files, and would wait for a disk for most of its time.
fn directory() -> TempDir {
    let in_memory = Path::new("/dev/shm");
    if in_memory.is_dir() {
        tempfile::tempdir_in(in_memory).expect("a directory")
    } else {
        tempfile::tempdir().expect("a directory")
    }
}

/// The same with the store in a file, so that reads and large evaluations go on beside the turn. Nothing here is about
/// what a power cut leaves.
fn server_in(directory: &TempDir, adjust: impl FnOnce(&mut ServerConfig)) -> Arc<Server> {
    let root = StoreRoot::direct(directory.path()).expect("a store");
    server(|config| {
        config.stores = Stores::Files(root);
        config.durability = Durability::Normal;
        config.limits.documents_in_turn = 0;
        adjust(config);
    })
}

/// A choice of the schedule.
fn choose(of: usize) -> usize {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..of)
}

fn wire() -> Wire {
    [Wire::InProcess, Wire::AsSocket][choose(2)]
}

/// A peer with an open session.
async fn opened(server: &Arc<Server>, wire: Wire, session: &str, principal: &str) -> Peer {
    let mut peer = Peer::connect(server, wire).await;
    let answer = peer.open(session, principal, None, 0).await.expect("connected");
    assert_eq!(answer["ok"]["sessionId"], session, "{answer}");
    peer
}

/// Everything that was due is queued, and read by the peer.
async fn settled(server: &Arc<Server>, peer: &mut Peer, session: &str) {
    server.idle().await.expect("settles");
    peer.drain(session).await;
}

/// Position and content of documents, as the store has them.
async fn stored(server: &Arc<Server>, ids: &[&str]) -> Vec<(u64, Json)> {
    let auditor_id = format!("auditor of {}", ids.join(" "));
    let mut auditor = opened(server, Wire::InProcess, &auditor_id, SPACE).await;
    let roots: Vec<Json> = ids
        .iter()
        .map(|id| json!({ "id": id, "selector": { "path": [], "schema": false } }))
        .collect();
    let query = json!({
        "type": "graph.query", "space": SPACE, "sessionId": auditor_id, "query": { "roots": roots },
    });
    let answer = auditor.request(query).await.expect("connected");
    let entities = answer["ok"]["entities"].as_array().cloned().unwrap_or_default();
    ids.iter()
        .map(|id| {
            let entity = entities.iter().find(|entity| entity["id"] == *id);
            entity.map_or((0, Json::Null), |entity| {
                (
                    entity["seq"].as_u64().unwrap_or(0),
                    entity["document"]["value"].clone(),
                )
            })
        })
        .collect()
}

/// Holds what the session was told against the store.
async fn holds_what_is_stored(server: &Arc<Server>, told: &Told, ids: &[&str]) {
    let held: Vec<(u64, Json)> = ids
        .iter()
        .map(|id| {
            let name = ("space".to_owned(), (*id).to_owned(), String::new());
            told.holds(&name).map_or((0, Json::Null), |(seq, content)| {
                (*seq, content.clone().unwrap_or(Json::Null))
            })
        })
        .collect();
    assert_eq!(
        held,
        stored(server, ids).await,
        "held and stored differ for {ids:?}"
    );
}
