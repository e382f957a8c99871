//! `cargo xtask bench`: runs the whole-system bench on a release build, prints it, and appends it to
//! `docs/performance.md` with the commit and the machine's core count.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::check;

/// Measures, prints and appends.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let built = check::run(
        root,
        "cargo",
        &[
            "build",
            "--release",
            "--locked",
            "-p",
            "tests",
            "-p",
            "space-server",
            "--bins",
        ],
    )?;
    ensure!(built, "the release build failed");
    let release = check::target_directory(root)?.join("release");
    let output = Command::new(release.join("system-bench"))
        .env("SPACE_SERVER", release.join("space-server"))
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("running the bench")?;
    ensure!(output.status.success(), "the bench failed");
    let table = String::from_utf8(output.stdout).context("the bench's output")?;
    let commit = Command::new("git")
        .args(["rev-parse", "--short", "HEAD"])
        .current_dir(root)
        .output();
    let commit = commit
        .ok()
        .and_then(|o| String::from_utf8(o.stdout).ok())
        .unwrap_or_default();
    let date = Command::new("date")
        .args(["-u", "+%Y-%m-%d"])
        .output()
        .context("date")?;
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    let section = format!(
        "\n## {} at {}, {cores} cores, release build\n\n{table}",
        String::from_utf8_lossy(&date.stdout).trim(),
        commit.trim(),
    );
    println!("{section}");
    let path = root.join("docs/performance.md");
    let mut page = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .context("docs/performance.md")?;
    page.write_all(section.as_bytes())?;
    Ok(true)
}
