//! `cargo xtask ci --with-rocksdb`: builds the node store's third backend from its bundled C++ and runs the tests of the
//! whole crate with it. Not part of the ordinary CI, because the build takes the better part of an hour of one core.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::check;

const PACKAGE: &str = "node-store";
/// One profile only: the C++ is built once, for tests and benches alike.
const FEATURE: [&str; 5] = ["--release", "--locked", "--features", "rocksdb", "--quiet"];

/// Installs what is missing, builds, tests, and repeats the closing lines of every test program; true when all passed.
pub(crate) fn test(root: &Path) -> Result<bool> {
    check::install(&missing())?;
    let started = Instant::now();
    println!("building {PACKAGE} with RocksDB");
    let built = check::run(
        root,
        "cargo",
        &[&["test", "-p", PACKAGE, "--no-run"][..], &FEATURE].concat(),
    )?;
    ensure!(built, "the build failed");
    println!("built in {} s", started.elapsed().as_secs());
    let (closing, passed) = run(root)?;
    println!("\nclosing lines:");
    for line in &closing {
        println!("{line}");
    }
    ensure!(!closing.is_empty(), "no test ran");
    Ok(passed)
}

/// The packages that are not installed: the compiler, and the library that reads the C headers.
fn missing() -> Vec<&'static str> {
    let mut missing = Vec::new();
    if !check::is_installed("g++") {
        missing.push("g++");
    }
    if !has_libclang() {
        missing.push("libclang-dev");
    }
    missing
}

/// Whether Debian's development package of libclang is there. Its headers are needed as much as its library, so a
/// library file alone says too little.
fn has_libclang() -> bool {
    let state = Command::new("dpkg-query")
        .args(["-W", "-f=${Status}", "libclang-dev"])
        .output();
    state.is_ok_and(|output| output.stdout.ends_with(b"ok installed"))
}

/// Runs the tests and passes on what they say; the lines in which the test programs sum up, and whether all passed.
fn run(root: &Path) -> Result<(Vec<String>, bool)> {
    let mut tests = Command::new("cargo")
        .args(["test", "-p", PACKAGE, "--no-fail-fast"])
        .args(FEATURE)
        .args(["--", "--nocapture"])
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("running cargo test")?;
    let said = tests.stdout.take().context("the tests' output")?;
    let mut closing = Vec::new();
    for line in BufReader::new(said).lines() {
        let line = line.context("the tests' output")?;
        println!("{line}");
        if line.starts_with("test result:") {
            closing.push(line);
        }
    }
    let status = tests.wait().context("waiting for the tests")?;
    Ok((closing, status.success()))
}
