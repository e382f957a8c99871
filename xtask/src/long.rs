//! `cargo xtask long NAME`: the checks that are too long for CI. Each is an ordinary test that works through seeds,
//! `LONG_FROM` and the `LONG_COUNT` that follow; `cargo test` gives it a handful, this command gives it the number in
//! `xtask/long.toml`, in a process a chunk, and goes on where it was interrupted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::check;

/// The table of runs, from the workspace root.
const TABLE: &str = "xtask/long.toml";

/// One long run: which test, and how many seeds it is given.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    package: String,
    /// The integration test's name; the library's own tests when absent.
    test: Option<String>,
    /// The test function, with its modules.
    name: String,
    /// Features of the package that the test needs.
    #[serde(default)]
    features: Vec<String>,
    /// What one seed stands for.
    unit: String,
    /// Seeds of a whole run.
    total: u64,
    /// Seeds a process.
    chunk: u64,
}

/// Runs `name` from seed `from` (default: where the last run stopped) until `count` seeds (default: the table's) are
/// done. Without a name, lists the runs.
pub(crate) fn run(root: &Path, name: Option<&str>, from: Option<u64>, count: Option<u64>) -> Result<bool> {
    let runs = table(root)?;
    let Some(name) = name else {
        for (name, run) in &runs {
            println!("{name:<28} {} {} of {}", run.total, run.unit, run.package);
        }
        return Ok(true);
    };
    let Some(run) = runs.get(name) else {
        let known: Vec<&str> = runs.keys().map(String::as_str).collect();
        bail!("no long run {name:?}; there are {}", known.join(", "));
    };
    let progress = Progress {
        path: check::target_directory(root)?.join("long").join(name),
    };
    let mut next = match from {
        Some(seed) => seed,
        None => progress.read()?,
    };
    let end = match (from, count) {
        (Some(from), count) => from.saturating_add(count.unwrap_or(run.total)),
        (None, count) => count.unwrap_or(run.total),
    };
    if next >= end {
        println!(
            "{name}: {next} {} are done already; --from 0 starts anew",
            run.unit
        );
        return Ok(true);
    }
    let (first, started) = (next, Instant::now());
    while next < end {
        let chunk = run.chunk.min(end - next);
        println!("{name}: {} {next}..{}", run.unit, next + chunk);
        if !run.chunk(root, next, chunk)? {
            println!("{name}: failed within {} {next}..{}", run.unit, next + chunk);
            return Ok(false);
        }
        next += chunk;
        progress.write(next)?;
    }
    let seconds = started.elapsed().as_secs();
    println!(
        "{name}: {} {} without a finding, {seconds} s",
        next - first,
        run.unit
    );
    Ok(true)
}

impl Run {
    /// One process over `count` seeds from `from`; true when the test ran and passed.
    fn chunk(&self, root: &Path, from: u64, count: u64) -> Result<bool> {
        let target = match &self.test {
            Some(test) => vec!["--test", test],
            None => vec!["--lib"],
        };
        let features = self.features.join(",");
        let status = Command::new("cargo")
            .args(["test", "--quiet", "--release", "--locked", "-p", &self.package])
            .args(target)
            .args(["--features", &features])
            .args(["--", "--exact", &self.name, "--nocapture"])
            .env("LONG_FROM", from.to_string())
            .env("LONG_COUNT", count.to_string())
            .current_dir(root)
            .status()
            .context("running cargo test")?;
        Ok(status.success())
    }
}

/// How far a run has come, kept beside what cargo builds.
struct Progress {
    path: PathBuf,
}

impl Progress {
    fn read(&self) -> Result<u64> {
        match fs::read_to_string(&self.path) {
            Ok(text) => text
                .trim()
                .parse()
                .with_context(|| format!("{}: {text:?} is no seed", self.path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error).with_context(|| self.path.display().to_string()),
        }
    }

    fn write(&self, next: u64) -> Result<()> {
        let folder = self.path.parent().context("the progress file has a folder")?;
        fs::create_dir_all(folder)?;
        fs::write(&self.path, next.to_string()).with_context(|| self.path.display().to_string())
    }
}

fn table(root: &Path) -> Result<BTreeMap<String, Run>> {
    let text = fs::read_to_string(root.join(TABLE)).context(TABLE)?;
    toml::from_str(&text).context(TABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run whose test was renamed would pass by running nothing.
    #[test]
    fn every_run_names_a_test_that_is_there() {
        let root = crate::workspace_root();
        let mut metadata = cargo_metadata::MetadataCommand::new();
        let metadata = metadata
            .manifest_path(root.join("Cargo.toml"))
            .no_deps()
            .exec()
            .unwrap();
        for (name, run) in table(&root).unwrap() {
            assert!(run.chunk > 0 && run.total > 0, "{name} does nothing");
            let function = run.name.rsplit("::").next().unwrap();
            let package = metadata
                .packages
                .iter()
                .find(|package| *package.name == run.package);
            let package = package.unwrap_or_else(|| panic!("{name}: no package {}", run.package));
            let package = package.manifest_path.parent().unwrap().as_std_path();
            let start = match &run.test {
                Some(test) => package.join("tests").join(test),
                None => package.join("src"),
            };
            let found = sources(&start).iter().any(|source| {
                let text = fs::read_to_string(source).unwrap();
                text.contains(&format!("fn {function}("))
            });
            assert!(
                found,
                "{name}: no test function {function} under {}",
                start.display()
            );
        }
    }

    /// The Rust files of a test target: its file, and all in the folder of its name.
    fn sources(start: &Path) -> Vec<PathBuf> {
        let mut found = vec![start.with_extension("rs")];
        let mut folders = vec![start.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(path),
                }
            }
        }
        found.retain(|path| path.is_file() && path.extension().is_some_and(|extension| extension == "rs"));
        found
    }
}
