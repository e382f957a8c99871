//! The demo end to end: events of two people, handled by the server, derived for each of them, pushed to each.

use std::sync::Arc;

use memory_wire::error::ErrorName;
use memory_wire::identity::Signer;
use memory_wire::{EventId, Scope, Seq, Value};
use tests::poll::{Event, Poll, votes_in};
use tests::process::Launch;
use tests::{Client, Mirror, Session, SpaceServer};

use crate::store::{Store, sql};

/// A demo server and what it serves.
pub(crate) struct Demo {
    pub(crate) data: tempfile::TempDir,
    pub(crate) server: SpaceServer,
    pub(crate) poll: Poll,
}

impl Demo {
    pub(crate) fn start() -> Demo {
        Demo::start_with(Launch::demo)
    }

    pub(crate) fn start_with(launch: impl Fn(&std::path::Path) -> Launch) -> Demo {
        let data = tempfile::tempdir().unwrap();
        let server = launch(data.path()).start().unwrap();
        let poll = Poll::of(&server).unwrap();
        Demo { data, server, poll }
    }

    /// A person with the page open.
    pub(crate) async fn person(&self, name: &str) -> (Client, Session) {
        let mut client = Client::connect(&self.server.socket_url()).await.unwrap();
        let signer = Arc::new(Signer::from_passphrase(name));
        let session = client.open(&self.poll.space, &signer).await.unwrap();
        client.watch(&session, self.poll.roots()).await.unwrap();
        (client, session)
    }

    pub(crate) fn store(&self) -> Store {
        Store::open(self.data.path(), &self.poll.space)
    }

    pub(crate) fn votes(&self, mirror: &Mirror, option: &str) -> Option<f64> {
        votes_in(mirror.value(&self.poll.doc("tally"), Scope::Space), option)
    }

    pub(crate) fn has_option(&self, mirror: &Mirror, option: &str) -> bool {
        let options = mirror
            .value(&self.poll.doc("options"), Scope::Space)
            .and_then(Value::as_array);
        options.is_some_and(|list| list.elements().any(|(_, v)| v.as_str() == Some(option)))
    }

    pub(crate) fn my_vote(&self, mirror: &Mirror) -> Option<String> {
        mirror
            .value(&self.poll.doc("myVote"), Scope::User)?
            .as_str()
            .map(String::from)
    }
}

/// Appends an event and waits until everything that follows from it was pushed back.
pub(crate) async fn fire(client: &mut Client, session: &mut Session, event: Event) -> Seq {
    let applied = client
        .transact(session, event.commit)
        .await
        .unwrap()
        .expect("the append is admitted");
    client.settled(session, applied.seq).await.unwrap();
    applied.seq
}

#[tokio::test]
async fn a_click_is_handled_once_and_both_pages_follow() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    let (mut b, mut sb) = demo.person("bob").await;

    fire(&mut a, &mut sa, demo.poll.add_option("Dumplings")).await;
    b.until(&sb, "the option reaches the other page", |m| {
        demo.has_option(m, "Dumplings")
    })
    .await
    .unwrap();

    let vote = demo.poll.vote(Some("Dumplings"));
    let event = vote.id.clone();
    let seq = fire(&mut a, &mut sa, vote).await;
    assert_eq!(demo.votes(a.mirror(&sa), "Dumplings"), Some(1.0));
    assert_eq!(demo.my_vote(a.mirror(&sa)).as_deref(), Some("Dumplings"));
    b.until(&sb, "the tally reaches the other page", |m| {
        demo.votes(m, "Dumplings") == Some(1.0)
    })
    .await
    .unwrap();
    assert_eq!(demo.my_vote(b.mirror(&sb)), None, "my vote is mine");

    fire(&mut b, &mut sb, demo.poll.vote(Some("Dumplings"))).await;
    a.until(&sa, "the second vote", |m| {
        demo.votes(m, "Dumplings") == Some(2.0)
    })
    .await
    .unwrap();
    fire(&mut a, &mut sa, demo.poll.vote(None)).await;
    assert_eq!(demo.votes(a.mirror(&sa), "Dumplings"), Some(1.0));
    assert_eq!(demo.my_vote(a.mirror(&sa)), None);

    // T1: one authored commit, one derived commit that names the event and carries the watermark.
    let store = demo.store();
    let commits = store.commits();
    let authored = commits.iter().find(|c| c.seq == sql(seq)).unwrap();
    assert_eq!(
        (authored.class.as_str(), authored.holder.as_ref()),
        ("authored", None)
    );
    let consequences = store.consequences_of(event.as_str());
    assert_eq!(consequences.len(), 1, "{consequences:?}");
    assert_eq!(consequences[0].class, "derived");
    assert_eq!(consequences[0].derived_through, Some(sql(seq)));
    assert_eq!(
        consequences[0].holder.as_ref(),
        Some(&consequences[0].session),
        "filed under the holder"
    );
    demo.server.stop("TERM").unwrap();
    assert_eq!(Store::open(demo.data.path(), &demo.poll.space).integrity(), "ok");
}

#[tokio::test]
async fn what_a_handler_refuses_is_its_consequence_and_the_stream_goes_on() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    let refused = demo.poll.vote(Some("Nothing on the list"));
    let (refused_id, sidecar) = (refused.id.clone(), refused.sidecar.clone());
    fire(&mut a, &mut sa, refused).await;
    fire(&mut a, &mut sa, demo.poll.add_option("Soup")).await;
    assert!(demo.has_option(a.mirror(&sa), "Soup"));
    a.watch(&sa, vec![crate::admission::everything(&sidecar, Scope::Space)])
        .await
        .unwrap();
    let entries = a
        .mirror(&sa)
        .value(&sidecar, Scope::Space)
        .and_then(|v| v.member("entries"))
        .unwrap()
        .clone();
    let entry = entries
        .as_array()
        .unwrap()
        .elements()
        .map(|(_, e)| e)
        .find(|e| e.member("eventId").and_then(Value::as_str) == Some(refused_id.as_str()))
        .unwrap();
    assert_eq!(entry.member("consequenced").and_then(Value::as_bool), Some(true));
    assert!(
        entry
            .member("error")
            .and_then(Value::as_str)
            .is_some_and(|e| e.contains("not on the list")),
        "{entry:?}"
    );
    assert_eq!(demo.store().consequences_of(refused_id.as_str()).len(), 1);
}

#[tokio::test]
async fn the_same_event_twice_is_one_event() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    fire(&mut a, &mut sa, demo.poll.add_option("Pho")).await;
    let id = EventId::from("e-twice");
    let vote = |id: &EventId| {
        demo.poll
            .event_with_id("vote", memory_wire::value!({ "option": "Pho" }), id.clone())
    };
    // Two appends in one breath: the second is a duplicate while the first stands above the horizon, and else it is
    // admitted and skipped. Either way there is one vote.
    let (first, _) = a.submit(&mut sa, vote(&id).commit).await.unwrap();
    let (second, _) = a.submit(&mut sa, vote(&id).commit).await.unwrap();
    let first = a.response(&first).await.unwrap().expect("the first append");
    let seq = first.member("seq").and_then(Value::as_u64).unwrap();
    match a.response(&second).await.unwrap() {
        Ok(_) => {}
        Err(error) => assert_eq!(error.name, ErrorName::EventAppendDuplicate),
    }
    a.settled(&sa, Seq(seq)).await.unwrap();
    fire(&mut a, &mut sa, demo.poll.add_option("Bibimbap")).await;
    assert_eq!(demo.votes(a.mirror(&sa), "Pho"), Some(1.0));
}

#[tokio::test]
async fn each_click_costs_one_derived_commit() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    fire(&mut a, &mut sa, demo.poll.add_option("Falafel")).await;
    let before = demo.server.serving_loop().unwrap();
    for round in 0..10 {
        fire(
            &mut a,
            &mut sa,
            demo.poll.vote((round % 2 == 0).then_some("Falafel")),
        )
        .await;
    }
    let after = demo.server.serving_loop().unwrap();
    let count = |block: &serde_json::Value, key: &str| block[key].as_u64().unwrap();
    let advances = |block: &serde_json::Value| block["settleAdvances"]["count"].as_u64().unwrap();
    let derived = count(&after, "derivedCommits") - count(&before, "derivedCommits");
    let advance_only = advances(&after) - advances(&before);
    assert_eq!(count(&after, "authoredSeen") - count(&before, "authoredSeen"), 10);
    assert_eq!(derived - advance_only, 10, "amplification is 1.0");
    for (counter, why) in [
        ("undemandedNarrowingRuns", "nobody runs as the service"),
        ("unstampedSealRefusals", "every commit path declares itself"),
        ("earlyEmitRefusals", "no event goes out attributed too broadly"),
    ] {
        assert_eq!(count(&after, counter), 0, "{why}");
    }
}
