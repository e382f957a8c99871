//! Tests whose every case is a pure function of its seed: a few seeds in an ordinary run, and the long runs of
//! `cargo xtask long` go on with others. `LONG_FROM` and `LONG_COUNT` (decimal) choose them; seeds that once found something
//! stand one a line in `tests/corpus/NAME.seeds` and come first.

use std::path::Path;

use proptest::test_runner::{Config, RngSeed};

/// The seeds to try: `smoke` of them unless the environment says otherwise.
pub(crate) fn seeds(name: &str, smoke: u64) -> impl Iterator<Item = u64> {
    let number = |variable: &str| {
        let text = std::env::var(variable).ok()?;
        Some(
            text.parse::<u64>()
                .unwrap_or_else(|error| panic!("{variable}={text}: {error}")),
        )
    };
    let from = number("LONG_FROM").unwrap_or(0);
    corpus(name)
        .into_iter()
        .chain(from..from + number("LONG_COUNT").unwrap_or(smoke))
}

fn corpus(name: &str) -> Vec<u64> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/corpus/{name}.seeds"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            line.parse()
                .unwrap_or_else(|error| panic!("{}: {line}: {error}", file.display()))
        })
        .collect()
}

/// Cases that are the same in every run, with shrinking and without files.
pub(crate) fn same_cases(cases: u32, seed: u64) -> Config {
    Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    }
}

/// A number that depends on every bit of a seed: choices of a case that are not to follow each other.
pub(crate) fn mixed(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    for shift in [30, 27] {
        mixed = (mixed ^ (mixed >> shift)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    mixed ^ (mixed >> 31)
}
