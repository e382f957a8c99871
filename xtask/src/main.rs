//! Workspace chores. `cargo xtask lint` keeps the project's own laws; the other commands run what is too
//! long or too particular for `cargo test`.

mod bench;
mod check;
mod fuzz;
mod lint;
mod long;

use std::path::PathBuf;
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
    Bench,
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
        Command::Bench => bench::run(&workspace_root()),
        Command::FuzzSmoke { seconds, targets } => fuzz::smoke(&workspace_root(), seconds, &targets),
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

/// The workspace root: the parent of this crate's directory.
fn workspace_root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}
