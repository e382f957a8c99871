//! Sixty-four writers at once: what waits together shares a transaction. The floor writes the same rows in the same
//! number of transactions. The clock runs while all of them write: what it takes to start and to stop as many threads is
//! the bench's own.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use memory_engine::{ActorOptions, CommitTexts, EngineHandle, EngineOptions, StoreLocation};

use crate::floor::{Floor, Rows};
use crate::workload::Client;
use crate::{DURABILITIES, Pairs, Took, directory, measured};

const WRITERS: usize = 64;
const TURNS: usize = 60;
/// Commits of each writer in a turn, on average, while the clock runs.
const EACH: usize = 8;
/// Commits of each writer before that, and after.
const LEAD: usize = 2;

/// Starts and stops the clock of one turn after another.
struct Clock {
    handle: EngineHandle,
    answered: AtomicUsize,
    /// When it was, and how many transactions the store had seen.
    marks: Mutex<Vec<(Instant, u64)>>,
}

impl Clock {
    /// One more commit has been answered.
    fn answered(&self) {
        let count = self.answered.fetch_add(1, Ordering::Relaxed) + 1;
        if count == WRITERS * LEAD || count == WRITERS * (LEAD + EACH) {
            let mark = (Instant::now(), self.handle.counters().transactions);
            self.marks.lock().expect("a clock").push(mark);
        }
    }

    /// What the turn that has ended took, and in how many transactions.
    fn read(&self) -> (Took, usize) {
        self.answered.store(0, Ordering::Relaxed);
        let mut marks = std::mem::take(&mut *self.marks.lock().expect("a clock"));
        marks.sort();
        let [(start, before), (end, after)] = marks[..] else {
            panic!("a turn has a start and an end: {marks:?}")
        };
        (Took::of_wall(end - start), (after - before) as usize)
    }
}

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
        let clock = Arc::new(Clock {
            handle: handle.clone(),
            answered: AtomicUsize::new(0),
            marks: Mutex::default(),
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| {
                let (handle, gates, clock) = (handle.clone(), gates.clone(), clock.clone());
                std::thread::spawn(move || {
                    let mut client = Client::new(n);
                    for turn in 0..=TURNS {
                        gates.0.wait();
                        for _ in 0..LEAD + EACH + LEAD {
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
                            clock.answered();
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
            gates.0.wait();
            gates.1.wait();
            let (ours, transactions) = clock.read();
            let (lead, count) = ((WRITERS * LEAD) as u64, (WRITERS * EACH) as u64);
            let rows = |seqs: RangeInclusive<u64>| -> Vec<Rows> {
                seqs.map(|seq| Rows::of(witness.connection(), seq)).collect()
            };
            floor.write(&rows(from + 1..=from + lead));
            let timed = rows(from + lead + 1..=from + lead + count);
            let theirs = measured(|| {
                timed
                    .chunks(timed.len().div_ceil(transactions))
                    .for_each(|group| floor.write(group));
            });
            floor.write(&rows(from + lead + count + 1..=from + lead + count + lead));
            if turn > 0 {
                pairs.add(ours, theirs);
                groups += transactions;
            }
        }
        for writer in writers {
            writer.join().expect("a writer that ends");
        }
        pairs.report_total(&format!("grouped_commits_64_writers_{word}"), 1.3, WRITERS * EACH);
        println!(
            "      {:.1} commits a transaction",
            (TURNS * WRITERS * EACH) as f64 / groups as f64
        );
    }
}
