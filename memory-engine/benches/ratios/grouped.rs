//! Sixty-four writers at once: what waits together shares a transaction. The floor writes the same rows in the same
//! number of transactions.

use std::sync::{Arc, Barrier};

use memory_engine::{ActorOptions, CommitTexts, EngineHandle, EngineOptions, StoreLocation};

use crate::floor::{Floor, Rows};
use crate::workload::Client;
use crate::{DURABILITIES, Pairs, directory, measured};

const WRITERS: usize = 64;
const TURNS: usize = 30;
/// Commits of each writer in a turn.
const EACH: usize = 8;

pub(crate) fn run() {
    for (durability, word) in DURABILITIES {
        let directory = directory();
        let path = directory.path().join("ours.sqlite");
        let options = EngineOptions {
            durability,
            ..EngineOptions::default()
        };
        let handle = EngineHandle::new(
            StoreLocation::File(path.clone()),
            options,
            ActorOptions::default(),
        );
        let floor = Floor::open(&directory.path().join("floor.sqlite"), durability);
        handle.turn(|_| ()).wait().expect("a store");
        let witness = Floor::open_existing(&path, durability);
        let gates = Arc::new((Barrier::new(WRITERS + 1), Barrier::new(WRITERS + 1)));
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| {
                let (handle, gates) = (handle.clone(), gates.clone());
                std::thread::spawn(move || {
                    let mut client = Client::new(n);
                    for turn in 0..=TURNS {
                        gates.0.wait();
                        for _ in 0..EACH {
                            let commit = if turn == 0 {
                                client.set(n)
                            } else {
                                client.edit(n, memory_wire::ids::Seq(1 << 52))
                            };
                            let (session, texts) = (Client::new(n), CommitTexts::of(&commit));
                            let reply = handle.write(move |engine| {
                                let done = session.apply_prepared(engine, &commit, &texts);
                                done.map(|done| done.seq)
                            });
                            reply.wait().expect("a group").expect("an honest commit");
                        }
                        gates.1.wait();
                    }
                })
            })
            .collect();
        let mut pairs = Pairs::default();
        let mut groups = 0;
        for turn in 0..=TURNS {
            let from = handle
                .read(|reader| reader.server_seq())
                .wait()
                .expect("a read")
                .expect("a seq")
                .0;
            let before = handle.counters().transactions;
            let ours = measured(|| {
                gates.0.wait();
                gates.1.wait();
            });
            let transactions = (handle.counters().transactions - before) as usize;
            let count = WRITERS * EACH;
            let rows: Vec<Rows> = (from + 1..=from + count as u64)
                .map(|seq| Rows::of(witness.connection(), seq))
                .collect();
            let theirs = measured(|| {
                rows.chunks(count.div_ceil(transactions))
                    .for_each(|group| floor.write(group));
            });
            if turn > 0 {
                pairs.add(ours, theirs);
                groups += transactions;
            }
        }
        for writer in writers {
            writer.join().expect("a writer that ends");
        }
        pairs.report(&format!("grouped_commits_64_writers_{word}"), 1.3, WRITERS * EACH);
        println!(
            "      {:.1} commits a transaction",
            (TURNS * WRITERS * EACH) as f64 / groups as f64
        );
    }
}
