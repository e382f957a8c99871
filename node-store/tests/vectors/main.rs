//! The golden rows, derivations and observed behaviours, whole files, each line named when it fails.

#[path = "../support/mod.rs"]
mod support;

mod derivations;
mod golden_rows;

use std::collections::BTreeSet;

use serde_json::Value;

use support::vectors::{bytes, lines, text};

/// Runs every line of a file and reports all that fail, each by its number and content.
fn run(file: &str, expected_lines: usize, mut check: impl FnMut(&Value) -> Result<(), String>) {
    let lines = lines(file);
    assert_eq!(lines.len(), expected_lines, "{file}");
    let failures: Vec<String> = lines
        .iter()
        .enumerate()
        .filter_map(|(index, line)| {
            let shown: String = line.to_string().chars().take(200).collect();
            check(line)
                .err()
                .map(|reason| format!("{file}:{}: {reason}\n    {shown}", index + 1))
        })
        .collect();
    println!(
        "{file}: {} of {} lines hold",
        lines.len() - failures.len(),
        lines.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: found {found:?}, expected {expected:?}"))
    }
}

fn id<const N: usize>(line: &Value, field: &str) -> [u8; N] {
    bytes(&line[field])
        .try_into()
        .unwrap_or_else(|bytes: Vec<u8>| panic!("{field}: {} bytes", bytes.len()))
}

#[test]
fn every_observed_behaviour_is_ours_or_is_the_better_one_that_the_page_asks_for() {
    let mut cases = BTreeSet::new();
    run("node-store-behaviour.jsonl", 79, |line| {
        let case = text(&line["case"]);
        cases.insert(case.to_owned());
        for (name, store) in support::stores() {
            support::behaviour::check(case, &line["result"], text(&line["backend"]), store)
                .map_err(|reason| format!("on {name}: {reason}"))?;
        }
        Ok(())
    });
    println!("{} distinct cases", cases.len());
}
