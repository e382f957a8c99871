//! Commits: the same rows by raw SQLite, through the engine, and over a socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use memory_engine::{ApplyCommit, Durability, Engine, EngineOptions, StoreLocation};
use memory_wire::identity::Signer;
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::{Did, EntityId, LocalSeq, Scope, SessionId, SpaceId, Value, codec, value, well_known};
use rusqlite::{Connection, params};
use tests::process::Launch;
use tests::{Client, Session};

use crate::figures::{Latencies, Report};

/// Writers that commit at once.
const WRITERS: u64 = 8;

fn document(n: u64) -> Value {
    value!({ "value": { "title": "a small document", "n": (n), "tags": ["one", "two", "three"] } })
}

fn parts(n: u64) -> CommitParts {
    CommitParts {
        operations: vec![Operation::Set {
            id: EntityId::from(format!("of:bench-{}", n % 100)),
            scope: Scope::Space,
            value: document(n),
        }],
        ..CommitParts::default()
    }
}

/// Raw SQLite into the engine's own schema, then the engine, in both durabilities.
pub(crate) fn raw_and_engine(report: &mut Report, rounds: u64) -> Result<()> {
    for (name, durability, synchronous) in [
        ("full", Durability::Full, "FULL"),
        ("normal", Durability::Normal, "NORMAL"),
    ] {
        let options = EngineOptions {
            durability,
            ..EngineOptions::default()
        };
        let raw = raw(rounds, options, synchronous)?;
        let engine = engine(rounds, options)?;
        report.latencies(&format!("one commit, raw SQLite, {name}"), &raw);
        report.latencies(&format!("one commit, engine, {name}"), &engine);
        report.ratio(
            &format!("engine against raw SQLite, p50, {name}"),
            engine.at(50.0),
            raw.at(50.0),
        );
    }
    Ok(())
}

fn raw(rounds: u64, options: EngineOptions, synchronous: &str) -> Result<Latencies> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("raw.sqlite");
    drop(Engine::open(StoreLocation::File(path.clone()), options)?);
    let mut connection = Connection::open(&path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    let mut latencies = Latencies::new()?;
    for n in 0..rounds {
        let started = Instant::now();
        let commit = ClientCommit::build(LocalSeq(n + 1), parts(n));
        let (seq, id) = (i64::try_from(n + 1)?, format!("of:bench-{}", n % 100));
        let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        tx.prepare_cached(
            "INSERT INTO \"commit\" (seq, branch, session_id, local_seq, original, resolution, class)
             VALUES (?1, '', 'session:raw', ?1, ?2, ?3, 'authored')",
        )?
        .execute(params![seq, codec::encode(&commit.value)?, "fvj1:{}"])?;
        tx.prepare_cached(
            "INSERT INTO revision (branch, id, scope_key, seq, op_index, op, data, commit_seq)
             VALUES ('', ?1, 'space', ?2, 0, 'set', ?3, ?2)",
        )?
        .execute(params![id, seq, codec::encode(&document(n))?])?;
        tx.prepare_cached(
            "INSERT INTO head (branch, id, scope_key, seq, op_index, op) VALUES ('', ?1, 'space', ?2, 0, 'set')
             ON CONFLICT (branch, id, scope_key) DO UPDATE SET seq = excluded.seq, op_index = 0, op = excluded.op",
        )?
        .execute(params![id, seq])?;
        tx.prepare_cached("UPDATE branch SET head_seq = ?1 WHERE name = ''")?
            .execute([seq])?;
        tx.commit()?;
        latencies.record(started.elapsed())?;
    }
    Ok(latencies)
}

fn engine(rounds: u64, options: EngineOptions) -> Result<Latencies> {
    let dir = tempfile::tempdir()?;
    let mut engine = Engine::open(StoreLocation::File(dir.path().join("engine.sqlite")), options)?;
    let (session, principal) = (SessionId::from("bench"), Did::from("did:key:zBench"));
    let mut latencies = Latencies::new()?;
    for n in 0..rounds {
        let started = Instant::now();
        let commit = ClientCommit::build(LocalSeq(n + 1), parts(n));
        engine.apply_commit(ApplyCommit::authored(&session, Some(&principal), &commit, 0))?;
        latencies.record(started.elapsed())?;
    }
    Ok(latencies)
}

/// The whole way: signed session, socket, admission, durable, verdict.
pub(crate) async fn over_sockets(report: &mut Report, rounds: u64) -> Result<()> {
    let data = tempfile::tempdir()?;
    let server = Launch::serve(data.path()).start()?;
    let key = Arc::new(Signer::from_passphrase("a space for the bench"));
    let space = SpaceId::from(key.did().as_str());
    let mut client = Client::connect(&server.socket_url()).await?;
    let mut session = client.open(&space, &key).await?;
    let list = value!({ "value": { "*": "WRITE" } });
    let Value::Object(mut root) = list else {
        return Err(anyhow!("a list is an object"));
    };
    if let Some(Value::Object(grants)) = root.get_mut("value") {
        grants.insert(key.did().as_str(), "OWNER");
    }
    let genesis = CommitParts {
        operations: vec![Operation::Set {
            id: well_known::acl_document_id(&space),
            scope: Scope::Space,
            value: Value::Object(root),
        }],
        ..CommitParts::default()
    };
    client
        .transact(&mut session, genesis)
        .await?
        .map_err(|e| anyhow!("{e:?}"))?;

    let mut latencies = Latencies::new()?;
    for n in 0..rounds {
        let started = Instant::now();
        client
            .transact(&mut session, parts(n))
            .await?
            .map_err(|e| anyhow!("{e:?}"))?;
        latencies.record(started.elapsed())?;
    }
    report.latencies("one commit, over a socket, verdict received, full", &latencies);

    let started = Instant::now();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (url, space) = (server.socket_url(), space.clone());
        writers.push(tokio::spawn(write_many(url, space, writer, rounds / WRITERS)));
    }
    let mut written = 0;
    for writer in writers {
        written += writer.await??;
    }
    report.row(
        format!("throughput of {WRITERS} writers over sockets, full"),
        format!(
            "{:.0} commits/s",
            written as f64
                / started
                    .elapsed()
                    .as_secs_f64()
                    .max(Duration::from_millis(1).as_secs_f64())
        ),
    );
    server.stop("TERM")
}

async fn write_many(url: String, space: SpaceId, writer: u64, rounds: u64) -> Result<u64> {
    let signer = Arc::new(Signer::from_passphrase(&format!("writer {writer}")));
    let mut client = Client::connect(&url).await?;
    let mut session: Session = client.open(&space, &signer).await?;
    for n in 0..rounds {
        client
            .transact(&mut session, parts(n * WRITERS + writer))
            .await?
            .map_err(|e| anyhow!("{e:?}"))?;
    }
    Ok(rounds)
}
