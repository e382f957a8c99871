//! One store from many threads: order, grouping, what readers see, and that nothing (a panic, a dropped reply, a
//! handle that goes away, another process) leaves a transaction open or a write half done.

mod groups;

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use memory_engine::{
    ActorOptions, Applied, ApplyCommit, Engine, EngineError, EngineHandle, EngineOptions, ReadInstance,
    StoreLocation,
};
use memory_wire::ids::{BranchName, LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::scope_key::{InstanceId, Scope};
use memory_wire::value;
use memory_wire::value::Value;

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

    fn handle(&self) -> EngineHandle {
        self.handle_with(ActorOptions::default())
    }

    fn handle_with(&self, options: ActorOptions) -> EngineHandle {
        EngineHandle::new(
            StoreLocation::File(self.path.clone()),
            EngineOptions::default(),
            options,
        )
    }
}

fn commit(local_seq: u64, writes: &[(&str, u64)]) -> ClientCommit {
    let set = |(id, n): &(&str, u64)| Operation::Set {
        id: (*id).into(),
        scope: Scope::Space,
        value: value!({ "value": (*n) }),
    };
    let parts = CommitParts {
        operations: writes.iter().map(set).collect(),
        ..CommitParts::default()
    };
    ClientCommit::build(LocalSeq(local_seq), parts)
}

fn apply(engine: &mut Engine, session: &str, commit: &ClientCommit) -> Result<Applied, EngineError> {
    engine.apply_commit(ApplyCommit::authored(&session.into(), None, commit, 0))
}

fn number(reader: &memory_engine::Reader, id: &str) -> Option<u64> {
    reader
        .read_space_value(&id.into())
        .unwrap()
        .as_ref()
        .and_then(Value::as_u64)
}

/// Blocks the writer until the returned sender is used or dropped, so that what is queued meanwhile waits together.
fn hold(handle: &EngineHandle) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    drop(handle.turn(move |_| {
        started.send(()).unwrap();
        let _ = held.recv();
    }));
    running.recv().unwrap();
    release
}

/// Waits until the threads of an idle space have ended.
fn rest(handle: &EngineHandle) {
    while !handle.is_resting() {
        std::thread::yield_now();
    }
}

#[test]
fn handles_and_engines_move_between_threads() {
    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}
    shared::<EngineHandle>();
    moved::<Engine>();
    moved::<memory_engine::Reader>();
    moved::<memory_engine::WaveCommit>();
    moved::<EngineError>();
}

#[test]
fn inv_10_readers_see_committed_prefixes_only() {
    let store = Store::new();
    let handle = store.handle();
    handle
        .write(|engine| apply(engine, "s", &commit(1, &[("of:a", 1), ("of:b", 1)])).unwrap())
        .wait()
        .unwrap();
    let highest = Arc::new(AtomicU64::new(1));
    let stop = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (handle, highest, stop) = (handle.clone(), highest.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut seen = 0;
                let mut reads = 0u64;
                while stop.load(Ordering::SeqCst) == 0 || reads < 20 {
                    let acknowledged = highest.load(Ordering::SeqCst);
                    let (seq, a, b, head) = handle
                        .read(|reader| {
                            let seq = reader.server_seq().unwrap().0;
                            // Time enough for the writer to move on in between.
                            std::thread::yield_now();
                            let a = number(reader, "of:a").unwrap();
                            let b = number(reader, "of:b").unwrap();
                            (seq, a, b, reader.head_seq(&BranchName::default()).unwrap().0)
                        })
                        .wait()
                        .unwrap();
                    assert_eq!((a, b, head), (seq, seq, seq), "one read saw more than one state");
                    assert!(seq >= acknowledged, "an acknowledged write was not seen");
                    assert!(seq >= seen, "a reader went back in time");
                    seen = seq;
                    reads += 1;
                }
            })
        })
        .collect();
    for n in 2..=200 {
        let seq = handle
            .write(move |engine| {
                apply(engine, "s", &commit(n, &[("of:a", n), ("of:b", n)]))
                    .unwrap()
                    .seq
                    .0
            })
            .wait()
            .unwrap();
        highest.store(seq, Ordering::SeqCst);
    }
    stop.store(1, Ordering::SeqCst);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// Field fault F39: a dropped reply (a cancelled request) neither cancels nor tears the write.
#[test]
fn f39_dropping_the_reply_leaves_the_write_whole() {
    let store = Store::new();
    let handle = store.handle();
    let release = hold(&handle);
    for n in 1..=10 {
        let mut reply =
            Box::pin(handle.write(move |engine| apply(engine, "s", &commit(n, &[("of:a", n)])).map(|_| ())));
        let poll = reply.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending(), "the writer is held");
        drop(reply);
    }
    drop(release);
    let seen = handle.turn(|engine| (engine.server_seq().unwrap(), number(engine.reader(), "of:a")));
    assert_eq!(seen.wait().unwrap(), (Seq(10), Some(10)));
}

/// A reply is a future that needs no runtime: it wakes whoever polled it last.
#[test]
fn a_reply_wakes_its_task() {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let store = Store::new();
    let handle = store.handle();
    let release = hold(&handle);
    let mut reply =
        pin!(handle.write(|engine| apply(engine, "s", &commit(1, &[("of:a", 1)])).map(|a| a.seq)));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    assert!(reply.as_mut().poll(&mut context).is_pending());
    drop(release);
    let seq = loop {
        match reply.as_mut().poll(&mut context) {
            Poll::Ready(result) => break result.unwrap().unwrap(),
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(seq, Seq(1));
}

#[test]
fn dropping_the_last_handle_runs_what_is_queued() {
    let store = Store::new();
    let handle = store.handle();
    let release = hold(&handle);
    let replies: Vec<_> = (1..=5)
        .map(|n| handle.write(move |engine| apply(engine, "s", &commit(n, &[("of:a", n)])).map(|a| a.seq.0)))
        .collect();
    drop(handle);
    drop(release);
    let seqs: Vec<u64> = replies
        .into_iter()
        .map(|reply| reply.wait().unwrap().unwrap())
        .collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
}

/// Field fault F39: a result that nobody takes is dropped by the space's own thread, whatever its owner does then.
#[test]
fn f39_a_result_that_panics_when_it_is_dropped_ends_no_thread() {
    struct Brittle;
    impl Drop for Brittle {
        fn drop(&mut self) {
            panic!("nobody took it");
        }
    }
    let store = Store::new();
    let handle = store.handle_with(ActorOptions {
        max_readers: 1,
        ..ActorOptions::default()
    });
    let release = hold(&handle);
    drop(handle.turn(|_| Brittle));
    drop(handle.write(|_| Brittle));
    drop(handle.read(|_| Brittle));
    drop(release);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let turn = handle.turn(|_| 1).wait().unwrap();
        let write = handle.write(|_| 2).wait().unwrap();
        let read = handle.read(|_| 3).wait().unwrap();
        tell.send((turn, write, read)).unwrap();
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), (1, 2, 3));
}

/// Also what the readers have not begun with yet, whose connections are made by the writer.
#[test]
fn dropping_the_last_handle_runs_the_reads_that_are_queued() {
    let store = Store::new();
    let handle = store.handle();
    handle
        .write(|engine| apply(engine, "s", &commit(1, &[("of:a", 7)])).unwrap().seq)
        .wait()
        .unwrap();
    for _ in 0..20 {
        let handle = store.handle();
        let reads: Vec<_> = (0..9)
            .map(|_| handle.read(|reader| number(reader, "of:a")))
            .collect();
        drop(handle);
        for read in reads {
            assert_eq!(read.wait().unwrap(), Some(7));
        }
    }
}

#[test]
fn f39_closing_truncates_the_log_and_the_next_job_opens_again() {
    let store = Store::new();
    let handle = store.handle();
    for n in 1..=50 {
        handle
            .write(move |engine| {
                apply(engine, "s", &commit(n, &[("of:a", n)]))
                    .map(|_| ())
                    .unwrap()
            })
            .wait()
            .unwrap();
    }
    handle.close().wait().unwrap();
    let wal = store.path.with_extension("sqlite-wal");
    assert_eq!(
        std::fs::metadata(&wal).map(|meta| meta.len()).unwrap_or(0),
        0,
        "the log is truncated"
    );
    assert_eq!(
        handle.read(|reader| number(reader, "of:a")).wait().unwrap(),
        Some(50)
    );
}

#[test]
fn idle_threads_end_and_come_back() {
    let store = Store::new();
    let short = ActorOptions {
        idle_close: Duration::from_millis(20),
        ..ActorOptions::default()
    };
    let handle = store.handle_with(short);
    for n in 1..=5 {
        handle
            .write(move |engine| {
                apply(engine, "s", &commit(n, &[("of:a", n)]))
                    .map(|_| ())
                    .unwrap()
            })
            .wait()
            .unwrap();
        assert_eq!(
            handle.read(|reader| number(reader, "of:a")).wait().unwrap(),
            Some(n)
        );
        if n % 2 == 0 {
            rest(&handle);
        }
    }
}

#[test]
fn a_store_in_memory_outlives_idle_threads_and_reads_through_the_writer() {
    let short = ActorOptions {
        idle_close: Duration::from_millis(5),
        ..ActorOptions::default()
    };
    let handle = EngineHandle::new(StoreLocation::Memory, EngineOptions::default(), short);
    handle
        .write(|engine| {
            apply(engine, "s", &commit(1, &[("of:a", 7)]))
                .map(|_| ())
                .unwrap()
        })
        .wait()
        .unwrap();
    rest(&handle);
    assert_eq!(
        handle.read(|reader| number(reader, "of:a")).wait().unwrap(),
        Some(7)
    );
}

#[test]
fn a_store_that_cannot_be_opened_answers_every_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing").join("store.sqlite");
    let handle = EngineHandle::new(
        StoreLocation::File(path),
        EngineOptions::default(),
        ActorOptions::default(),
    );
    assert!(matches!(
        handle.turn(|_| ()).wait(),
        Err(EngineError::BadStore(_))
    ));
    assert!(matches!(
        handle.read(|_| ()).wait(),
        Err(EngineError::BadStore(_))
    ));
    assert!(matches!(
        handle.write(|_| ()).wait(),
        Err(EngineError::BadStore(_))
    ));
    // A write with a publication of its own learns it in another way: there is no engine to publish with.
    let (dropped, published) = mpsc::channel::<()>();
    handle.write_then(|_| (), move |_, _| dropped.send(()).unwrap());
    assert!(published.recv().is_err());
    assert!(matches!(handle.open_failure(), Some(EngineError::BadStore(_))));
}

/// ENG-208: two handles on one file stand for two processes. Each learns of the other's commits, in order, and before its
/// own commit that follows them.
#[test]
fn eng_208_commits_of_another_process_are_told_once_in_order() {
    let store = Store::new();
    let quick = ActorOptions {
        foreign_poll: Duration::from_millis(5),
        ..ActorOptions::default()
    };
    let (ours, theirs) = (store.handle_with(quick), store.handle_with(quick));
    ours.turn(|_| ()).wait().unwrap();
    let (tell, told) = mpsc::channel();
    let own = tell.clone();
    ours.watch_foreign(Some(Box::new(move |engine, records| {
        for record in records {
            // Told when readable, never before.
            assert!(engine.server_seq().unwrap() >= record.seq);
            tell.send((record.seq.0, record.writes.len())).unwrap();
        }
    })));
    for n in 1..=3 {
        theirs
            .write(move |engine| {
                apply(engine, "t", &commit(n, &[("of:a", n), ("of:b", n)]))
                    .map(|_| ())
                    .unwrap()
            })
            .wait()
            .unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), (n, 2));
    }
    // Without polling, an own write notices what went before it.
    let release = hold(&ours);
    theirs
        .write(|engine| {
            apply(engine, "t", &commit(4, &[("of:a", 4)]))
                .map(|_| ())
                .unwrap()
        })
        .wait()
        .unwrap();
    ours.write_then(
        |engine| apply(engine, "s", &commit(1, &[("of:c", 5)])).unwrap().seq.0,
        move |_, seq| own.send((seq.unwrap(), 100)).unwrap(),
    );
    drop(release);
    assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), (4, 1));
    assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), (5, 100));
    // Own commits are never told: this turn looks for foreign ones first, and finds none.
    ours.turn(|_| ()).wait().unwrap();
    assert_eq!(told.try_iter().next(), None);
    ours.watch_foreign(None);
}

/// A document in use is answered without SQLite only as of a look that was made: not as of the time before anybody watched.
#[test]
fn eng_208_what_was_written_before_the_watch_began_is_seen() {
    let store = Store::new();
    let rarely = ActorOptions {
        foreign_poll: Duration::from_secs(3_600),
        ..ActorOptions::default()
    };
    let (ours, theirs) = (store.handle_with(rarely), store.handle());
    let write = |handle: &EngineHandle, session: &'static str, n| {
        handle
            .write(move |engine| apply(engine, session, &commit(1, &[("of:a", n)])).unwrap().seq)
            .wait()
            .unwrap()
    };
    write(&ours, "s", 1);
    assert_eq!(write(&theirs, "t", 2), Seq(2));
    ours.watch_foreign(Some(Box::new(|_, _| {})));
    let state = ours
        .state(&InstanceId::space("of:a"), &BranchName::default())
        .wait();
    assert_eq!(state.unwrap().unwrap().unwrap().seq, Seq(2));
    ours.watch_foreign(None);
}

/// A store may be closed while it is watched; what happens meanwhile is told when it is open again.
#[test]
fn eng_208_what_others_write_while_a_watched_store_is_closed_is_told() {
    let store = Store::new();
    let rarely = ActorOptions {
        foreign_poll: Duration::from_secs(3_600),
        ..ActorOptions::default()
    };
    let (ours, theirs) = (store.handle_with(rarely), store.handle());
    let (tell, told) = mpsc::channel();
    ours.watch_foreign(Some(Box::new(move |_, records| {
        records.iter().for_each(|record| tell.send(record.seq).unwrap());
    })));
    let write = |handle: &EngineHandle, session: &'static str, n| {
        handle
            .write(move |engine| apply(engine, session, &commit(n, &[("of:a", n)])).unwrap().seq)
            .wait()
            .unwrap()
    };
    write(&ours, "s", 1);
    assert_eq!(write(&theirs, "t", 1), Seq(2));
    ours.close().wait().unwrap();
    assert_eq!(write(&theirs, "t", 2), Seq(3));
    assert_eq!(write(&ours, "s", 2), Seq(4));
    ours.turn(|_| ()).wait().unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [Seq(2), Seq(3)]);
    ours.watch_foreign(None);
}

#[test]
fn eng_143_two_writers_on_one_file_never_lose_or_reuse_a_seq() {
    let store = Store::new();
    let handles = [store.handle(), store.handle()];
    handles[0].turn(|_| ()).wait().unwrap();
    let writers: Vec<_> = handles
        .iter()
        .cloned()
        .enumerate()
        .map(|(index, handle)| {
            std::thread::spawn(move || {
                let session = format!("s{index}");
                (1..=60)
                    .map(|n| {
                        let session = session.clone();
                        let write =
                            handle.write(move |engine| apply(engine, &session, &commit(n, &[("of:a", n)])));
                        write.wait().unwrap().unwrap().seq.0
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    let mut seqs: Vec<u64> = writers
        .into_iter()
        .flat_map(|writer| writer.join().unwrap())
        .collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=120).collect::<Vec<_>>());
    // Each sees the whole, through caches warmed by its own writes.
    for handle in &handles {
        let head = handle.turn(|engine| {
            let state = engine.read_state(&"of:a".into(), ReadInstance::Space, &BranchName::default(), None);
            state.unwrap().unwrap().seq
        });
        assert_eq!(head.wait().unwrap(), Seq(120));
    }
}
