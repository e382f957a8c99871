//! What the engine costs over SQLite itself: every figure is a ratio against a bare `rusqlite` loop that writes the same
//! rows into the same schema, with the same pragmas and in the same number of transactions, or reads the same rows.
//! Both sides are measured in turns within one run; a ratio is the median over the turns.
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

use std::time::Duration;

use memory_engine::Durability;

/// Both settings, with the word that names them.
const DURABILITIES: [(Durability, &str); 2] = [(Durability::Normal, "normal"), (Durability::Full, "full")];

/// The middle of what was measured.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Pairs of durations, ours and the floor's, of the same work.
#[derive(Default)]
struct Pairs(Vec<(Duration, Duration)>);

impl Pairs {
    fn add(&mut self, ours: Duration, floor: Duration) {
        self.0.push((ours, floor));
    }

    /// Prints the ratio's line, and what one of `per` operations took on both sides.
    fn report(&self, name: &str, bound: f64, per: usize) {
        let ratio = median(
            self.0
                .iter()
                .map(|(ours, floor)| ours.as_secs_f64() / floor.as_secs_f64())
                .collect(),
        );
        let each = |side: fn(&(Duration, Duration)) -> Duration| {
            median(self.0.iter().map(|pair| side(pair).as_secs_f64()).collect()) * 1e6 / per as f64
        };
        println!(
            "ratio {name} {ratio:.2} (bound {bound})   ours {:.1} us, floor {:.1} us, {} turns of {per}",
            each(|pair| pair.0),
            each(|pair| pair.1),
            self.0.len(),
        );
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
        ("single", single::run),
        ("grouped", grouped::run),
        ("read", read::run),
        ("large", large::run),
        ("idle", idle::run),
    ];
    for (name, run) in sections {
        if chosen.is_empty() || chosen.iter().any(|word| word == name) {
            run();
        }
    }
}
