//! Everybody comes back at once, with the token of the session they had (field fault F8): opens queue, memory is bounded,
//! nobody's watches are lost.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt};
use memory_wire::SessionId;
use memory_wire::ids::SessionToken;

use crate::peer::{Dial, Peer};
use crate::process_memory::{peak, reset_peak, resident};
use crate::space::{Loaded, document, root, set, signer};
use crate::verdict::{Latencies, Verdicts};

/// Documents each session watches.
const WATCHED: usize = 20;

/// A herd may cost, beside what its sessions cost when they are connected, this much each, KiB.
const BOUND: f64 = 64.0;

pub(crate) async fn run(verdicts: &mut Verdicts, sessions: usize) -> Result<()> {
    let loaded = Loaded::start(&[]).await?;
    let mut writer = loaded.enter(&signer(0), "writer", Dial::default()).await?;
    for n in 0..WATCHED {
        writer.commit(set(name(n).into(), document(n, 1_000))).await?;
    }
    let fresh = resident(loaded.pid())?;
    let mut connected: Vec<(usize, SessionToken, Peer)> =
        futures_util::stream::iter((0..sessions).map(|n| {
            let loaded = &loaded;
            async move {
                let mut peer = Peer::connect(loaded.address, Dial::default()).await?;
                let opened = peer.open(&loaded.space, &signer(n), &id(n), None).await?;
                peer.watch((0..WATCHED).map(|n| root(&name(n))).collect()).await?;
                anyhow::Ok((n, opened.session_token, peer))
            }
        }))
        .buffer_unordered(32)
        .try_collect()
        .await?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let standing = resident(loaded.pid())?;
    verdicts.figure("herd: server without sessions, KiB", fresh);
    verdicts.figure(&format!("herd: server with {sessions} sessions, KiB"), standing);

    // Gone without a word, as when a network fails; and the space moves on meanwhile.
    let tokens: Vec<(usize, SessionToken)> = connected.drain(..).map(|(n, token, _)| (n, token)).collect();
    for n in 0..WATCHED / 2 {
        writer
            .commit(set(name(n).into(), document(1_000 + n, 1_000)))
            .await?;
    }
    reset_peak(loaded.pid())?;
    let started = Instant::now();
    let (space, address) = (loaded.space.clone(), loaded.address);
    let back = try_join_all(tokens.into_iter().map(|(n, token)| {
        let space = space.clone();
        tokio::spawn(async move {
            let mut peer = Peer::connect(address, Dial::default()).await?;
            let opened = peer.open(&space, &signer(n), &id(n), Some(token)).await?;
            let took = started.elapsed();
            let caught_up = opened.sync.is_some_and(|sync| sync.upserts.len() == WATCHED / 2);
            ensure!(
                opened.resumed && caught_up,
                "session {n} came back without what it had missed"
            );
            Ok((took, peer))
        })
    }))
    .await?;
    let mut latencies = Latencies::new()?;
    let mut peers = Vec::new();
    for one in back {
        let (took, peer) = one?;
        latencies.record(took)?;
        peers.push(peer);
    }
    let (peak, after) = (peak(loaded.pid())?, resident(loaded.pid())?);
    let each = peak.saturating_sub(standing) as f64 / sessions as f64;
    verdicts.figure(&format!("herd: {sessions} at once, until live"), &latencies);
    verdicts.figure("herd: peak, KiB", peak);
    verdicts.figure("herd: afterwards, KiB", after);
    verdicts.bound(
        "herd: KiB a session above the standing server, at the peak",
        format!("{each:.1}"),
        "<= 64",
        each <= BOUND,
    );
    Ok(())
}

fn id(n: usize) -> SessionId {
    SessionId::from(format!("herd-{n}"))
}

fn name(n: usize) -> String {
    format!("of:herd-{n}")
}
