//! The `space-server` program: `serve` for a data directory, `demo` for the lunch poll.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use memory_server::LogCounts;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use space_server::application::Application;
use space_server::configuration::{Command, CommandLine, Configuration};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Gives back what sessions that are gone have used, in a thread of its own; see `cargo xtask bench --load churn`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code when the address is taken (SRV §14).
const ADDRESS_TAKEN: u8 = 3;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log_counts = LogCounts::default();
    // Standard output belongs to the ready line.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry()
        .with(filter)
        .with(log_counts.clone())
        .with(lines)
        .init();
    let outcome = match CommandLine::parse().command {
        Command::Serve(arguments) => run(&arguments, false, log_counts),
        Command::Demo(arguments) => run(&arguments, true, log_counts),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("space-server: {error:#}");
            let taken = error
                .chain()
                .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
                .any(|cause| cause.kind() == std::io::ErrorKind::AddrInUse);
            if taken {
                ExitCode::from(ADDRESS_TAKEN)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Each connection is an open file: as many as the system grants, not as few as a shell begins with.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(files = limit.maximum, "open files"),
        Err(error) => tracing::warn!(%error, files = limit.current, "the limit of open files stays"),
    }
}

fn run(
    arguments: &space_server::configuration::ServeArguments,
    with_demo: bool,
    log_counts: LogCounts,
) -> anyhow::Result<()> {
    let configuration =
        Configuration::from_environment(arguments, with_demo, memory_server::knobs::environment)?;
    if arguments.print_config {
        print!("{}", configuration.resolved.to_toml());
        return Ok(());
    }
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let application = Application::start(&configuration, with_demo, log_counts).await?;
        println!("ready http://{}", application.address());
        application
            .serve(async move {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            })
            .await
    })
}
