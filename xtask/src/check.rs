//! `cargo xtask test`: everything that has to pass, with what it needs installed first. The README's second command.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Programs that the tests drive, and the Debian packages that bring them.
const NEEDED: &[(&str, &str)] = &[
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("node", "nodejs"),
    ("tsc", "node-typescript"),
];

/// Interleavings of the server and of its store: they need locks and threads to be a scheduler's, so they are built apart.
const SCHEDULES: &[&str] = &[
    "test",
    "-p",
    "memory-server",
    "-p",
    "memory-engine",
    "--features",
    "schedules",
    "--test",
    "schedules",
    "--locked",
];

/// Installs what is missing, then runs the Rust tests and the page's own.
pub(crate) fn test(root: &Path) -> Result<bool> {
    install_missing()?;
    let page = root.join("space-server/page");
    Ok(run(
        root,
        "cargo",
        &["test", "--workspace", "--locked", "--no-fail-fast"],
    )? && run(root, "cargo", SCHEDULES)?
        && run(&page, "tsc", &["-p", "."])?
        && run(&page, "node", &["--test", "test/"])?)
}

/// Where cargo builds.
pub(crate) fn target_directory(root: &Path) -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("cargo metadata")?;
    Ok(metadata.target_directory.into())
}

/// Installs the packages of absent programs.
fn install_missing() -> Result<()> {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !is_installed(program))
        .map(|(_, package)| *package)
        .collect();
    install(&missing)
}

/// Installs Debian packages with apt-get, through sudo when not root.
pub(crate) fn install(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(", "));
    let as_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    for arguments in [
        vec!["update", "-qq"],
        [&["install", "-y", "-qq"], missing].concat(),
    ] {
        let mut command = if as_root {
            Command::new("apt-get")
        } else {
            Command::new("sudo")
        };
        if !as_root {
            command.arg("apt-get");
        }
        let status = command
            .args(&arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .status();
        if !status.context("running apt-get")?.success() {
            bail!("apt-get {} failed", arguments.join(" "));
        }
    }
    Ok(())
}

/// Whether a program is on the path.
pub(crate) fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|paths| std::env::split_paths(&paths).any(|dir| dir.join(program).is_file()))
}

/// Runs a command in `directory` with the caller's terminal; true when it succeeded.
pub(crate) fn run(directory: &Path, program: &str, arguments: &[&str]) -> Result<bool> {
    let status = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .status()
        .with_context(|| format!("running {program} {}", arguments.join(" ")))?;
    Ok(status.success())
}
