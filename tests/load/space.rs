//! The server under load with one space in it: a child process with its own data directory, a list that lets everybody
//! write, and documents to watch.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use memory_wire::identity::Signer;
use memory_wire::message::{CommitParts, Operation, Root, Selector};
use memory_wire::{EntityId, Scope, SessionId, SpaceId, Value, value, well_known};
use tests::SpaceServer;
use tests::process::Launch;

use crate::peer::{Dial, Peer};

/// A server with a space.
pub(crate) struct Loaded {
    pub(crate) server: SpaceServer,
    pub(crate) address: SocketAddr,
    pub(crate) space: SpaceId,
    key: Signer,
    // Removed when the server has ended.
    _data: tempfile::TempDir,
}

impl Loaded {
    /// Starts the server with these knobs and makes the space.
    pub(crate) async fn start(arguments: &[&str]) -> Result<Loaded> {
        let data = tempfile::tempdir()?;
        let launch = arguments
            .iter()
            .fold(Launch::serve(data.path()), |launch, argument| {
                launch.arg(argument)
            })
            .env("RUST_LOG", "warn");
        let server = launch.start()?;
        let address = server.address().parse().context("the server's address")?;
        let key = Signer::from_passphrase("a space under load");
        let loaded = Loaded {
            space: SpaceId::from(key.did().as_str()),
            server,
            address,
            key,
            _data: data,
        };
        let mut owner = loaded.enter(&loaded.key, "owner", Dial::default()).await?;
        owner.commit(loaded.genesis()).await?;
        Ok(loaded)
    }

    fn genesis(&self) -> CommitParts {
        let mut grants = memory_wire::Object::new();
        grants.insert("*", "WRITE");
        grants.insert(self.key.did().as_str(), "OWNER");
        let mut root = memory_wire::Object::new();
        root.insert("value", Value::Object(grants));
        set(well_known::acl_document_id(&self.space), Value::Object(root))
    }

    /// A fresh session of `signer`.
    pub(crate) async fn enter(&self, signer: &Signer, session: &str, how: Dial) -> Result<Peer> {
        let mut peer = Peer::connect(self.address, how).await?;
        peer.open(&self.space, signer, &SessionId::from(session), None)
            .await?;
        Ok(peer)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Sum of a metric's samples.
    pub(crate) fn metric(&self, name: &str) -> Result<f64> {
        let text = self.server.get("/metrics")?;
        let mut samples = text
            .lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with([' ', '{']))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .peekable();
        samples.peek().with_context(|| format!("no metric {name}"))?;
        Ok(samples.sum())
    }

    /// Waits until no session and no connection is left.
    pub(crate) async fn emptied(&self) -> Result<()> {
        loop {
            if self.metric("memory_sessions")? == 0.0 && self.metric("memory_connections")? == 0.0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

/// One signer of many.
pub(crate) fn signer(n: usize) -> Signer {
    Signer::from_passphrase(&format!("load {n}"))
}

/// A commit that sets one document.
pub(crate) fn set(id: EntityId, value: Value) -> CommitParts {
    CommitParts {
        operations: vec![Operation::Set {
            id,
            scope: Scope::Space,
            value,
        }],
        ..CommitParts::default()
    }
}

/// A document of about `bytes` that differs with `n`.
pub(crate) fn document(n: usize, bytes: usize) -> Value {
    value!({ "value": { "n": (n as u64), "text": ("x".repeat(bytes)) } })
}

/// A root for the whole value of a document.
pub(crate) fn root(id: &str) -> Root {
    Root::new(
        id,
        Scope::Space,
        Selector {
            path: Vec::new(),
            schema: Some(Value::Bool(true)),
        },
    )
}
