//! One commit a transaction.

use memory_engine::{Engine, EngineOptions, StoreLocation};

use crate::floor::{Floor, Rows};
use crate::workload::Client;
use crate::{DURABILITIES, Pairs, directory, measured};

const DOCUMENTS: usize = 64;
const TURNS: usize = 40;
const PER_TURN: usize = 50;

pub(crate) fn run() {
    for (durability, word) in DURABILITIES {
        let directory = directory();
        let path = directory.path().join("ours.sqlite");
        let options = EngineOptions {
            durability,
            ..EngineOptions::default()
        };
        let mut engine = Engine::open(StoreLocation::File(path.clone()), options).expect("a new store");
        let floor = Floor::open(&directory.path().join("floor.sqlite"), durability);
        let witness = Floor::open_existing(&path, durability);
        let mut client = Client::new(0);
        for kind in ["patch", "set"] {
            let mut pairs = Pairs::default();
            for turn in 0..TURNS + 2 {
                let from = engine.server_seq().expect("a seq").0;
                let commits: Vec<_> = (0..PER_TURN)
                    .map(|n| match (kind, turn) {
                        ("patch", 2..) => {
                            client.edit((turn * 7 + n) % DOCUMENTS, engine.server_seq().expect("a seq"))
                        }
                        _ => client.set((turn * PER_TURN + n) % DOCUMENTS),
                    })
                    .collect();
                // Each commit reads another document of the turn, so that none conflicts with its neighbours.
                let ours = measured(|| {
                    for commit in &commits {
                        client.apply(&mut engine, commit).expect("an honest commit");
                    }
                });
                let rows: Vec<Rows> = (from + 1..=from + PER_TURN as u64)
                    .map(|seq| Rows::of(witness.connection(), seq))
                    .collect();
                let theirs = measured(|| rows.chunks(1).for_each(|one| floor.write(one)));
                // The first turns fill the store and the caches.
                if turn >= 2 {
                    pairs.add(ours, theirs);
                }
            }
            pairs.report(&format!("single_commit_{kind}_{word}"), 1.5, PER_TURN);
        }
    }
}
