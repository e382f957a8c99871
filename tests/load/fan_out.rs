//! One writer, many watchers, and some that have stopped reading their sockets: these must cost the others nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt};
use memory_wire::message::{CommitParts, Operation};
use memory_wire::{EntityId, Scope};
use tokio::sync::mpsc;

use crate::peer::{Dial, Peer, effect_seq};
use crate::process_memory::resident;
use crate::space::{Loaded, document, root, set, signer};
use crate::verdict::{Latencies, Verdicts};

/// What each commit makes the stalled sessions' queues grow by.
const BALLAST: usize = 64 * 1024;

/// Pause after each commit has reached everybody.
const PAUSE: Duration = Duration::from_millis(10);

/// A watcher's frame has arrived.
struct Arrival {
    seq: u64,
    at: Instant,
}

pub(crate) async fn run(
    verdicts: &mut Verdicts,
    watchers: usize,
    stalled: usize,
    commits: usize,
) -> Result<()> {
    let loaded = Loaded::start(&[]).await?;
    let mut writer = loaded.enter(&signer(0), "writer", Dial::default()).await?;
    writer.commit(set("of:hot".into(), document(0, 500))).await?;
    writer
        .commit(set("of:ballast".into(), document(0, BALLAST)))
        .await?;
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let reading: Vec<Peer> = enter(&loaded, "reader", watchers, &["of:hot"], Dial::default()).await?;
    for mut peer in reading {
        let arrived = arrived.clone();
        tokio::spawn(async move {
            while let Ok(text) = peer.next_text().await {
                let at = Instant::now();
                if let Some(seq) = effect_seq(&text)
                    && arrived.send(Arrival { seq, at }).is_err()
                {
                    return;
                }
            }
        });
    }
    // Their sockets stay open and are never polled again.
    let dial = Dial {
        receive_buffer: Some(8 * 1024),
    };
    let dead = enter(&loaded, "stalled", stalled, &["of:hot", "of:ballast"], dial).await?;

    let mut latencies = Latencies::new()?;
    let before = resident(loaded.pid())?;
    for n in 1..=commits {
        let parts = CommitParts {
            operations: vec![
                operation("of:hot", document(n, 500)),
                operation("of:ballast", document(n, BALLAST)),
            ],
            ..CommitParts::default()
        };
        let (request, text) = writer.commit_text(parts)?;
        let sent = Instant::now();
        writer.send(text).await?;
        let seq = writer.verdict(&request).await?;
        let mut waiting = watchers;
        while waiting > 0 {
            let arrival = arrivals.recv().await.context("the watchers are gone")?;
            if arrival.seq >= seq {
                latencies.record(arrival.at.duration_since(sent))?;
                waiting -= 1;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    let skipped = loaded.metric("memory_sessions_skipped_total")?;
    let (p50, p99) = (latencies.at(50.0), latencies.at(99.0));
    verdicts.figure(
        &format!("fan-out: commit → {watchers} watchers, {stalled} stalled"),
        &latencies,
    );
    verdicts.bound(
        "fan-out: p99 / p50",
        format!("{:.2}", p99 / p50),
        "<= 5",
        p99 <= 5.0 * p50,
    );
    verdicts.bound(
        "fan-out: evaluations spared to stalled sessions",
        skipped,
        "> 0",
        stalled == 0 || skipped > 0.0,
    );
    verdicts.figure("fan-out: server before, KiB", before);
    verdicts.figure("fan-out: server after, KiB", resident(loaded.pid())?);
    drop(dead);
    Ok(())
}

fn operation(id: &str, value: memory_wire::Value) -> Operation {
    Operation::Set {
        id: EntityId::from(id),
        scope: Scope::Space,
        value,
    }
}

async fn enter(
    loaded: &Loaded,
    name: &str,
    count: usize,
    documents: &[&str],
    dial: Dial,
) -> Result<Vec<Peer>> {
    futures_util::stream::iter((0..count).map(|n| async move {
        let mut peer = loaded.enter(&signer(n), &format!("{name}-{n}"), dial).await?;
        peer.watch(documents.iter().map(|id| root(id)).collect()).await?;
        anyhow::Ok(peer)
    }))
    .buffer_unordered(32)
    .try_collect()
    .await
}
