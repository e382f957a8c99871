//! Killed at every write and within writes. Rule: NODE-5.

use crate::support::disk::BACKENDS;
use crate::support::seeds::{mixed, seeds};
use crate::writer::{Death, Life};

#[test]
fn node_5_killed_at_every_write_a_batch_is_there_or_not() {
    for backend in BACKENDS {
        for at in 1..=4 {
            for after in [false, true] {
                let directory = tempfile::tempdir().unwrap();
                let (first, value_bytes) = (1, 100);
                let death = Death::AtWrite { at, after };
                Life {
                    backend,
                    first,
                    value_bytes,
                    death,
                }
                .run(directory.path());
            }
        }
    }
}

#[test]
fn node_5_killed_within_a_write_again_and_again_a_batch_is_there_or_not() {
    for backend in BACKENDS {
        let directory = tempfile::tempdir().unwrap();
        let mut first = 1;
        for reports in 1..8 {
            // Large values: nearly all of the time passes inside a write, and that is where the kill comes.
            let (value_bytes, death) = (8000, Death::AfterReports(reports));
            first = 1 + Life {
                backend,
                first,
                value_bytes,
                death,
            }
            .run(directory.path());
        }
    }
}

/// Case `seed`: two lives over one directory, each with a death of its own, by turns on every backend.
fn lives(seed: u64) -> [Life; 2] {
    let backend = BACKENDS[seed as usize % BACKENDS.len()];
    let value_bytes = [4, 100, 3000, 8000][(mixed(seed) % 4) as usize];
    [1, 2].map(|life| {
        let chosen = mixed(seed ^ (life << 32));
        let number = chosen >> 8;
        // From less than an empty store takes to less than the log grows to before it is used anew.
        let blocks = 1 + number % [64, 400, 4000][(chosen >> 4) as usize % 3];
        let death = match chosen % 8 {
            0 | 1 => Death::AtWrite {
                at: 1 + (number % 9) as usize,
                after: chosen & 128 != 0,
            },
            2 => Death::AfterReports(1 + (number % 9) as usize),
            3..=5 => Death::Torn { blocks },
            _ => Death::Refused { blocks },
        };
        Life {
            backend,
            first: 1,
            value_bytes,
            death,
        }
    })
}

#[test]
fn node_5_killed_torn_and_refused_a_batch_is_there_or_not() {
    let mut tried = 0;
    for seed in seeds("kills", 24) {
        let directory = tempfile::tempdir().unwrap();
        println!("seed {seed}");
        let mut first = 1;
        for life in lives(seed) {
            first = 1 + Life { first, ..life }.run(directory.path());
        }
        tried += 1;
    }
    println!("kills: {tried} seeds, two deaths each");
}
