//! A really full file system: fills the one its argument lies on (a small one: `mount -t tmpfs -o size=32m tmpfs DIR`), and
//! shows what a full disk does to a space: the refusal's name, reads going on, a store that rests and is read again, and
//! writing resumed once there is room. Ends with an error at the first thing that is not as it should be.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine_faults::audit::{Acknowledged, audit};
use engine_faults::workload;
use memory_engine::{ActorOptions, EngineError, EngineHandle, StoreLocation};

fn main() {
    let directory = PathBuf::from(
        std::env::args()
            .nth(1)
            .expect("a directory on a small file system"),
    );
    let store = directory.join("store.sqlite");
    let handle = EngineHandle::new(
        StoreLocation::File(store.clone()),
        workload::options(),
        ActorOptions {
            idle_close: Duration::from_millis(20),
            ..ActorOptions::default()
        },
    );
    let mut commits = workload::of_session("s");
    let mut acknowledged = Vec::new();
    for round in 1..=5 {
        let (refused, commit) = loop {
            let commit = commits.next().expect("there is no end of commits");
            match write(&handle, &commit) {
                Ok(seq) => acknowledged.push(told(&commit, seq)),
                Err(error) => break (error, commit),
            }
            fill(
                &directory.join(format!("ballast-{}", acknowledged.len())),
                2 << 20,
            );
        };
        assert!(matches!(refused, EngineError::StoreFull(_)), "{refused:?}");
        println!("round {round}: after {} commits: {refused}", acknowledged.len());
        let seen = handle
            .read(|reader| reader.server_seq())
            .wait()
            .and_then(|seq| seq);
        assert_eq!(seen.expect("reads go on").0, acknowledged.len() as u64);
        // A space that rests meanwhile, and is read again.
        let closed = handle.close().wait();
        let seen = handle
            .read(|reader| reader.server_seq())
            .wait()
            .and_then(|seq| seq);
        println!("  closing: {closed:?}; reading again: {seen:?}");
        throw_out(&directory);
        let seq = write(&handle, &commit).expect("writing resumes");
        acknowledged.push(told(&commit, seq));
        println!("  room again: commit {seq} accepted by the same handle");
        // A space that came to rest in time, on a disk that is full since.
        handle.close().wait().expect("there is room for closing");
        while !handle.is_resting() {
            std::thread::yield_now();
        }
        fill(&directory.join("ballast-brim"), 1 << 30);
        let seen = handle
            .read(|reader| reader.server_seq())
            .wait()
            .and_then(|seq| seq);
        println!("  full again, opened to read: {seen:?}");
        throw_out(&directory);
    }
    drop(handle);
    let audited = audit(&store, &acknowledged).expect("the store is whole");
    println!("{audited:?}");
}

fn write(handle: &EngineHandle, commit: &memory_wire::message::ClientCommit) -> Result<u64, EngineError> {
    let commit = commit.clone();
    let written = handle.write(move |engine| workload::apply(engine, "s", &commit));
    Ok(written.wait()??.seq.0)
}

fn told(commit: &memory_wire::message::ClientCommit, seq: u64) -> Acknowledged {
    Acknowledged {
        session: workload::key("s"),
        local_seq: commit.local_seq.0,
        seq,
    }
}

fn throw_out(directory: &Path) {
    for entry in fs::read_dir(directory).expect("the directory can be read") {
        let path = entry.expect("and its entries").path();
        if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("ballast"))
        {
            fs::remove_file(path).expect("ballast can be thrown out");
        }
    }
}

/// Writes until `bytes` or the end of the file system.
fn fill(path: &Path, bytes: usize) {
    let mut file = File::create(path).expect("ballast can be taken on");
    // Whatever fits.
    let _ = file.write_all(&vec![7; bytes]);
}
