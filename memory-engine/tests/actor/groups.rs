//! Writes that share a transaction: who gets in, in what order, and what becomes of them when one of them fails.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use memory_engine::actor::Reply;
use memory_engine::{ActorOptions, EngineError, EngineHandle};
use memory_wire::ids::Seq;

use super::{Store, apply, commit, hold, number};

#[test]
fn eng_206_writes_that_wait_together_share_a_transaction_and_stay_in_order() {
    let store = Store::new();
    let handle = store.handle();
    let release = hold(&handle);
    let published = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let watcher = rusqlite::Connection::open(&store.path);
    for n in 1..=20 {
        let published = published.clone();
        handle.write_then(
            move |engine| {
                let applied = apply(engine, "s", &commit(n, &[("of:x", n)])).unwrap();
                // Each member sees the ones before it.
                assert_eq!(number(engine.reader(), "of:x"), Some(n));
                applied.seq.0
            },
            move |engine, seq| {
                published
                    .lock()
                    .push((seq.unwrap(), engine.server_seq().unwrap().0))
            },
        );
    }
    let last = handle.turn(|engine| engine.server_seq().unwrap());
    drop(release);
    assert_eq!(last.wait().unwrap(), Seq(20));
    let published = published.lock();
    // Verdicts in order, and none before the whole group was durable.
    assert_eq!(
        published.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        (1..=20).collect::<Vec<_>>()
    );
    assert!(
        published.iter().all(|(_, durable)| *durable == 20),
        "{published:?}"
    );
    drop(watcher);
}

#[test]
fn a_turn_never_comes_between_a_write_and_its_publication() {
    let store = Store::new();
    let handle = store.handle();
    let release = hold(&handle);
    let log = Arc::new(parking_lot::Mutex::new(Vec::new()));
    for n in 1..=3 {
        let (work, publish, turn) = (log.clone(), log.clone(), log.clone());
        handle.write_then(
            move |engine| {
                apply(engine, "s", &commit(n, &[("of:x", n)])).unwrap();
                work.lock().push(format!("work {n}"));
            },
            move |_, _| publish.lock().push(format!("publish {n}")),
        );
        if n == 2 {
            drop(
                handle.turn(move |engine| turn.lock().push(format!("turn {}", engine.server_seq().unwrap()))),
            );
        }
    }
    drop(release);
    handle.turn(|_| ()).wait().unwrap();
    let want = [
        "work 1",
        "work 2",
        "publish 1",
        "publish 2",
        "turn 2",
        "work 3",
        "publish 3",
    ];
    assert_eq!(*log.lock(), want);
}

/// Field fault F39: a panic inside the commit closure leaves no open transaction, and takes nothing of its group along.
#[test]
fn f39_a_panic_in_a_commit_leaves_no_open_transaction_and_spares_its_group() {
    let store = Store::new();
    let handle = store.handle();
    let release = hold(&handle);
    let before = handle.write(|engine| apply(engine, "s", &commit(1, &[("of:a", 1)])).map(|a| a.seq));
    let panicking = handle.write(|engine| {
        apply(engine, "s", &commit(2, &[("of:a", 2), ("of:lost", 2)])).unwrap();
        panic!("on purpose");
    });
    let after = handle.write(|engine| apply(engine, "s", &commit(3, &[("of:b", 3)])).map(|a| a.seq));
    let turned = handle.turn(|_| panic!("in a turn"));
    let read = handle.read(|_| panic!("in a read"));
    drop(release);
    assert_eq!(before.wait().unwrap().unwrap(), Seq(1));
    assert!(matches!(panicking.wait(), Err(EngineError::Panicked(text)) if text == "on purpose"));
    // The seq of the rolled back member is free again, and no trace of it is left, in the file or in memory.
    assert_eq!(after.wait().unwrap().unwrap(), Seq(2));
    assert!(matches!(turned.wait(), Err(EngineError::Panicked(_))));
    assert!(matches!(read.wait(), Err(EngineError::Panicked(_))));
    let seen = handle.read(|reader| {
        (
            number(reader, "of:a"),
            number(reader, "of:lost"),
            number(reader, "of:b"),
        )
    });
    assert_eq!(seen.wait().unwrap(), (Some(1), None, Some(3)));
    let seen = handle.turn(|engine| {
        (
            number(engine.reader(), "of:a"),
            number(engine.reader(), "of:lost"),
        )
    });
    assert_eq!(seen.wait().unwrap(), (Some(1), None));
    // Another connection can take the write lock at once.
    let other = rusqlite::Connection::open(&store.path).unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    other.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
}

/// ENG-206: if the outer COMMIT fails every member fails. A deferred foreign key is what fails it here.
#[test]
fn eng_206_a_group_that_cannot_become_durable_fails_every_member() {
    let store = Store::new();
    let handle = store.handle();
    handle.turn(|_| ()).wait().unwrap();
    let side = rusqlite::Connection::open(&store.path).unwrap();
    side.execute_batch(
        "CREATE TABLE broken (seq INTEGER REFERENCES \"commit\"(seq) DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER breaks AFTER INSERT ON revision WHEN NEW.id = 'of:bad'
         BEGIN INSERT INTO broken VALUES (999); END;",
    )
    .unwrap();
    let release = hold(&handle);
    let replies: Vec<_> = ["of:a", "of:bad", "of:b"]
        .into_iter()
        .zip(1..)
        .map(|(id, n)| handle.write(move |engine| apply(engine, "s", &commit(n, &[(id, n)])).map(|_| ())))
        .collect();
    drop(release);
    for reply in replies {
        assert!(reply.wait().is_err());
    }
    let left: i64 = side
        .query_row("SELECT COUNT(*) FROM \"commit\"", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0);
    // And the space goes on.
    let seq = handle
        .write(|engine| apply(engine, "s", &commit(9, &[("of:a", 9)])).map(|a| a.seq))
        .wait();
    assert_eq!(seq.unwrap().unwrap(), Seq(1));
    assert_eq!(
        handle.read(|reader| number(reader, "of:a")).wait().unwrap(),
        Some(9)
    );
}

/// A write that has begun, and goes on when the returned sender is used.
fn begun(handle: &EngineHandle, id: &'static str, n: u64) -> (Reply<Seq>, mpsc::Sender<()>) {
    let (release, held) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    let reply = handle.write(move |engine| {
        started.send(()).unwrap();
        held.recv().unwrap();
        apply(engine, "s", &commit(n, &[(id, n)])).unwrap().seq
    });
    running.recv().unwrap();
    (reply, release)
}

#[test]
fn eng_206_who_comes_while_a_group_is_being_written_shares_its_transaction() {
    let store = Store::new();
    let handle = store.handle_with(ActorOptions {
        max_group: 3,
        ..ActorOptions::default()
    });
    handle.turn(|_| ()).wait().unwrap();
    let before = handle.counters().transactions;
    let (first, release) = begun(&handle, "of:a", 1);
    let write = |n| handle.write(move |engine| apply(engine, "s", &commit(n, &[("of:a", n)])).unwrap().seq);
    let others: Vec<_> = (2..=4).map(write).collect();
    release.send(()).unwrap();
    assert_eq!(first.wait().unwrap(), Seq(1));
    let seqs: Vec<_> = others.into_iter().map(|reply| reply.wait().unwrap()).collect();
    assert_eq!(seqs, [Seq(2), Seq(3), Seq(4)]);
    // Three are as many as a group takes.
    assert_eq!(handle.counters().transactions - before, 2);
}

/// What is queued behind a turn waits for it, however long the group before it stays open.
#[test]
fn a_turn_ends_the_group_that_is_being_written() {
    let store = Store::new();
    let handle = store.handle();
    let (first, release) = begun(&handle, "of:a", 1);
    let turn = handle.turn(|engine| engine.server_seq().unwrap());
    let last = handle.write(|engine| apply(engine, "s", &commit(2, &[("of:a", 2)])).unwrap().seq);
    release.send(()).unwrap();
    assert_eq!(first.wait().unwrap(), Seq(1));
    assert_eq!(turn.wait().unwrap(), Seq(1));
    assert_eq!(last.wait().unwrap(), Seq(2));
}

/// A write that comes when its group is past saving is not taken along: it waits for the next one.
#[test]
fn eng_206_a_group_that_is_lost_takes_in_nobody_more() {
    let store = Store::new();
    let handle = store.handle();
    handle.turn(|_| ()).wait().unwrap();
    let side = rusqlite::Connection::open(&store.path).unwrap();
    side.execute_batch(
        "CREATE TRIGGER ends AFTER INSERT ON revision WHEN NEW.id = 'of:bad'
         BEGIN SELECT RAISE(ROLLBACK, 'on purpose'); END;",
    )
    .unwrap();
    let (release, held) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    let bad = handle.write(move |engine| {
        started.send(()).unwrap();
        held.recv().unwrap();
        apply(engine, "s", &commit(1, &[("of:bad", 1)])).map(|_| ())
    });
    running.recv().unwrap();
    let good = handle.write(|engine| apply(engine, "s", &commit(2, &[("of:a", 2)])).map(|done| done.seq));
    release.send(()).unwrap();
    assert!(bad.wait().is_err());
    assert_eq!(good.wait().unwrap().unwrap(), Seq(1));
}
