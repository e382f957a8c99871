//! Many readers beside a group-committing writer, and the write-ahead log under them: every read is one committed
//! prefix, and no reader makes the log grow without bound (INV-10, field fault F39).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use memory_engine::{
    ActorOptions, ApplyCommit, Engine, EngineError, EngineHandle, EngineOptions, Reader, StoreLocation,
};
use memory_wire::ids::{BranchName, LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::scope_key::Scope;
use memory_wire::value;
use memory_wire::value::Value;

fn number_of(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a decimal number"))
}

struct Store {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Store {
    fn new() -> Store {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        Store { _dir: dir, path }
    }

    fn handle(&self, options: ActorOptions) -> EngineHandle {
        EngineHandle::new(
            StoreLocation::File(self.path.clone()),
            EngineOptions::default(),
            options,
        )
    }
}

/// Documents of the workload. Commit `n` writes `n` into one of them, and into the newest.
const DOCUMENTS: u64 = 13;

fn write(
    engine: &mut Engine,
    session: &str,
    local_seq: u64,
    writes: &[(String, Value)],
) -> Result<Seq, EngineError> {
    let operations = writes.iter().map(|(id, value)| Operation::Set {
        id: id.as_str().into(),
        scope: Scope::Space,
        value: value!({ "value": (value.clone()) }),
    });
    let parts = CommitParts {
        operations: operations.collect(),
        ..CommitParts::default()
    };
    let commit = ClientCommit::build(LocalSeq(local_seq), parts);
    let applied = engine.apply_commit(ApplyCommit::authored(&session.into(), None, &commit, 0))?;
    Ok(applied.seq)
}

/// The commit that gets the next seq: what it writes follows from that seq alone, so that every prefix is known.
fn write_next(engine: &mut Engine, session: &str, local_seq: u64) -> Result<Seq, EngineError> {
    let n = engine.server_seq()?.0 + 1;
    let writes = [
        (format!("of:{}", n % DOCUMENTS), value!(n)),
        ("of:newest".to_owned(), value!(n)),
    ];
    write(engine, session, local_seq, &writes)
}

fn number(reader: &Reader, id: &str) -> Result<Option<u64>, EngineError> {
    Ok(reader
        .read_space_value(&id.into())?
        .as_ref()
        .and_then(Value::as_u64))
}

/// Reads everything and says which prefix it is; `Err` when it is none.
fn prefix(reader: &Reader) -> Result<u64, String> {
    let told = |error: EngineError| error.to_string();
    let newest = number(reader, "of:newest").map_err(told)?.unwrap_or(0);
    // Time for the writer to move on in between.
    thread::yield_now();
    for document in 0..DOCUMENTS {
        let found = number(reader, &format!("of:{document}")).map_err(told)?;
        let last = (newest + 1).saturating_sub(DOCUMENTS)..=newest;
        let want = last.rev().find(|n| n % DOCUMENTS == document && *n > 0);
        if found != want {
            return Err(format!("of:{document} is {found:?} at {newest}, not {want:?}"));
        }
    }
    if number(reader, "of:never").map_err(told)?.is_some() {
        return Err("a write that was rolled back was seen".to_owned());
    }
    let heads = (
        reader.server_seq().map_err(told)?.0,
        reader.head_seq(&BranchName::default()).map_err(told)?.0,
    );
    match heads == (newest, newest) {
        true => Ok(newest),
        false => Err(format!("heads {heads:?} at {newest}")),
    }
}

/// Eight readers beside the writer, whose groups have members that are refused or panic. A seed is a round of commits.
#[test]
fn inv_10_eight_readers_beside_a_group_committing_writer_see_committed_prefixes_only() {
    let (from, count) = (number_of("LONG_FROM", 0), number_of("LONG_COUNT", 1));
    let each = if std::env::var("LONG_COUNT").is_ok() {
        400
    } else {
        40
    };
    let store = Store::new();
    let options = ActorOptions {
        max_readers: 8,
        // Small, so that the log is emptied under the readers, too.
        log_limit: 8 << 20,
        ..ActorOptions::default()
    };
    let handle = store.handle(options);
    handle
        .write(|engine| write_next(engine, "first", 1))
        .wait()
        .unwrap()
        .unwrap();
    let acknowledged = Arc::new(AtomicU64::new(1));
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (handle, acknowledged, done) = (handle.clone(), acknowledged.clone(), done.clone());
            thread::spawn(move || {
                let (mut seen, mut reads, mut ended) = (0, 0u64, 0u64);
                while !done.load(Ordering::SeqCst) || reads < 3 {
                    let told = acknowledged.load(Ordering::SeqCst);
                    let prefix = handle.read(prefix).wait().unwrap();
                    match prefix {
                        Ok(prefix) => {
                            assert!(prefix >= told, "an acknowledged write was not seen");
                            assert!(prefix >= seen, "a reader went back in time");
                            seen = prefix;
                            reads += 1;
                        }
                        Err(text) if text == EngineError::ReadOvertaken.to_string() => ended += 1,
                        Err(text) => panic!("{text}"),
                    }
                }
                (reads, ended)
            })
        })
        .collect();
    let mut commits = 1;
    for seed in from..from + count {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let (handle, acknowledged) = (handle.clone(), acknowledged.clone());
                thread::spawn(move || {
                    let session = format!("{seed}-{writer}");
                    for n in 1..=each {
                        let by = session.clone();
                        if n % 9 == writer % 9 {
                            let lost = handle.write(move |engine| {
                                let writes = [
                                    ("of:never".to_owned(), value!(1)),
                                    ("of:newest".to_owned(), value!(0)),
                                ];
                                write(engine, &by, n, &writes).unwrap();
                                std::panic::resume_unwind(Box::new("on purpose"));
                            });
                            let lost: Result<(), EngineError> = lost.wait();
                            assert!(matches!(lost, Err(EngineError::Panicked(_))));
                            continue;
                        }
                        let seq = handle.write(move |engine| write_next(engine, &by, n)).wait();
                        acknowledged.fetch_max(seq.unwrap().unwrap().0, Ordering::SeqCst);
                    }
                    each - (1..=each).filter(|n| n % 9 == writer % 9).count() as u64
                })
            })
            .collect();
        commits += writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .sum::<u64>();
    }
    done.store(true, Ordering::SeqCst);
    let (reads, ended) = readers
        .into_iter()
        .map(|reader| reader.join().unwrap())
        .fold((0, 0), |(reads, ended), (r, e)| (reads + r, ended + e));
    assert_eq!(handle.read(prefix).wait().unwrap(), Ok(commits));
    println!(
        "{commits} commits, {reads} reads of a committed prefix, {ended} reads ended, {:?}",
        handle.log_counters()
    );
}

const LIMIT: u64 = 4 << 20;

fn bounded() -> ActorOptions {
    ActorOptions {
        log_limit: LIMIT,
        ..ActorOptions::default()
    }
}

/// A commit of some hundred kilobytes.
fn write_much(handle: &EngineHandle, local_seq: u64) {
    let long = value!(("x".repeat(200_000)).as_str());
    let written = handle.write(move |engine| write(engine, "s", local_seq, &[("of:long".to_owned(), long)]));
    written.wait().unwrap().unwrap();
    // The log is measured once the answer is out.
    handle.turn(|_| ()).wait().unwrap();
}

/// Field fault F39: the log grows without bound under a long reader. Here the reader is ended by name when the log reaches
/// its bound; then the log is emptied; counters tell of both.
#[test]
fn f39_the_log_is_bounded_under_a_reader_that_never_ends() {
    let store = Store::new();
    let handle = store.handle(bounded());
    write_much(&handle, 1);
    let one = handle.log_counters().bytes;
    assert!(one > 200_000 && one < LIMIT / 4, "{one}");
    let (began, begun) = mpsc::channel();
    let reading = handle.read(move |reader| {
        let first = reader.server_seq()?;
        began.send(()).unwrap();
        loop {
            // One state as long as it lasts.
            assert_eq!(reader.server_seq()?, first);
            assert_eq!(reader.live_holder(&"did:key:zSpace".into(), 0)?, None);
        }
        #[expect(unreachable_code, reason = "gives the closure its type")]
        Ok::<(), EngineError>(())
    });
    begun.recv().unwrap();
    let mut local_seq = 2;
    while handle.log_counters().overtaken == 0 {
        write_much(&handle, local_seq);
        local_seq += 1;
        assert!(
            handle.log_counters().bytes < LIMIT + 2 * one,
            "the log passed its bound unnoticed"
        );
    }
    assert!(handle.log_counters().pinned > 0, "emptying was tried before");
    assert!(matches!(reading.wait().unwrap(), Err(EngineError::ReadOvertaken)));
    let emptied = handle.log_counters().emptied;
    while handle.log_counters().emptied == emptied {
        write_much(&handle, local_seq);
        local_seq += 1;
        assert!(
            handle.log_counters().bytes < LIMIT + LIMIT / 8 + 2 * one,
            "the log grew on without a reader"
        );
    }
    let counters = handle.log_counters();
    assert!(
        counters.bytes < LIMIT / 2 && counters.peak_bytes < LIMIT + LIMIT / 8 + 2 * one,
        "{counters:?}"
    );
    // The thread that was interrupted reads on.
    let seq = handle.read(|reader| reader.server_seq()).wait().unwrap().unwrap();
    assert_eq!(seq, Seq(local_seq - 1));
}

/// Readers that follow each other without a gap pin the log as one long reader would, and none of them is long.
#[test]
fn f39_the_log_is_bounded_under_readers_that_never_pause() {
    let store = Store::new();
    let handle = store.handle(bounded());
    write_much(&handle, 1);
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (handle, done) = (handle.clone(), done.clone());
            thread::spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let pair = [(); 2]
                        .map(|()| handle.read(|reader| reader.read_space_value(&"of:long".into()).map(drop)));
                    for read in pair {
                        match read.wait().unwrap() {
                            Ok(()) | Err(EngineError::ReadOvertaken) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            })
        })
        .collect();
    let mut local_seq = 2;
    // Several times the bound in all.
    while handle.log_counters().emptied < 3 {
        write_much(&handle, local_seq);
        local_seq += 1;
        assert!(
            local_seq < 2_000,
            "the log is not emptied: {:?}",
            handle.log_counters()
        );
    }
    done.store(true, Ordering::SeqCst);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// A reader that asks nothing cannot be ended; the log is emptied as soon as it is gone, not before, and writes never wait
/// for it to go.
#[test]
fn f39_a_reader_that_asks_nothing_delays_the_emptying_and_no_write() {
    let store = Store::new();
    let handle = store.handle(bounded());
    write_much(&handle, 1);
    let (began, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let reading = handle.read(move |reader| {
        reader.server_seq().unwrap();
        began.send(()).unwrap();
        let _ = released.recv();
    });
    begun.recv().unwrap();
    let mut local_seq = 2;
    while handle.log_counters().overtaken < 2 {
        write_much(&handle, local_seq);
        local_seq += 1;
    }
    assert_eq!(handle.log_counters().emptied, 0);
    drop(release);
    reading.wait().unwrap();
    handle.close().wait().unwrap();
    let counters = handle.log_counters();
    assert!(counters.emptied > 0 && counters.bytes == 0, "{counters:?}");
}

/// Field fault F39: the reply is dropped while its commit runs. The commit is whole, and the next one works.
#[test]
fn f39_a_reply_dropped_in_the_middle_of_its_commit_changes_nothing() {
    let store = Store::new();
    let handle = store.handle(ActorOptions::default());
    let (began, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let reply = handle.write(move |engine| {
        write_next(engine, "s", 1).unwrap();
        began.send(()).unwrap();
        let _ = released.recv();
        write_next(engine, "s", 2).unwrap();
    });
    begun.recv().unwrap();
    drop(reply);
    drop(release);
    let next = handle.write(|engine| write_next(engine, "s", 3)).wait().unwrap();
    assert_eq!(next.unwrap(), Seq(3));
    assert_eq!(handle.read(prefix).wait().unwrap(), Ok(3));
}

/// A panic while publishing, in a turn inside a group, or in the listener leaves no transaction open and no one waiting.
#[test]
fn f39_a_panic_anywhere_on_the_writer_leaves_it_writing() {
    let store = Store::new();
    let handle = store.handle(ActorOptions::default());
    let (dropped, waits) = mpsc::channel::<()>();
    handle.write_then(
        |engine| write_next(engine, "s", 1).unwrap(),
        move |_, _| {
            let _keeps = dropped;
            panic!("while publishing");
        },
    );
    assert!(waits.recv().is_err(), "whoever waits is let go");
    let in_group = handle.turn(|engine| {
        engine.group(|engine| {
            write_next(engine, "s", 2).unwrap();
            panic!("inside a group");
        })
    });
    let in_group: Result<Result<(), EngineError>, EngineError> = in_group.wait();
    assert!(matches!(in_group, Err(EngineError::Panicked(text)) if text == "inside a group"));
    let next = handle.write(|engine| write_next(engine, "s", 2)).wait().unwrap();
    assert_eq!(next.unwrap(), Seq(2));
    assert_eq!(handle.read(prefix).wait().unwrap(), Ok(2));
    let other = rusqlite::Connection::open(&store.path).unwrap();
    other.busy_timeout(std::time::Duration::ZERO).unwrap();
    other.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
}
