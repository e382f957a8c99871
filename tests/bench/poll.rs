//! Clicks on the lunch poll: from the event's commit to the derived update on somebody else's socket.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use memory_wire::Scope;
use memory_wire::identity::Signer;
use tests::poll::{Poll, votes_in};
use tests::process::Launch;
use tests::{Client, Session};

use crate::figures::{Latencies, Report};

pub(crate) async fn clicks(report: &mut Report, clicks: u64) -> Result<()> {
    let data = tempfile::tempdir()?;
    let server = Launch::demo(data.path()).start()?;
    let poll = Poll::of(&server)?;
    let (mut voter, mut voting) = open(&server.socket_url(), &poll, "voter").await?;
    let (mut observer, observing) = open(&server.socket_url(), &poll, "observer").await?;
    let added = voter
        .transact(&mut voting, poll.add_option("Bench").commit)
        .await?
        .map_err(|e| anyhow!("{e:?}"))?;
    voter.settled(&voting, added.seq).await?;
    observer.settled(&observing, added.seq).await?;

    let count = |block: &serde_json::Value, key: &str| block[key].as_u64().unwrap_or_default();
    let before = server.serving_loop()?;
    let tally = poll.doc("tally");
    let (mut latencies, mut last) = (Latencies::new()?, added.seq);
    for n in 0..clicks {
        let expected = if n % 2 == 0 { 1.0 } else { 0.0 };
        let event = poll.vote((n % 2 == 0).then_some("Bench"));
        let started = Instant::now();
        let (request, _) = voter.submit(&mut voting, event.commit).await?;
        observer
            .until(&observing, "the derived tally", |m| {
                votes_in(m.value(&tally, Scope::Space), "Bench") == Some(expected)
            })
            .await?;
        latencies.record(started.elapsed())?;
        let verdict = voter.response(&request).await?.map_err(|e| anyhow!("{e:?}"))?;
        last = memory_wire::Seq(
            verdict
                .member("seq")
                .and_then(memory_wire::Value::as_u64)
                .unwrap_or_default(),
        );
    }
    voter.settled(&voting, last).await?;
    report.latencies("click → observer's derived update", &latencies);
    let after = server.serving_loop()?;
    let writes = count(&after, "authoredSeen") - count(&before, "authoredSeen");
    let advances = |block: &serde_json::Value| block["settleAdvances"]["count"].as_u64().unwrap_or_default();
    let derived = count(&after, "derivedCommits") - count(&before, "derivedCommits");
    let amplification = (derived - (advances(&after) - advances(&before))) as f64 / writes as f64;
    report.row(
        "derived commits per click (advance-only commits left out)",
        format!("{amplification:.3}"),
    );
    server.stop("TERM")
}

async fn open(url: &str, poll: &Poll, name: &str) -> Result<(Client, Session)> {
    let mut client = Client::connect(url).await?;
    let session = client
        .open(&poll.space, &Arc::new(Signer::from_passphrase(name)))
        .await?;
    client.watch(&session, poll.roots()).await?;
    Ok((client, session))
}
