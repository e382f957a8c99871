//! What an open space costs that nobody uses: resident memory while its file is still open, and what is left when it
//! has been closed.

use memory_engine::{ActorOptions, EngineHandle, EngineOptions, StoreLocation};

use crate::directory;
use crate::workload::Client;

const SPACES: usize = 2_000;

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

pub(crate) fn run() {
    let directory = directory();
    let before = resident_kib();
    let handles: Vec<EngineHandle> = (0..SPACES)
        .map(|n| {
            let location = StoreLocation::File(directory.path().join(format!("{n}.sqlite")));
            EngineHandle::new(location, EngineOptions::default(), ActorOptions::default())
        })
        .collect();
    let mut most = 0;
    for handle in &handles {
        let mut client = Client::new(0);
        let commit = client.set(0);
        handle
            .write(move |engine| client.apply(engine, &commit).map(|done| done.seq))
            .wait()
            .expect("a group")
            .expect("an honest commit");
        most = most.max(open_files());
    }
    let of = |kib: u64| kib as f64 / SPACES as f64;
    let open = handles.iter().filter(|handle| !handle.is_resting()).count();
    println!(
        "      just used: {:.1} KiB a space, {open} of {SPACES} open",
        of(resident_kib().saturating_sub(before))
    );
    std::thread::sleep(std::time::Duration::from_secs(8));
    let open = handles.iter().filter(|handle| !handle.is_resting()).count();
    println!(
        "      {open} of {SPACES} open after a rest, {} files",
        open_files()
    );
    println!(
        "ratio idle_space_kib {:.1} (bound 256)",
        of(resident_kib().saturating_sub(before))
    );
    println!("count open_files_at_most {most} (bound 1024)");
    drop(handles);
}
