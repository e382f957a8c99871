//! Sessions that come, watch and go: whatever each leaves behind would add up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use memory_wire::SessionId;

use crate::peer::{Dial, Peer};
use crate::process_memory::{peak, reset_peak, resident};
use crate::space::{Loaded, document, root, set, signer};
use crate::verdict::Verdicts;

/// Cycles at once.
const WORKERS: usize = 16;

/// Signers that take turns.
const SIGNERS: usize = 1_000;

/// Gauges that must be zero when everybody has gone.
const GAUGES: [&str; 7] = [
    "memory_connections",
    "memory_sessions",
    "memory_sessions_owed",
    "memory_watches",
    "memory_tracked_documents",
    "memory_held_documents",
    "memory_outbound_queue_bytes",
];

pub(crate) async fn run(verdicts: &mut Verdicts, cycles: usize) -> Result<()> {
    let loaded = Arc::new(Loaded::start(&[]).await?);
    let mut writer = loaded.enter(&signer(0), "writer", Dial::default()).await?;
    for n in 0..4 {
        writer.commit(set(name(n).into(), document(n, 1_000))).await?;
    }
    writer.leave().await?;
    let baseline = resident(loaded.pid())?;
    reset_peak(loaded.pid())?;
    let started = Instant::now();
    cycle(&loaded, cycles).await?;
    let took = started.elapsed();
    settle(&loaded).await?;
    let (after, peak) = (resident(loaded.pid())?, peak(loaded.pid())?);
    let change = (after as f64 / baseline as f64 - 1.0) * 100.0;
    verdicts.figure("churn: baseline, the server before the first, KiB", baseline);
    verdicts.figure("churn: peak, KiB", peak);
    verdicts.figure(
        &format!("churn: {cycles} cycles"),
        format!("{:.0} cycles/s", cycles as f64 / took.as_secs_f64()),
    );
    verdicts.bound(
        &format!("churn: after {cycles} cycles, KiB"),
        format!("{after} ({change:+.1} %)"),
        "baseline ± 5 %",
        change.abs() <= 5.0,
    );
    for gauge in GAUGES {
        let value = loaded.metric(gauge)?;
        verdicts.bound(&format!("churn: {gauge}"), value, "0", value == 0.0);
    }
    Ok(())
}

/// Until the last session has expired and the allocator has had time to give back.
async fn settle(loaded: &Loaded) -> Result<()> {
    loaded.emptied().await?;
    tokio::time::sleep(Duration::from_secs(12)).await;
    Ok(())
}

async fn cycle(loaded: &Arc<Loaded>, count: usize) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (loaded, next) = (Arc::clone(loaded), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return anyhow::Ok(());
                    }
                    one(&loaded, n).await?;
                }
            })
        })
        .collect();
    for worker in workers {
        worker
            .await
            .map_err(|error| anyhow!("a worker was lost: {error}"))??;
    }
    Ok(())
}

async fn one(loaded: &Loaded, n: usize) -> Result<()> {
    let mut peer = Peer::connect(loaded.address, Dial::default()).await?;
    peer.open(
        &loaded.space,
        &signer(n % SIGNERS),
        &SessionId::from(format!("churn-{n}")),
        None,
    )
    .await?;
    peer.watch((0..4).map(|n| root(&name(n))).collect()).await?;
    peer.leave().await
}

fn name(n: usize) -> String {
    format!("of:churn-{n}")
}
