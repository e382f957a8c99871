//! A process to be killed: opens the store named by its first argument in `full` mode and commits from as many threads as
//! its second says, for ever, or as many commits a thread as its fourth says. Every acknowledged commit is told on
//! standard output, a line each: session, local seq, seq. The third argument begins the names of its sessions, from
//! which everything they commit follows.

use std::io::Write;
use std::path::PathBuf;
use std::thread;

use engine_faults::workload;
use memory_engine::{ActorOptions, EngineHandle, StoreLocation};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().expect("the store's path"));
    let writers: u64 = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .expect("how many writers");
    let tag = arguments.next().expect("the beginning of its sessions' names");
    let each: u64 = arguments
        .next()
        .map_or(u64::MAX, |text| text.parse().expect("commits a writer"));
    let actor = ActorOptions {
        // Small, so that kills meet the log being emptied, too.
        log_limit: 4 << 20,
        ..ActorOptions::default()
    };
    let handle = EngineHandle::new(StoreLocation::File(path), workload::options(), actor);
    let threads: Vec<_> = (0..writers)
        .map(|writer| {
            let (handle, session) = (handle.clone(), format!("{tag}w{writer}"));
            thread::spawn(move || commit(&handle, &session, each))
        })
        .collect();
    for thread in threads {
        thread.join().expect("writers do not panic");
    }
    handle.close().wait().expect("the store closes");
}

/// Commits of one session, each answered before the next is sent.
fn commit(handle: &EngineHandle, session: &str, each: u64) {
    for (local_seq, commit) in (1..=each).zip(workload::of_session(session)) {
        let by = session.to_owned();
        let applied = handle
            .write(move |engine| workload::apply(engine, &by, &commit))
            .wait()
            .and_then(|applied| applied)
            .expect("the store takes commits");
        let line = format!("{session} {local_seq} {}\n", applied.seq);
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes())
            .and_then(|()| out.flush())
            .expect("somebody listens");
        drop(out);
        if local_seq % 7 == 0 {
            let read = handle
                .read(|reader| reader.server_seq())
                .wait()
                .and_then(|seq| seq);
            assert!(read.expect("the store can be read") >= applied.seq);
        }
    }
}
