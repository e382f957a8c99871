//! Interleavings of a space's threads: the queue, the groups that take in whoever comes, the replies and the chains in which
//! those who wait wake each other, readers, and handles that go away. The actor itself runs here, with its locks and threads
//! under a scheduler (feature `schedules`), which fails a schedule that leaves somebody waiting for ever; a seed is a block
//! of schedules of one scenario.
//!
//! `cargo test -p memory-engine --features schedules --test schedules`
//!
//! Runs the seeds `LONG_FROM .. LONG_FROM + LONG_COUNT`.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use memory_engine::{
    ActorOptions, ApplyCommit, Durability, Engine, EngineError, EngineHandle, EngineOptions, Reader,
    StoreLocation,
};
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::scope_key::Scope;
use memory_wire::{Value, value};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};

/// Schedules in a block.
const BLOCK: usize = 8;
/// Preemptions that a priority schedule inserts.
const DEPTH: usize = 4;
/// Seeds of an ordinary run, by scenario and way of scheduling.
const SMOKE: u64 = 3;

/// The scenarios, each a function that is run once per schedule.
const SCENARIOS: &[(&str, fn())] = &[
    ("waiting writers", waiting_writers),
    ("small groups", small_groups),
    ("the last handle", the_last_handle),
    ("accidents", accidents),
    ("closing", closing),
];

#[test]
fn everybody_who_waits_is_answered_in_every_interleaving() {
    let setting = |name: &str, default| match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => default,
    };
    let from: u64 = setting("LONG_FROM", 0);
    for seed in from..from + setting("LONG_COUNT", 2 * SMOKE * SCENARIOS.len() as u64) {
        let (name, scenario) = SCENARIOS[seed as usize % SCENARIOS.len()];
        let mut config = Config::new();
        // The store and the codec run on these stacks.
        config.stack_size = 1 << 20;
        config.failure_persistence = FailurePersistence::None;
        config.silence_warnings = true;
        let run = || match (seed as usize / SCENARIOS.len()).is_multiple_of(2) {
            true => Runner::new(RandomScheduler::new_from_seed(seed, BLOCK), config).run(scenario),
            false => Runner::new(PctScheduler::new_from_seed(seed, DEPTH, BLOCK), config).run(scenario),
        };
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            panic!("seed {seed}: {name}");
        }
    }
}

fn options() -> EngineOptions {
    EngineOptions {
        durability: Durability::Normal,
        ..EngineOptions::default()
    }
}

fn in_memory(actor: ActorOptions) -> EngineHandle {
    EngineHandle::new(StoreLocation::Memory, options(), actor)
}

fn apply(engine: &mut Engine, session: &str, local_seq: u64, id: &str) -> Seq {
    let parts = CommitParts {
        operations: vec![Operation::Set {
            id: id.into(),
            scope: Scope::Space,
            value: value!({ "value": local_seq }),
        }],
        ..CommitParts::default()
    };
    let (session, commit) = (session.into(), ClientCommit::build(LocalSeq(local_seq), parts));
    let commit = ApplyCommit::authored(&session, None, &commit, 0);
    engine.apply_commit(commit).expect("nothing refuses it").seq
}

fn number(reader: &Reader, id: &str) -> Option<u64> {
    let value = reader.read_space_value(&id.into()).expect("it can be read");
    value.as_ref().and_then(Value::as_u64)
}

/// Threads that write and wait, again and again. Everybody is answered, in order, and with a seq of their own.
fn write_and_wait(handle: &EngineHandle) {
    const WRITERS: usize = 4;
    const WRITES: u64 = 3;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let handle = handle.clone();
            thread::spawn(move || {
                let session = format!("s{writer}");
                let write = |local_seq| {
                    let session = session.clone();
                    let written = handle.write(move |engine| apply(engine, &session, local_seq, "of:a"));
                    written.wait().expect("it is durable")
                };
                (1..=WRITES).map(write).collect::<Vec<Seq>>()
            })
        })
        .collect();
    let mut seqs = Vec::new();
    for writer in writers {
        let own = writer.join().expect("it was answered");
        assert!(own.is_sorted());
        seqs.extend(own);
    }
    seqs.sort();
    let all: Vec<Seq> = (1..=WRITERS as u64 * WRITES).map(Seq).collect();
    assert_eq!(seqs, all);
}

fn waiting_writers() {
    write_and_wait(&in_memory(ActorOptions::default()));
}

fn small_groups() {
    write_and_wait(&in_memory(ActorOptions {
        max_group: 2,
        ..ActorOptions::default()
    }));
}

/// Whatever was asked before the last handle went is answered.
fn the_last_handle() {
    let directory = directory();
    let location = StoreLocation::File(directory.path().join("s.sqlite"));
    let handle = EngineHandle::new(location, options(), ActorOptions::default());
    let first = handle.write(|engine| apply(engine, "s", 1, "of:a"));
    assert_eq!(first.wait().expect("it is durable"), Seq(1));
    let other = handle.clone();
    let reading = thread::spawn(move || {
        let reads: Vec<_> = (0..2)
            .map(|_| other.read(|reader| number(reader, "of:a")))
            .collect();
        drop(other);
        reads
    });
    let written = handle.write(|engine| apply(engine, "s", 2, "of:b"));
    drop(handle);
    for read in reading.join().expect("it was asked") {
        assert_eq!(read.wait().expect("it is answered"), Some(1));
    }
    assert_eq!(written.wait().expect("it is durable"), Seq(2));
}

/// Replies that are looked at before they are waited for, or not at all, and writes that panic, do not keep anybody else
/// from theirs.
fn accidents() {
    let handle = in_memory(ActorOptions::default());
    let (glancing, careless, unlucky) = (handle.clone(), handle.clone(), handle.clone());
    let threads = [
        thread::spawn(move || {
            for local_seq in 1..=2 {
                let mut reply = glancing.write(move |engine| apply(engine, "glancing", local_seq, "of:a"));
                let mut context = Context::from_waker(Waker::noop());
                match Pin::new(&mut reply).poll(&mut context) {
                    Poll::Ready(done) => done.expect("it is durable"),
                    Poll::Pending => reply.wait().expect("it is durable"),
                };
            }
        }),
        thread::spawn(move || {
            for local_seq in 1..=2 {
                drop(careless.write(move |engine| apply(engine, "careless", local_seq, "of:a")));
            }
        }),
        thread::spawn(move || {
            let lost = unlucky.write(|engine| {
                apply(engine, "unlucky", 1, "of:lost");
                std::panic::resume_unwind(Box::new("on purpose"));
            });
            assert!(matches!(lost.wait(), Err::<(), _>(EngineError::Panicked(_))));
            let kept = unlucky.write(|engine| apply(engine, "unlucky", 1, "of:kept"));
            kept.wait().expect("it is durable");
        }),
    ];
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("it was answered"));
    let seen = handle.turn(|engine| {
        (
            number(engine, "of:lost"),
            number(engine, "of:kept"),
            engine.server_seq(),
        )
    });
    let (lost, kept, seq) = seen.wait().expect("it is answered");
    assert_eq!((lost, kept), (None, Some(1)));
    assert_eq!(seq.expect("it can be read"), Seq(5));
}

/// A store that is closed while others write goes on: who comes later has it opened again.
fn closing() {
    let directory = directory();
    let location = StoreLocation::File(directory.path().join("s.sqlite"));
    let handle = EngineHandle::new(location, options(), ActorOptions::default());
    let closer = handle.clone();
    let closing = thread::spawn(move || closer.close().wait().expect("it is closed"));
    let seqs: Vec<Seq> = (1..=2)
        .map(|local_seq| {
            let written = handle.write(move |engine| apply(engine, "s", local_seq, "of:a"));
            written.wait().expect("it is durable")
        })
        .collect();
    closing.join().expect("it was answered");
    assert_eq!(seqs, [Seq(1), Seq(2)]);
    let read = handle.read(|reader| number(reader, "of:a"));
    assert_eq!(read.wait().expect("it is answered"), Some(2));
}

/// A place for the files of one schedule, in memory where the system has such a place.
fn directory() -> tempfile::TempDir {
    let in_memory = Path::new("/dev/shm");
    let made = if in_memory.is_dir() {
        tempfile::tempdir_in(in_memory)
    } else {
        tempfile::tempdir()
    };
    made.expect("a directory")
}
