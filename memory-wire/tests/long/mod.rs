//! Properties whose every case is a pure function of its seed: a test of a few hundred seeds that the long runs of
//! `cargo xtask long` go on with. `LONG_FROM` and `LONG_COUNT` (decimal) choose the seeds; seeds that once found
//! something stand one a line in `tests/corpus/NAME.seeds` and are always tried first.

#![allow(
    dead_code,
    reason = "every test compiles its own copy and may use a part of it"
)]

use std::ops::Range;
use std::path::Path;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseResult, TestRunner};

/// The seed of the properties that have no long run: a test says the same thing each time.
pub(crate) const FIXED: RngSeed = RngSeed::Fixed(0x5EED);

/// A configuration of `proptest!` that tries the same `cases` each time and writes no files.
pub(crate) fn same_cases(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        rng_seed: FIXED,
        ..Config::default()
    }
}

/// Checks one generated input for each seed; `smoke` seeds unless the environment says otherwise.
///
/// # Panics
/// At the first seed whose input fails, with the seed and the smallest failing input found.
pub(crate) fn for_each_seed<S: Strategy>(
    name: &str,
    smoke: u64,
    strategy: &S,
    check: impl Fn(S::Value) -> TestCaseResult,
) {
    let chosen = chosen_seeds(smoke);
    let count = chosen.end - chosen.start;
    for seed in corpus(name).into_iter().chain(chosen) {
        let config = Config {
            rng_seed: RngSeed::Fixed(seed),
            ..same_cases(1)
        };
        if let Err(failure) = TestRunner::new(config).run(strategy, &check) {
            panic!("{name}: seed {seed}: {failure}");
        }
    }
    println!("{name}: {count} seeds");
}

fn chosen_seeds(smoke: u64) -> Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(
            text.parse::<u64>()
                .unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        )
    };
    let from = number("LONG_FROM").unwrap_or(0);
    from..from + number("LONG_COUNT").unwrap_or(smoke)
}

fn corpus(name: &str) -> Vec<u64> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/corpus/{name}.seeds"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            line.parse()
                .unwrap_or_else(|e| panic!("{}: {line}: {e}", file.display()))
        })
        .collect()
}
