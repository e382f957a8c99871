//! `cargo xtask fuzz-smoke`: runs the fuzz targets of the protocol crate one after the other, each from its committed
//! seeds and for a given time, and prints what it did. The first finding fails the command; longer runs are the same
//! command with more seconds, and `docs/verification.md` keeps the longest.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Where the targets are.
const FUZZ: &str = "memory-wire/fuzz";
/// Most memory one input may take, in megabytes.
const MEMORY_LIMIT: u32 = 2048;
/// Longest time one input may take, in seconds.
const TIME_LIMIT: u32 = 20;
/// Lines of a failed run that are shown; the finding stands at the end.
const SHOWN_LINES: usize = 40;

/// Fuzzes the named targets, or all; true when none has a finding.
pub(crate) fn smoke(root: &Path, seconds: u32, named: &[String]) -> Result<bool> {
    require_tools(root)?;
    let all = targets(root)?;
    if let Some(unknown) = named.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target {unknown}; there are {}", all.join(", "));
    }
    let chosen = if named.is_empty() { &all } else { named };
    println!(
        "| target | seeds | seconds | executions | peak MB | findings |\n| --- | --- | --- | --- | --- | --- |"
    );
    let mut clean = true;
    for target in chosen {
        clean &= run(root, target, seconds)?;
    }
    Ok(clean)
}

/// The targets by name: a target is a file.
fn targets(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(FUZZ).join("fuzz_targets")).context("reading the fuzz targets")? {
        let path = entry?.path();
        if let (Some(name), Some("rs")) = (
            path.file_stem().and_then(|name| name.to_str()),
            path.extension().and_then(|extension| extension.to_str()),
        ) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn require_tools(root: &Path) -> Result<()> {
    let works = |arguments: &[&str]| {
        let output = Command::new("cargo").args(arguments).current_dir(root).output();
        output.is_ok_and(|output| output.status.success())
    };
    ensure!(
        works(&["+nightly", "--version"]),
        "fuzzing needs a nightly compiler: rustup toolchain install nightly"
    );
    ensure!(
        works(&["fuzz", "--version"]),
        "fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked"
    );
    Ok(())
}

/// Runs one target and prints its row; what a failed run said goes to the error stream.
fn run(root: &Path, target: &str, seconds: u32) -> Result<bool> {
    let fuzz = root.join(FUZZ);
    let (corpus, seeds) = (fuzz.join("corpus").join(target), fuzz.join("seeds").join(target));
    let dictionary = fuzz.join("dict").join(format!("{target}.dict"));
    fs::create_dir_all(&corpus).with_context(|| format!("making {}", corpus.display()))?;
    let seed_count = fs::read_dir(&seeds)
        .with_context(|| format!("the seeds of {target}"))?
        .count();
    ensure!(seed_count > 0, "{target} has no seeds");
    let output = Command::new("cargo")
        .args(["+nightly", "fuzz", "run", "--fuzz-dir", FUZZ, target])
        .args([&corpus, &seeds])
        .arg("--")
        .arg(format!("-dict={}", dictionary.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_LIMIT}"))
        .arg(format!("-timeout={TIME_LIMIT}"))
        .arg("-print_final_stats=1")
        .current_dir(root)
        .output()
        .context("running cargo fuzz")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let statistic = |name: &str| {
        let value = said.lines().find_map(|line| line.strip_prefix(name));
        value.map_or("?", str::trim)
    };
    let executions = statistic("stat::number_of_executed_units:");
    let peak = statistic("stat::peak_rss_mb:");
    let findings = if output.status.success() {
        "none"
    } else {
        "**yes**"
    };
    println!("| {target} | {seed_count} | {seconds} | {executions} | {peak} | {findings} |");
    if !output.status.success() {
        let lines: Vec<&str> = said.lines().collect();
        let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        eprintln!("{}", shown.join("\n"));
    }
    Ok(output.status.success())
}
