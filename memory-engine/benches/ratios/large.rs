//! The same commits in an empty space and in one with a million revisions and a hundred thousand documents.

use std::time::Instant;

use memory_engine::{Engine, EngineOptions, StoreLocation};
use rusqlite::{Connection, params};

use crate::floor::Floor;
use crate::workload::{Client, document, id};
use crate::{DURABILITIES, Pairs, Took, directory, measured};

const REVISIONS: usize = 1_000_000;
const DOCUMENTS: usize = 100_000;
/// Documents that are edited.
const ACTIVE: usize = 64;
const TURNS: usize = 400;
const PER_TURN: usize = 50;

/// Writes the history directly: each document is made once and then patched.
fn fill(conn: &Connection) {
    let set = memory_wire::codec::encode(&document(1)).expect("a document");
    let patch = r#"fvj1:[{"op":"replace","path":"/value/count","value":1}]"#;
    conn.execute_batch("BEGIN IMMEDIATE; PRAGMA foreign_keys = OFF")
        .expect("a transaction");
    for seq in 1..=REVISIONS {
        let document = (seq - 1) % DOCUMENTS;
        let first = seq <= DOCUMENTS;
        let (op, data) = if first {
            ("set", set.as_str())
        } else {
            ("patch", patch)
        };
        conn.prepare_cached(
            "INSERT INTO \"commit\" (seq, session_id, local_seq, original, resolution) VALUES (?1, ?2, ?1, ?3, ?3)",
        )
        .and_then(|mut s| s.execute(params![seq as i64, "history", "fvj1:{}"]))
        .expect("a commit");
        conn.prepare_cached(
            "INSERT INTO revision (id, seq, op_index, op, data, commit_seq) VALUES (?1, ?2, 0, ?3, ?4, ?2)",
        )
        .and_then(|mut s| s.execute(params![id(document), seq as i64, op, data]))
        .expect("a revision");
        if seq > REVISIONS - DOCUMENTS {
            conn.prepare_cached(
                "INSERT INTO head (branch, id, seq, op_index, op) VALUES ('', ?1, ?2, 0, ?3)",
            )
            .and_then(|mut s| s.execute(params![id(document), seq as i64, op]))
            .expect("a head");
        }
    }
    conn.execute("UPDATE branch SET head_seq = ?1", [REVISIONS as i64])
        .expect("the branch");
    conn.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)")
        .expect("a history");
}

pub(crate) fn run() {
    let directory = directory();
    let full = directory.path().join("large.sqlite");
    let start = Instant::now();
    fill(Floor::open(&full, memory_engine::Durability::Normal).connection());
    let size = std::fs::metadata(&full).map_or(0, |meta| meta.len() >> 20);
    println!(
        "      {REVISIONS} revisions of {DOCUMENTS} documents, {size} MiB, made in {:.0?}",
        start.elapsed()
    );
    for (durability, word) in DURABILITIES {
        let options = EngineOptions {
            durability,
            ..EngineOptions::default()
        };
        let small = StoreLocation::File(directory.path().join(format!("small-{word}.sqlite")));
        let mut engines =
            [StoreLocation::File(full.clone()), small].map(|at| Engine::open(at, options).expect("a store"));
        // Anyone new to the store, in either setting.
        let mut clients = [Client::new(durability as usize + 1), Client::new(1)];
        let mut pairs = Pairs::default();
        for turn in 0..TURNS + 4 {
            let mut took = [Took::default(); 2];
            for ((engine, client), took) in engines.iter_mut().zip(&mut clients).zip(&mut took) {
                let document = |n: usize| ((turn * PER_TURN + n) % ACTIVE) * (DOCUMENTS / ACTIVE);
                let seen = engine.server_seq().expect("a seq");
                let commits: Vec<_> = (0..PER_TURN)
                    .map(|n| {
                        if turn < 4 {
                            client.set(document(n))
                        } else {
                            client.edit(document(n), seen)
                        }
                    })
                    .collect();
                *took = measured(|| {
                    for commit in &commits {
                        client.apply(engine, commit).expect("an honest commit");
                    }
                });
            }
            if turn >= 4 {
                pairs.add(took[0], took[1]);
            }
        }
        pairs.report(&format!("commit_in_large_space_{word}"), 1.2, PER_TURN);
    }
}
