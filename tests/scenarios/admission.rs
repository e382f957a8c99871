//! Authored writes between three signed clients: what watchers see, what a stale writer is told, what nobody may say.

use std::sync::Arc;

use memory_wire::error::ErrorName;
use memory_wire::identity::Signer;
use memory_wire::message::{CommitParts, ConfirmedRead, Operation, PendingRead, Reads, Root, Selector};
use memory_wire::patch::PatchOp;
use memory_wire::{EntityId, Scope, Seq, SpaceId, Value, value, well_known};
use tests::process::Launch;
use tests::{Client, Session, SpaceServer};

/// A served space whose access list lets anyone write.
pub(crate) struct Fixture {
    pub(crate) data: tempfile::TempDir,
    pub(crate) server: SpaceServer,
    pub(crate) space: SpaceId,
}

impl Fixture {
    pub(crate) async fn start() -> Fixture {
        let data = tempfile::tempdir().unwrap();
        let server = Launch::serve(data.path())
            .env("EXPERIMENTAL_SERVER_EXECUTION", "true")
            .start()
            .unwrap();
        let key = Arc::new(Signer::from_passphrase("a space for scenarios"));
        let space = SpaceId::from(key.did().as_str());
        let mut founder = Client::connect(&server.socket_url()).await.unwrap();
        let mut session = founder.open(&space, &key).await.unwrap();
        let list = value!({ "value": { "*": "WRITE" } });
        let mut list = list;
        if let Value::Object(root) = &mut list
            && let Some(Value::Object(grants)) = root.get_mut("value")
        {
            grants.insert(key.did().as_str(), "OWNER");
        }
        let genesis = set(well_known::acl_document_id(&space), list);
        founder
            .transact(&mut session, genesis)
            .await
            .unwrap()
            .expect("genesis of the access list");
        Fixture { data, server, space }
    }

    pub(crate) async fn client(&self, name: &str) -> (Client, Session) {
        let mut client = Client::connect(&self.server.socket_url()).await.unwrap();
        let session = client
            .open(&self.space, &Arc::new(Signer::from_passphrase(name)))
            .await
            .unwrap();
        (client, session)
    }
}

pub(crate) fn set(id: EntityId, document: Value) -> CommitParts {
    CommitParts {
        operations: vec![Operation::Set {
            id,
            scope: Scope::Space,
            value: document,
        }],
        ..CommitParts::default()
    }
}

pub(crate) fn everything(id: &EntityId, scope: Scope) -> Root {
    Root::new(
        id.clone(),
        scope,
        Selector {
            path: Vec::new(),
            schema: Some(Value::Bool(true)),
        },
    )
}

fn read(id: &EntityId, seq: Seq) -> Reads {
    Reads {
        confirmed: vec![ConfirmedRead {
            id: id.clone(),
            scope: Scope::Space,
            branch: None,
            path: vec!["value".into()],
            seq,
            non_recursive: false,
        }],
        pending: Vec::<PendingRead>::new(),
    }
}

fn number(mirror: &tests::Mirror, id: &EntityId) -> Option<f64> {
    mirror.value(id, Scope::Space)?.member("n")?.as_f64()
}

#[tokio::test]
async fn an_authored_write_reaches_every_watcher() {
    let fixture = Fixture::start().await;
    let doc = EntityId::from("of:shared");
    let (mut a, mut sa) = fixture.client("alice").await;
    let (mut b, sb) = fixture.client("bob").await;
    let (mut c, sc) = fixture.client("carol").await;
    for (client, session) in [(&mut b, &sb), (&mut c, &sc)] {
        let ok = client
            .watch(session, vec![everything(&doc, Scope::Space)])
            .await
            .unwrap();
        assert_eq!(
            ok.sync.upserts.len(),
            1,
            "a watched document that does not exist is told as such"
        );
    }
    let applied = a
        .transact(&mut sa, set(doc.clone(), value!({ "value": { "n": 1 } })))
        .await
        .unwrap()
        .unwrap();
    for (client, session) in [(&mut b, &sb), (&mut c, &sc)] {
        client
            .until(session, "the write arrives", |m| number(m, &doc) == Some(1.0))
            .await
            .unwrap();
        assert_eq!(
            client.mirror(session).get(&doc, Scope::Space).unwrap().seq,
            applied.seq
        );
    }
    fixture.server.stop("TERM").unwrap();
}

#[tokio::test]
async fn a_stale_write_is_a_conflict_and_the_retry_lands() {
    let fixture = Fixture::start().await;
    let doc = EntityId::from("of:counter");
    let (mut a, mut sa) = fixture.client("alice").await;
    let (mut b, mut sb) = fixture.client("bob").await;
    let first = a
        .transact(&mut sa, set(doc.clone(), value!({ "value": { "n": 1 } })))
        .await
        .unwrap()
        .unwrap();
    b.watch(&sb, vec![everything(&doc, Scope::Space)]).await.unwrap();
    let second = a
        .transact(&mut sa, set(doc.clone(), value!({ "value": { "n": 2 } })))
        .await
        .unwrap()
        .unwrap();

    let bump = |seq: Seq, n: i32| CommitParts {
        reads: read(&doc, seq),
        operations: vec![Operation::Patch {
            id: doc.clone(),
            scope: Scope::Space,
            patches: vec![PatchOp::replace(vec!["value".into(), "n".into()], n.into())],
        }],
        ..CommitParts::default()
    };
    let (request, local) = b.submit(&mut sb, bump(first.seq, 10)).await.unwrap();
    let error = b
        .response(&request)
        .await
        .unwrap()
        .expect_err("the basis is stale");
    assert_eq!(error.name, ErrorName::Conflict);
    assert!(
        error.message.contains("stale confirmed read: of:counter at seq"),
        "{}",
        error.message
    );
    let retry_after = error.retry_after_seq.expect("retryAfterSeq");
    assert!(retry_after >= second.seq.0);

    // The marker of the rejected commit comes with what the writer lacked; then the retry stands on it.
    b.until(&sb, "the marker covers the rejected commit", |m| {
        m.caught_up() >= local
    })
    .await
    .unwrap();
    let held = b.mirror(&sb).get(&doc, Scope::Space).unwrap().seq;
    assert!(held >= second.seq && number(b.mirror(&sb), &doc) == Some(2.0));
    let retried = b
        .transact(&mut sb, bump(held, 10))
        .await
        .unwrap()
        .expect("the retry lands");
    assert!(retried.seq > second.seq);
    fixture.server.stop("INT").unwrap();
}

#[tokio::test]
async fn a_resent_commit_is_answered_once_and_applied_once() {
    let fixture = Fixture::start().await;
    let (mut a, mut sa) = fixture.client("alice").await;
    let parts = CommitParts {
        operations: vec![Operation::Patch {
            id: "of:list".into(),
            scope: Scope::Space,
            patches: vec![PatchOp::append(vec!["value".into()], vec![1.into()], false)],
        }],
        ..CommitParts::default()
    };
    let first = a.transact(&mut sa, parts.clone()).await.unwrap().unwrap();
    sa.next_local -= 1;
    let again = a.transact(&mut sa, parts).await.unwrap().unwrap();
    assert!(again.replayed && again.seq == first.seq);
    sa.next_local -= 1;
    let other = set("of:other".into(), value!({ "value": 1 }));
    let error = a
        .transact(&mut sa, other)
        .await
        .unwrap()
        .expect_err("another commit under a used number");
    assert_eq!(error.name, ErrorName::Protocol);
    assert!(
        error.message.starts_with("commit replay mismatch for session"),
        "{}",
        error.message
    );
}
