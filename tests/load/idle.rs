//! What a connected session costs that does nothing: one socket, one signed session, one watched document.

use anyhow::Result;
use futures_util::{StreamExt, TryStreamExt};

use crate::peer::{Dial, Peer};
use crate::process_memory::resident;
use crate::space::{Loaded, document, root, set, signer};
use crate::verdict::Verdicts;

/// Bound of one session, KiB.
const BOUND: f64 = 40.0;

/// Opens at once.
const CONCURRENT: usize = 32;

pub(crate) async fn run(verdicts: &mut Verdicts, sessions: usize) -> Result<()> {
    let loaded = Loaded::start(&[]).await?;
    let mut writer = loaded.enter(&signer(0), "writer", Dial::default()).await?;
    writer.commit(set("of:watched".into(), document(0, 200))).await?;
    // The first ones fill caches and pools that all later ones share.
    let mut held = enter(&loaded, "first", 100).await?;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let before = resident(loaded.pid())?;
    held.extend(enter(&loaded, "idle", sessions).await?);
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let after = resident(loaded.pid())?;
    let open = loaded.metric("memory_sessions")?;
    let each = after.saturating_sub(before) as f64 / sessions as f64;
    verdicts.figure("idle: server before, KiB", before);
    verdicts.figure("idle: server after, KiB", after);
    verdicts.bound(
        "idle: sessions the server counts",
        open,
        &format!(">= {sessions}"),
        open >= sessions as f64,
    );
    verdicts.bound(
        &format!("idle: KiB a session, {sessions} sessions"),
        format!("{each:.1}"),
        "<= 40",
        each <= BOUND,
    );
    for staying in held {
        staying.abort();
    }
    Ok(())
}

/// Sessions with a watch each, kept alive by a task each.
async fn enter(loaded: &Loaded, name: &str, count: usize) -> Result<Vec<tokio::task::JoinHandle<()>>> {
    futures_util::stream::iter((0..count).map(|n| async move {
        let mut peer: Peer = loaded
            .enter(&signer(n), &format!("{name}-{n}"), Dial::default())
            .await?;
        peer.watch(vec![root("of:watched")]).await?;
        anyhow::Ok(tokio::spawn(peer.stay()))
    }))
    .buffer_unordered(CONCURRENT)
    .try_collect()
    .await
}
