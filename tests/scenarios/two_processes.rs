//! Two processes on one data directory (SRV-442, decision 11): what is written through one is pushed by the other, a list
//! changed through one holds in the other, and one of them derives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memory_wire::identity::Signer;
use memory_wire::{EntityId, Scope, SpaceId, Value, value, well_known};
use tests::process::Launch;
use tests::{Client, Session, SpaceServer};

use crate::admission::{everything, set};

/// Beyond what SRV-442 promises for one write, because the machine may be busy; the typical wait is printed.
const GENEROUS: Duration = Duration::from_secs(20);

struct Pair {
    _data: tempfile::TempDir,
    servers: [SpaceServer; 2],
    space: SpaceId,
    key: Arc<Signer>,
}

impl Pair {
    async fn start() -> Pair {
        let data = tempfile::tempdir().unwrap();
        let launch = || {
            Launch::serve(data.path())
                .env("EXPERIMENTAL_SERVER_EXECUTION", "true")
                .start()
                .unwrap()
        };
        let servers = [launch(), launch()];
        assert_ne!(servers[0].pid(), servers[1].pid());
        let key = Arc::new(Signer::from_passphrase("a space of two processes"));
        let space = SpaceId::from(key.did().as_str());
        Pair {
            _data: data,
            servers,
            space,
            key,
        }
    }

    async fn client(&self, process: usize, signer: &Arc<Signer>) -> (Client, Session) {
        let mut client = Client::connect(&self.servers[process].socket_url())
            .await
            .unwrap();
        let session = client.open(&self.space, signer).await.unwrap();
        (client, session)
    }
}

fn list(entries: &[(&str, &str)]) -> Value {
    let grants: memory_wire::Object = entries
        .iter()
        .map(|(who, what)| (*who, Value::from(*what)))
        .collect();
    value!({ "value": (Value::Object(grants)) })
}

fn number(mirror: &tests::Mirror, id: &EntityId) -> Option<f64> {
    mirror.value(id, Scope::Space)?.member("n")?.as_f64()
}

#[tokio::test]
async fn srv_442_a_write_in_one_process_reaches_the_others_sessions() {
    let pair = Pair::start().await;
    let member = Arc::new(Signer::from_passphrase("a member of both"));
    let (mut founder, mut founding) = pair.client(0, &pair.key).await;
    let open_to_all = list(&[(pair.key.did().as_str(), "OWNER"), ("*", "WRITE")]);
    let genesis = set(well_known::acl_document_id(&pair.space), open_to_all);
    founder
        .transact(&mut founding, genesis)
        .await
        .unwrap()
        .expect("genesis");

    // Watched through the second, written through the first, and the other way round.
    let doc = EntityId::from("of:between");
    let (mut far, mut far_session) = pair.client(1, &member).await;
    far.watch(&far_session, vec![everything(&doc, Scope::Space)])
        .await
        .unwrap();
    let (mut near, mut near_session) = pair.client(0, &member).await;
    near.watch(&near_session, vec![everything(&doc, Scope::Space)])
        .await
        .unwrap();
    let mut waits = Vec::new();
    let mut last = memory_wire::Seq(0);
    for n in 0..20u32 {
        let write = set(doc.clone(), value!({ "value": { "n": (f64::from(n)) } }));
        let there = n % 2 == 0;
        let applied = if there {
            near.transact(&mut near_session, write).await
        } else {
            far.transact(&mut far_session, write).await
        };
        let applied = applied.unwrap().expect("admitted");
        assert!(applied.seq > last, "one order of commits for both");
        last = applied.seq;
        let written = Instant::now();
        let (reader, session) = if there {
            (&mut far, &far_session)
        } else {
            (&mut near, &near_session)
        };
        tokio::time::timeout(
            GENEROUS,
            reader.until(session, "the other process's write", |m| {
                number(m, &doc) == Some(f64::from(n))
            }),
        )
        .await
        .expect("pushed")
        .unwrap();
        assert_eq!(
            reader.mirror(session).get(&doc, Scope::Space).unwrap().seq,
            applied.seq
        );
        waits.push(written.elapsed());
    }
    waits.sort_unstable();
    println!(
        "verdict in one process to push in the other: median {:?}, largest {:?} of {}",
        waits[waits.len() / 2],
        waits[waits.len() - 1],
        waits.len()
    );

    // Whichever of the two derives, both know from the store that nothing lags (field fault F36).
    for server in &pair.servers {
        tokio::time::timeout(GENEROUS, async {
            loop {
                let ready = server.get_json("/api/health/ready").unwrap();
                if ready["status"] == "OK" && ready["servingLagMs"] == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .expect("what was written is covered");
    }

    // A stale write is a conflict whichever process the newer one came through.
    let stale = memory_wire::message::CommitParts {
        reads: memory_wire::message::Reads {
            confirmed: vec![memory_wire::message::ConfirmedRead {
                id: doc.clone(),
                scope: Scope::Space,
                branch: None,
                path: vec!["value".into()],
                seq: memory_wire::Seq(last.0 - 1),
                non_recursive: false,
            }],
            pending: Vec::new(),
        },
        ..set(doc.clone(), value!({ "value": { "n": 99 } }))
    };
    let refused = near
        .transact(&mut near_session, stale)
        .await
        .unwrap()
        .expect_err("stale");
    assert_eq!(refused.name, memory_wire::error::ErrorName::Conflict);

    // The list changed through the first ends the session on the second.
    let closed = list(&[(pair.key.did().as_str(), "OWNER")]);
    let change = set(well_known::acl_document_id(&pair.space), closed);
    founder
        .transact(&mut founding, change)
        .await
        .unwrap()
        .expect("an owner");
    let revoked = tokio::time::timeout(GENEROUS, async {
        loop {
            if let memory_wire::message::ServerMessage::Revoked(revoked) = far.next().await.unwrap() {
                break revoked;
            }
        }
    })
    .await
    .expect("told by its own process");
    assert_eq!(revoked.session_id, far_session.id);
    let mut again = Client::connect(&pair.servers[1].socket_url()).await.unwrap();
    let denied = again
        .open_as(&pair.space, &member, far_session.id.clone(), None, None)
        .await
        .unwrap()
        .expect_err("no longer a member, in either process");
    assert_eq!(denied.name, memory_wire::error::ErrorName::Authorization);

    // The holder of the lease is one of them.
    let held: u64 = pair
        .servers
        .iter()
        .map(|server| server.serving_loop().unwrap()["lease"]["held"].as_u64().unwrap())
        .sum();
    assert!(held <= 1, "{held} leases for one space");
    let [first, second] = pair.servers;
    first.stop("TERM").unwrap();
    second.stop("TERM").unwrap();
}
