//! From a writer's commit to its frame on every watcher's wire, against a bare axum broadcast of the same bytes to as many
//! sockets in the same run. The two take turns, so that whatever else the machine does meets both.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::any;
use futures_util::{SinkExt, StreamExt};
use memory_wire::EntityId;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{broadcast, mpsc};

use crate::peer::{Dial, dial, effect_seq};
use crate::space::{Loaded, document, root, set, signer};
use crate::verdict::{Latencies, Verdicts};

/// Bytes of the document's text.
const DOCUMENT: usize = 4 * 1024;

/// How often both are measured before it counts.
const WARM_UP: usize = 50;

pub(crate) async fn run(verdicts: &mut Verdicts, watchers: usize, commits: usize) -> Result<()> {
    // The window in which commits are gathered is a choice, not a cost; and a disk is no part of a broadcast.
    let loaded = Loaded::start(&["--limits-refresh-delay", "0", "--durability", "normal"]).await?;
    let mut writer = loaded.enter(&signer(0), "writer", Dial::default()).await?;
    writer.commit(set("of:hot".into(), document(0, DOCUMENT))).await?;
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    for n in 0..watchers {
        let mut peer = loaded
            .enter(&signer(n), &format!("watcher-{n}"), Dial::default())
            .await?;
        peer.watch(vec![root("of:hot")]).await?;
        let arrived = arrived.clone();
        tokio::spawn(async move {
            while let Ok(text) = peer.next_text().await {
                let at = Instant::now();
                if effect_seq(&text).is_some() && arrived.send((at, text.len())).is_err() {
                    return;
                }
            }
        });
    }
    let mut floor = Floor::start(watchers).await?;

    let (mut ours, mut bare) = (Latencies::new()?, Latencies::new()?);
    let before = loaded.metric("memory_effects_total")?;
    for n in 0..WARM_UP + commits {
        let (request, text) = writer.commit_text(set(EntityId::from("of:hot"), document(n, DOCUMENT)))?;
        let sent = Instant::now();
        writer.send(text).await?;
        let (mut last, mut bytes) = (sent, 0);
        for _ in 0..watchers {
            let (at, length) = arrivals.recv().await.context("the watchers are gone")?;
            last = last.max(at);
            bytes = length;
        }
        writer.verdict(&request).await?;
        let floor_took = floor.round("y".repeat(bytes)).await?;
        if n >= WARM_UP {
            ours.record(last.duration_since(sent))?;
            bare.record(floor_took)?;
        }
    }
    let frames = loaded.metric("memory_effects_total")? - before;
    verdicts.figure(
        &format!("broadcast: commit → all of {watchers} watchers' frames received"),
        &ours,
    );
    verdicts.figure(
        &format!("broadcast: bare axum broadcast of the same bytes to {watchers} sockets"),
        &bare,
    );
    let ratio = ours.at(50.0) / bare.at(50.0);
    verdicts.bound(
        "broadcast: ratio of the medians",
        format!("{ratio:.2}"),
        "<= 1.5",
        ratio <= 1.5,
    );
    // The writer is no watcher; its markers are frames of its own.
    let each = frames / (WARM_UP + commits) as f64;
    verdicts.bound(
        "broadcast: frames a commit (watchers, and the writer's marker)",
        format!("{each:.3}"),
        &format!("<= {}", watchers + 1),
        each <= (watchers + 1) as f64,
    );
    Ok(())
}

/// The bare broadcaster as a child process, with its sockets.
struct Floor {
    writer: tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>,
    arrivals: mpsc::UnboundedReceiver<Instant>,
    watchers: usize,
    // Ended with the measurement.
    _child: tokio::process::Child,
}

impl Floor {
    async fn start(watchers: usize) -> Result<Floor> {
        let mut child = tokio::process::Command::new(std::env::current_exe()?)
            .arg("floor")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the bare broadcaster")?;
        let stdout = child.stdout.take().context("the child's stdout")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        let address = line.context("the child's address")?.parse()?;
        let (arrived, arrivals) = mpsc::unbounded_channel();
        for _ in 0..watchers {
            let mut socket = dial(address, "/", Dial::default()).await?;
            let arrived = arrived.clone();
            tokio::spawn(async move {
                while let Some(Ok(message)) = socket.next().await {
                    if message.is_text() && arrived.send(Instant::now()).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Floor {
            writer: dial(address, "/writer", Dial::default()).await?,
            arrivals,
            watchers,
            _child: child,
        })
    }

    async fn round(&mut self, text: String) -> Result<std::time::Duration> {
        let sent = Instant::now();
        self.writer
            .send(tokio_tungstenite::tungstenite::Message::text(text))
            .await?;
        let mut last = sent;
        for _ in 0..self.watchers {
            last = last.max(self.arrivals.recv().await.context("the sockets are gone")?);
        }
        Ok(last.duration_since(sent))
    }
}

/// What the simplest axum program does: `/writer`'s texts go to every socket of `/`.
pub(crate) async fn serve_floor() -> Result<()> {
    let (texts, _) = broadcast::channel(64);
    let router = Router::new()
        .route("/", any(watch))
        .route("/writer", any(write))
        .with_state(texts);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    use axum::serve::ListenerExt;
    let listener = listener.tap_io(|stream| {
        // As the server does; without it small frames wait for acknowledgements.
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, router).await?)
}

type Texts = broadcast::Sender<axum::extract::ws::Utf8Bytes>;

async fn watch(State(texts): State<Texts>, upgrade: WebSocketUpgrade) -> Response {
    let mut texts = texts.subscribe();
    upgrade.on_upgrade(async move |mut socket| {
        loop {
            tokio::select! {
                text = texts.recv() => {
                    let Ok(text) = text else { return };
                    if socket.send(Message::Text(text)).await.is_err() {
                        return;
                    }
                }
                message = socket.recv() => if !matches!(message, Some(Ok(_))) { return },
            }
        }
    })
}

async fn write(State(texts): State<Texts>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |mut socket| {
        while let Some(Ok(message)) = socket.recv().await {
            if let Message::Text(text) = message {
                // Nobody may be listening yet.
                let _ = texts.send(text);
            }
        }
    })
}
