//! Which seeds a seeded test runs: the kept ones first, then `LONG_COUNT` from `LONG_FROM` on.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs `case` on the seeds kept in `tests/corpus/{corpus}.seeds`, then on the seeds the environment asks for, by default
/// the first `smoke`. A failure names its seed.
pub fn run(corpus: &str, smoke: u64, case: impl Fn(u64)) {
    for seed in kept(corpus) {
        one(seed, &case);
    }
    let from = number("LONG_FROM").unwrap_or(0);
    let count = number("LONG_COUNT").unwrap_or(smoke);
    for seed in from..from.saturating_add(count) {
        one(seed, &case);
    }
}

fn one(seed: u64, case: &impl Fn(u64)) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(seed))) {
        let said = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
        match said {
            Some(said) => panic!("seed {seed}: {said}"),
            None => {
                eprintln!("seed {seed}");
                resume_unwind(panic)
            }
        }
    }
}

fn kept(corpus: &str) -> Vec<u64> {
    let path = format!("{}/tests/corpus/{corpus}.seeds", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .map(|line| {
            line.parse()
                .unwrap_or_else(|error| panic!("{path}: {line}: {error}"))
        })
        .collect()
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error}")),
    )
}
