//! Load on the real server, measured from outside: the server is a child process, this process holds the sockets and
//! reads the child's memory from `/proc`. Every subcommand prints Markdown rows and ends with an error when a bound of
//! the server is missed. `cargo xtask bench --load` runs them on a release build.

mod broadcast;
mod churn;
mod fan_out;
mod herd;
mod idle;
mod peer;
mod process_memory;
mod space;
mod verdict;

use anyhow::Result;
use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use verdict::Verdicts;

/// Load on the server.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Memory of connected sessions that do nothing.
    Idle {
        /// How many.
        #[arg(long, default_value_t = 10_000)]
        sessions: usize,
    },
    /// One writer, many watchers, and some that have stopped reading.
    FanOut {
        /// Sessions that read.
        #[arg(long, default_value_t = 1_000)]
        watchers: usize,
        /// Sessions that never read their sockets.
        #[arg(long, default_value_t = 50)]
        stalled: usize,
        /// Commits.
        #[arg(long, default_value_t = 300)]
        commits: usize,
    },
    /// Everybody comes back at once.
    Herd {
        /// How many.
        #[arg(long, default_value_t = 2_000)]
        sessions: usize,
    },
    /// Sessions that come, watch and go.
    Churn {
        /// How often.
        #[arg(long, default_value_t = 100_000)]
        cycles: usize,
    },
    /// A commit on its watchers' wires, against a bare broadcast of the same bytes.
    Broadcast {
        /// Watchers.
        #[arg(long, default_value_t = 100)]
        watchers: usize,
        /// Commits.
        #[arg(long, default_value_t = 2_000)]
        commits: usize,
    },
    /// The bare broadcaster that `broadcast` measures against.
    #[command(hide = true)]
    Floor,
}

fn main() -> Result<()> {
    let what = CommandLine::parse().what;
    raise_open_files()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut verdicts = Verdicts::default();
    runtime.block_on(async {
        match what {
            What::Idle { sessions } => idle::run(&mut verdicts, sessions).await,
            What::FanOut {
                watchers,
                stalled,
                commits,
            } => fan_out::run(&mut verdicts, watchers, stalled, commits).await,
            What::Herd { sessions } => herd::run(&mut verdicts, sessions).await,
            What::Churn { cycles } => churn::run(&mut verdicts, cycles).await,
            What::Broadcast { watchers, commits } => broadcast::run(&mut verdicts, watchers, commits).await,
            What::Floor => broadcast::serve_floor().await,
        }
    })?;
    verdicts.finish()
}

/// As many sockets as the system grants, here and, by inheritance, in the server.
fn raise_open_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    Ok(())
}
