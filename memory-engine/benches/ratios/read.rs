//! Point reads: of a document that was just used, and of one that nobody has looked at.

use std::hint::black_box;
use std::time::Instant;

use memory_engine::{ActorOptions, Engine, EngineHandle, EngineOptions, ReadInstance, Reader, StoreLocation};
use memory_wire::codec;
use memory_wire::ids::{BranchName, EntityId};
use memory_wire::scope_key::InstanceId;

use crate::workload::{Client, id};
use crate::{Pairs, directory, measured};

const DOCUMENTS: usize = 4_000;
const TURNS: usize = 20;
const PER_TURN: usize = 1_000;

pub(crate) fn run() {
    let directory = directory();
    let path = directory.path().join("store.sqlite");
    let location = StoreLocation::File(path.clone());
    let mut engine = Engine::open(location.clone(), EngineOptions::default()).expect("a new store");
    let mut client = Client::new(0);
    engine
        .group(|engine| {
            for n in 0..DOCUMENTS {
                let commit = client.set(n);
                client.apply(engine, &commit).expect("an honest commit");
            }
        })
        .expect("a group");
    drop(engine);

    let branch = BranchName::default();
    let conn = rusqlite::Connection::open(&path).expect("the store");
    conn.execute_batch("PRAGMA mmap_size = 268435456; PRAGMA cache_size = -16000")
        .expect("the pragmas of a reader");
    let ids: Vec<EntityId> = (0..DOCUMENTS).map(|n| id(n).into()).collect();
    let mut pairs = Pairs::default();
    for turn in 0..TURNS {
        // A new reader remembers nothing.
        let reader = Reader::open(&path).expect("the store");
        let chosen = || (0..PER_TURN).map(|n| &ids[(turn * 131 + n * 3) % DOCUMENTS]);
        reader
            .read(&ids[0], ReadInstance::Space, &branch, None)
            .expect("a read");
        let ours = measured(|| {
            for id in chosen() {
                black_box(
                    reader
                        .read(id, ReadInstance::Space, &branch, None)
                        .expect("a read")
                        .expect("a document"),
                );
            }
        });
        let theirs = measured(|| {
            for id in chosen() {
                let mut statement = conn
                    .prepare_cached(
                        "SELECT r.data FROM head h JOIN revision r ON r.branch = h.branch AND r.id = h.id \
                     AND r.scope_key = h.scope_key AND r.seq = h.seq AND r.op_index = h.op_index \
                     WHERE h.branch = '' AND h.id = ?1 AND h.scope_key = 'space'",
                    )
                    .expect("a statement on the schema");
                let text: String = statement
                    .query_row([id.as_str()], |row| row.get(0))
                    .expect("a row");
                black_box(codec::decode(&text).expect("a document"));
            }
        });
        pairs.add(ours, theirs);
    }
    pairs.report("cold_read", 1.3, PER_TURN);

    let handle = EngineHandle::new(location, EngineOptions::default(), ActorOptions::default());
    handle.watch_foreign(Some(Box::new(|_, _| {})));
    let instances: Vec<InstanceId> = ids[..64].iter().map(|id| InstanceId::space(id.clone())).collect();
    for instance in &instances {
        handle
            .state(instance, &branch)
            .wait()
            .expect("a read")
            .expect("a state");
    }
    let before = handle.counters().statements;
    let start = Instant::now();
    for n in 0..100_000 {
        black_box(
            handle
                .state(&instances[n % 64], &branch)
                .wait()
                .expect("a read")
                .expect("a state"),
        );
    }
    let each = start.elapsed().as_secs_f64() * 1e9 / 100_000.0;
    let hot = handle.counters().hot_reads;
    println!("      a hot read takes {each:.0} ns; {hot} were hot");
    // The writer asks for `data_version` meanwhile, which is no read of a document.
    println!(
        "count hot_read_statements {} (bound 0)",
        handle.counters().statements - before
    );
}
