//! What an open space costs that nobody uses: resident memory while its file is still open, and what is left when it
//! has been closed.

use std::path::Path;
use std::time::Duration;

use memory_engine::{ActorOptions, EngineHandle, EngineOptions, StoreLocation};

use crate::directory;
use crate::workload::Client;

const SPACES: usize = 600;

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Uses each of many spaces once; how many files were open at most.
fn use_once(directory: &Path, options: ActorOptions) -> (Vec<EngineHandle>, usize) {
    let mut most = 0;
    let mut handles = Vec::new();
    for n in 0..SPACES {
        let location = StoreLocation::File(directory.join(format!("{n}.sqlite")));
        let handle = EngineHandle::new(location, EngineOptions::default(), options);
        let mut client = Client::new(0);
        let commit = client.set(0);
        let landed = handle.write(move |engine| client.apply(engine, &commit).map(|done| done.replayed));
        landed.wait().expect("a group").expect("an honest commit");
        most = most.max(open_files());
        handles.push(handle);
    }
    (handles, most)
}

#[allow(
    clippy::disallowed_methods,
    reason = "the stores come to rest by themselves, in their own time"
)]
pub(crate) fn run() {
    // All that is used from here on counts, also what the first use leaves behind.
    let before = resident_kib();
    let directory = directory();
    // Once to make the stores, in the way a server has them: few of them open.
    let (handles, most) = use_once(directory.path(), ActorOptions::default());
    println!("count open_files_at_most {most} (bound 1024)   of {SPACES} spaces");
    drop(handles);
    std::thread::sleep(Duration::from_secs(1));
    // And once with all of them kept open.
    let open_all = ActorOptions {
        idle_close: Duration::from_secs(3_600),
        crowd: SPACES,
        ..ActorOptions::default()
    };
    let (handles, _) = use_once(directory.path(), open_all);
    let each = |now: u64| now.saturating_sub(before) as f64 / SPACES as f64;
    println!("      just used: {:.1} KiB a space", each(resident_kib()));
    std::thread::sleep(Duration::from_secs(4));
    println!("      at rest: {:.1} KiB a space", each(resident_kib()));
    let open = handles.iter().filter(|handle| !handle.is_resting()).count();
    println!(
        "      {open} of {SPACES} open and at rest, {} files",
        open_files()
    );
    println!("ratio idle_space_kib {:.1} (bound 256)", each(resident_kib()));
}
