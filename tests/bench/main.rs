//! Whole-system figures: what a commit costs against raw SQLite in the same run, how long a click takes to reach
//! somebody else as a derived update, and how many derived commits a click costs. Prints a Markdown section.

mod commits;
mod figures;
mod poll;

use anyhow::Result;
use figures::Report;

fn main() -> Result<()> {
    let rounds: u64 = std::env::var("BENCH_COMMITS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2_000);
    let clicks: u64 = std::env::var("BENCH_CLICKS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(300);
    let mut report = Report::default();
    commits::raw_and_engine(&mut report, rounds)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        commits::over_sockets(&mut report, rounds).await?;
        poll::clicks(&mut report, clicks).await
    })?;
    print!("{}", report.markdown());
    Ok(())
}
