//! `cargo xtask bench`: measures on a release build, prints the figures, and appends them to `docs/performance.md` with
//! the commit and the machine's core count. Without options it is the whole-system bench; with `--load`, load on a real
//! server against the server's bounds.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::check;

/// Where the figures go.
const PAGE: &str = "docs/performance.md";

/// A subcommand of the load program, in the order they are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// Memory of connected sessions that do nothing.
    Idle,
    /// One writer, many watchers, some that have stopped reading.
    FanOut,
    /// Everybody comes back at once.
    Herd,
    /// Sessions that come, watch and go.
    Churn,
    /// A commit on its watchers' wires against a bare broadcast.
    Broadcast,
}

/// Measures the whole system.
pub(crate) fn system(root: &Path) -> Result<bool> {
    let release = build(root)?;
    let (table, done) = measure(root, &release, "system-bench", &[])?;
    ensure!(done, "the bench failed");
    append(root, &section(root, "")?, &table)?;
    Ok(true)
}

/// Puts load on a server, each kind on one of its own. False when a bound was missed; the figures are kept all the same.
pub(crate) fn load(root: &Path, kinds: &[Load]) -> Result<bool> {
    let kinds = if kinds.is_empty() {
        Load::value_variants()
    } else {
        kinds
    };
    let release = build(root)?;
    let mut tables = Vec::new();
    let mut all_held = true;
    for kind in kinds {
        let name = kind
            .to_possible_value()
            .context("every kind of load has a name")?;
        let (table, held) = measure(root, &release, "load", &[name.get_name()])?;
        ensure!(held || !table.is_empty(), "load {} failed", name.get_name());
        all_held &= held;
        tables.push(table);
    }
    append(root, &section(root, "Load, ")?, &tables.join("\n"))?;
    Ok(all_held)
}

/// Builds what is measured; returns where it lies.
fn build(root: &Path) -> Result<PathBuf> {
    let arguments = [
        "build",
        "--release",
        "--locked",
        "-p",
        "tests",
        "-p",
        "space-server",
        "--bins",
    ];
    ensure!(check::run(root, "cargo", &arguments)?, "the release build failed");
    Ok(check::target_directory(root)?.join("release"))
}

/// Runs a measuring program; returns what it printed, and whether it was content with it.
fn measure(root: &Path, release: &Path, program: &str, arguments: &[&str]) -> Result<(String, bool)> {
    let output = Command::new(release.join(program))
        .args(arguments)
        .env("SPACE_SERVER", release.join("space-server"))
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("running {program} {}", arguments.join(" ")))?;
    let table = String::from_utf8(output.stdout).with_context(|| format!("what {program} printed"))?;
    println!("{table}");
    Ok((table, output.status.success()))
}

/// The heading of a new section.
fn section(root: &Path, what: &str) -> Result<String> {
    let said = |program: &str, arguments: &[&str]| -> Result<String> {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(root)
            .output()
            .with_context(|| format!("running {program}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = said("git", &["rev-parse", "--short", "HEAD"])?;
    let date = said("date", &["-u", "+%Y-%m-%d"])?;
    let cores = std::thread::available_parallelism().context("the number of cores")?;
    Ok(format!(
        "## {what}{date} at {commit}, {cores} cores, release build"
    ))
}

fn append(root: &Path, heading: &str, figures: &str) -> Result<()> {
    println!("{heading} → {PAGE}");
    let mut page = OpenOptions::new()
        .append(true)
        .create(true)
        .open(root.join(PAGE))
        .context(PAGE)?;
    write!(page, "\n{heading}\n\n{figures}").context(PAGE)
}
