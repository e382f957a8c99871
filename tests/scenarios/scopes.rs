//! Whose rows reach whom, and what a client may not claim: instances are derived from who is connected, never from
//! what is said.

use memory_wire::error::ErrorName;
use memory_wire::message::{ClientMessage, GraphQueryRequest, RequestHeader};
use memory_wire::{Object, Scope, ScopeIdentity, ScopeKey, Seq, Value, value};

use crate::poll::{Demo, fire};
use crate::store::sql;

#[tokio::test]
async fn nothing_of_mine_is_ever_sent_to_somebody_else() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    let (mut b, mut sb) = demo.person("bob").await;
    let (mut a2, sa2) = demo.person("alice").await;

    fire(&mut a, &mut sa, demo.poll.add_option("Gnocchi")).await;
    let half_typed = "quietly-considering-gnocchi";
    fire(&mut a, &mut sa, demo.poll.type_text(half_typed)).await;
    fire(&mut a, &mut sa, demo.poll.vote(Some("Gnocchi"))).await;
    fire(&mut b, &mut sb, demo.poll.type_text("something-else")).await;

    // The rows exist, each under its own key.
    let (alice, bob) = (sa.signer.did().clone(), sb.signer.did().clone());
    let key = |scope, who: &memory_wire::Did, session: &memory_wire::SessionId| {
        ScopeKey::resolve(scope, &ScopeIdentity::session(who.clone(), session.clone()))
            .unwrap()
            .as_str()
            .to_owned()
    };
    let store = demo.store();
    assert_eq!(
        store.instances(demo.poll.doc("myVote").as_str()),
        [key(Scope::User, &alice, &sa.id)]
    );
    let mut drafts = [
        key(Scope::Session, &alice, &sa.id),
        key(Scope::Session, &bob, &sb.id),
    ];
    drafts.sort();
    assert_eq!(store.instances(demo.poll.doc("draft").as_str()), drafts);

    // Alice's other tab has her vote and not this tab's draft; Bob has neither.
    a2.until(&sa2, "my vote is on my other page", |m| {
        demo.my_vote(m).as_deref() == Some("Gnocchi")
    })
    .await
    .unwrap();
    let draft = |m: &tests::Mirror| {
        m.value(&demo.poll.doc("draft"), Scope::Session)
            .and_then(Value::as_str)
            .map(String::from)
    };
    assert_eq!(draft(a.mirror(&sa)).as_deref(), Some(half_typed));
    assert_eq!(draft(a2.mirror(&sa2)), None);
    b.until(&sb, "the vote is counted for everyone", |m| {
        demo.votes(m, "Gnocchi") == Some(1.0)
    })
    .await
    .unwrap();
    assert_eq!(
        (draft(b.mirror(&sb)).as_deref(), demo.my_vote(b.mirror(&sb))),
        (Some("something-else"), None)
    );

    // And in no byte that was ever sent to him, nor any scope key.
    for needle in [
        half_typed,
        "user:did",
        "session:did",
        "user%3A",
        sa.id.as_str(),
        alice.as_str(),
    ] {
        assert!(!b.was_ever_sent(needle), "{needle} reached a foreign session");
    }
    assert!(
        !a2.was_ever_sent(half_typed),
        "a draft belongs to its session alone"
    );
}

#[tokio::test]
async fn a_read_that_names_an_instance_is_refused() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    fire(&mut a, &mut sa, demo.poll.add_option("Curry")).await;
    fire(&mut a, &mut sa, demo.poll.vote(Some("Curry"))).await;
    let (mut b, sb) = demo.person("bob").await;
    let key = ScopeKey::resolve(Scope::User, &ScopeIdentity::user(sa.signer.did().clone())).unwrap();
    for (name, expected) in [
        (key.as_str(), "requester does not hold a live execution_lease"),
        ("user:not canonical", "malformed entity_scope_key"),
    ] {
        let query = value!({
            "roots": [{
                "id": (demo.poll.doc("myVote").as_str()),
                "scope": "user",
                "entityScopeKey": (name),
                "selector": { "path": [], "schema": true }
            }]
        });
        let request_id = b.mint_request();
        let header = RequestHeader {
            request_id: request_id.clone(),
            space: sb.space.clone(),
            session_id: sb.id.clone(),
        };
        b.send(&ClientMessage::GraphQuery(GraphQueryRequest { header, query }))
            .await
            .unwrap();
        let error = b
            .response(&request_id)
            .await
            .unwrap()
            .expect_err("a named instance");
        assert_eq!(error.name, ErrorName::Protocol);
        assert!(error.message.contains(expected), "{}", error.message);
    }
    assert!(!b.was_ever_sent("\"Curry\"") || demo.my_vote(b.mirror(&sb)).is_none());
}

#[tokio::test]
async fn an_event_cannot_be_fired_as_somebody_else() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    let (_b, sb) = demo.person("bob").await;
    fire(&mut a, &mut sa, demo.poll.add_option("Tapas")).await;
    let forged = |field: &str, value: &str| {
        let mut event = demo.poll.vote(Some("Tapas"));
        let mut entry = demo.poll.entry("vote", value!({ "option": "Tapas" }), &event.id);
        if let Value::Object(fields) = &mut entry {
            fields.insert(
                "firedAt",
                Object::from_entries(vec![(field.into(), Value::from(value))]),
            );
        }
        event = demo.poll.append("vote", event.id.clone(), entry);
        event
    };
    for (field, value) in [("user", sb.signer.did().as_str()), ("session", sb.id.as_str())] {
        let error = a
            .transact(&mut sa, forged(field, value).commit)
            .await
            .unwrap()
            .expect_err("forged actor");
        assert_eq!(error.name, ErrorName::Protocol, "{field}: {}", error.message);
    }
    // Saying who one is, is allowed.
    let honest = forged("user", sa.signer.did().as_str());
    fire(&mut a, &mut sa, honest).await;
    assert_eq!(demo.votes(a.mirror(&sa), "Tapas"), Some(1.0));
}

#[tokio::test]
async fn fields_that_only_the_server_decides_are_inert() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    let bob_key = "user:did%3Akey%3Abob";
    let commit = value!({
        "localSeq": 1,
        "reads": { "confirmed": [], "pending": [] },
        "operations": [{
            "op": "set", "id": "of:mine", "scope": "user", "scopeKey": (bob_key), "value": { "value": "x" }
        }],
        "class": "derived",
        "holder": "somebody#1",
        "annotations": [{ "op": 0, "scopeKey": (bob_key) }],
        "derivedThrough": 999
    });
    sa.next_local += 1;
    let request = a.submit_value(&sa, commit).await.unwrap();
    let applied = a
        .response(&request)
        .await
        .unwrap()
        .expect("an ordinary authored commit");
    let seq = applied.member("seq").and_then(Value::as_u64).unwrap();
    let store = demo.store();
    let row = store
        .commits()
        .into_iter()
        .find(|c| c.seq == sql(Seq(seq)))
        .unwrap();
    assert_eq!(
        (row.class.as_str(), row.holder, row.derived_through),
        ("authored", None, None)
    );
    let own = ScopeKey::resolve(Scope::User, &ScopeIdentity::user(sa.signer.did().clone())).unwrap();
    assert_eq!(
        store.instances("of:mine"),
        [own.as_str()],
        "keyed by who is connected"
    );
}
