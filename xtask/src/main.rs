//! Workspace chores. `cargo xtask lint` keeps the project's own laws; the other commands run what is too
//! long or too particular for `cargo test`.

mod bench;
mod check;
mod fuzz;
mod lint;
mod long;
mod rocksdb;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Command line of `cargo xtask`.
#[derive(Parser)]
#[command(name = "xtask", about = "Workspace chores")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the laws that the compiler cannot: crate graph, one scope-key definition, forbidden identifiers of
    /// the serving loop, module documentation, pinned protocol hash. Prints a file-size report.
    Lint,
    /// Install what the tests need (Debian packages) and run all of them.
    Test,
    /// Measure the whole system on a release build and append the figures to docs/performance.md.
    Bench {
        /// Put load on a real server instead, of these kinds or of all; fails when a bound is missed.
        #[arg(long, value_enum, num_args = 0.., value_name = "KIND")]
        load: Option<Vec<bench::Load>>,
    },
    /// Fuzz every target of the protocol crate for a while each, from the committed seeds. Needs a nightly compiler
    /// and cargo-fuzz.
    FuzzSmoke {
        /// Seconds for each target.
        #[arg(long, default_value_t = 30)]
        seconds: u32,
        /// Only these targets.
        #[arg(long = "target")]
        targets: Vec<String>,
    },
    /// Run everything that has to pass: the laws, then the tests.
    Ci {
        /// Only the tests of the node store's third backend, whose C++ takes the better part of an hour to build.
        #[arg(long)]
        with_rocksdb: bool,
    },
    /// Run one of the long checks of `xtask/long.toml`, or list them.
    Long {
        /// Which one.
        name: Option<String>,
        /// First seed; without it, the run goes on where it stopped.
        #[arg(long)]
        from: Option<u64>,
        /// Seeds to run, instead of the table's number.
        #[arg(long)]
        count: Option<u64>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Lint => lint::run(&workspace_root()),
        Command::Test => check::test(&workspace_root()),
        Command::Bench { load: None } => bench::system(&workspace_root()),
        Command::Bench { load: Some(kinds) } => bench::load(&workspace_root(), &kinds),
        Command::FuzzSmoke { seconds, targets } => fuzz::smoke(&workspace_root(), seconds, &targets),
        Command::Ci { with_rocksdb: true } => rocksdb::test(&workspace_root()),
        Command::Ci { with_rocksdb: false } => ci(&workspace_root()),
        Command::Long { name, from, count } => long::run(&workspace_root(), name.as_deref(), from, count),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The laws, then the tests; the tests run whatever the laws say.
fn ci(root: &Path) -> anyhow::Result<bool> {
    let lawful = lint::run(root)?;
    Ok(check::test(root)? && lawful)
}

/// The workspace root: the parent of this crate's directory, as `cargo run` says at run time. Where two checkouts share a
/// build directory, what was true at compile time may be the other checkout.
fn workspace_root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map(PathBuf::from).unwrap_or(here)
}
