//! What the engine costs over SQLite itself: every figure is a ratio against a bare `rusqlite` loop that writes the same
//! rows into the same schema, with the same pragmas and in the same number of transactions, or reads the same rows.
//! Both sides are measured in turns within one run; a ratio is the median over the turns, or of all turns together where
//! checkpoints fall into few of them.
//!
//! `cargo bench -p memory-engine`; words after `--` choose sections (`single`, `grouped`, `read`, `large`, `idle`).
//! Lines read `ratio NAME x.xx (bound y)` and `count NAME n (bound m)`. Files are made under `BENCH_DIR`, by default the
//! system's temporary directory, which should be on the disk that is asked about.

mod floor;
mod grouped;
mod idle;
mod large;
mod read;
mod single;
mod workload;

use std::time::{Duration, Instant};

use memory_engine::Durability;

/// That of the server program, for both sides; SQLite itself uses the C library's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Both settings, with the word that names them.
const DURABILITIES: [(Durability, &str); 2] = [(Durability::Normal, "normal"), (Durability::Full, "full")];

/// The middle of what was measured.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// What a piece of work took: by the clock on the wall, and of the processors.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: Duration,
    /// Nothing where it was not asked for.
    cpu: Duration,
}

impl Took {
    /// By the clock on the wall alone.
    fn of_wall(wall: Duration) -> Took {
        Took {
            wall,
            cpu: Duration::ZERO,
        }
    }
}

/// Runs `work` and measures it; whatever else this process does meanwhile counts as its own.
fn measured(work: impl FnOnce()) -> Took {
    let (cpu, start) = (processor_time(), Instant::now());
    work();
    Took {
        wall: start.elapsed(),
        cpu: processor_time().saturating_sub(cpu),
    }
}

/// Of all threads that live; nothing where the system does not say.
fn processor_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let of = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    Duration::from_nanos(tasks.filter_map(of).sum())
}

/// Pairs of measurements, ours and the floor's, of the same work.
#[derive(Default)]
struct Pairs(Vec<(Took, Took)>);

impl Pairs {
    fn add(&mut self, ours: Took, floor: Took) {
        self.0.push((ours, floor));
    }

    /// Prints the line of the median ratio, and what one of `per` operations took on both sides. The ratio of processor time
    /// is disturbed less by other processes.
    fn report(&self, name: &str, bound: f64, per: usize) {
        let (median, total) = (self.median(|took| took.wall), self.total());
        let processors = self.median(|took| took.cpu);
        println!(
            "ratio {name} {median:.2} (bound {bound})   over all turns {total:.2}, of processor time {processors:.2}; {}",
            self.each(per)
        );
    }

    /// The same with the ratio over all turns, for work that costs much more in some turns than in others, as a checkpoint
    /// does: those of one side need not be those of the other.
    fn report_total(&self, name: &str, bound: f64, per: usize) {
        let (median, total) = (self.median(|took| took.wall), self.total());
        println!(
            "ratio {name} {total:.2} (bound {bound})   median of turns {median:.2}; {}",
            self.each(per)
        );
    }

    fn median(&self, of: fn(&Took) -> Duration) -> f64 {
        let one = |(ours, floor): &(Took, Took)| of(ours).as_secs_f64() / of(floor).as_secs_f64();
        median(self.0.iter().map(one).collect())
    }

    fn total(&self) -> f64 {
        let sum = |of: fn(&(Took, Took)) -> Duration| self.0.iter().map(of).sum::<Duration>().as_secs_f64();
        sum(|pair| pair.0.wall) / sum(|pair| pair.1.wall)
    }

    fn each(&self, per: usize) -> String {
        let each = |of: fn(&(Took, Took)) -> Duration| {
            median(self.0.iter().map(|pair| of(pair).as_secs_f64()).collect()) * 1e6 / per as f64
        };
        let (ours, floor) = (each(|pair| pair.0.wall), each(|pair| pair.1.wall));
        format!(
            "ours {ours:.1} us, floor {floor:.1} us, {} turns of {per}",
            self.0.len()
        )
    }
}

fn directory() -> tempfile::TempDir {
    let root = std::env::var_os("BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    tempfile::tempdir_in(root).expect("a directory for the stores")
}

fn main() {
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let sections: [(&str, fn()); 5] = [
        // First: what other sections leave behind would hide what this one uses.
        ("idle", idle::run),
        ("single", single::run),
        ("grouped", grouped::run),
        ("read", read::run),
        ("large", large::run),
    ];
    for (name, run) in sections {
        if chosen.is_empty() || chosen.iter().any(|word| word == name) {
            run();
        }
    }
}
