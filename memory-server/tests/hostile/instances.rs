//! Reading what belongs to somebody else (SRV-601…611): other people's instances by name, by root, by link, by page, by
//! blob, by view; other people's spaces from the one next door.

use serde_json::{Value as Json, json};

use crate::rig::{Rig, error_series, judge, victim};

const PROTOCOL: &str = "ProtocolError";

fn encoded(did: &str) -> String {
    memory_wire::scope_key::encode_component(did)
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_604_naming_anothers_instance_is_refused_in_every_request() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let shared = rig.shared.clone();
    let did = victim().did().to_string();
    let user = format!("user:{}", encoded(&did));
    let session = format!("session:{}:vs", encoded(&did));
    let not_holder = "requester does not hold a live execution_lease";
    let cases = [
        (user.clone(), not_holder),
        (session.clone(), not_holder),
        (format!("user:{did}"), "malformed entity_scope_key"),
        (format!("session:{did}:vs"), "malformed entity_scope_key"),
        (format!("{user} "), "malformed entity_scope_key"),
        (user.to_uppercase(), "malformed entity_scope_key"),
        (user.replace("%3A", "%3a"), "malformed entity_scope_key"),
        ("user:*".into(), ""),
        ("user:".into(), ""),
        ("*".into(), "malformed entity_scope_key"),
        (String::new(), "malformed entity_scope_key"),
        (format!("{user}\u{0}"), "malformed entity_scope_key"),
        (format!("space/{user}"), "malformed entity_scope_key"),
    ];
    let mut failures = Vec::new();
    let mut attempts = 0;
    for (key, message) in cases {
        let root =
            json!({ "id": "of:note", "entityScopeKey": key, "selector": { "path": [], "schema": true } });
        let query = json!({ "roots": [root] });
        let watches = json!([{ "id": format!("w{attempts}"), "kind": "graph", "query": query }]);
        for (kind, body) in [
            ("graph.query", json!({ "query": query })),
            ("session.watch.set", json!({ "watches": watches })),
            ("session.watch.add", json!({ "watches": watches })),
        ] {
            let mut request = json!({
                "type": kind, "requestId": "r", "space": shared.as_str(), "sessionId": "m",
            });
            for (name, value) in body.as_object().expect("an object") {
                request[name] = value.clone();
            }
            let series = error_series("protocol");
            let before = rig.counters().await[&series];
            let answer = peer.request(request).await;
            failures.extend(judge(&format!("{kind} {key:?}"), &answer, PROTOCOL, message).err());
            if rig.counters().await[&series] != before + 1 {
                failures.push(format!("{kind} {key:?}: not counted"));
            }
            attempts += 1;
        }
    }
    println!("{attempts} attempts");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    rig.unharmed(&[&peer]).await;
}

/// Unnamed scoped reads resolve to oneself, in queries, watches, links and listings; a wave of the victim's changes shows
/// nothing either.
#[tokio::test(flavor = "multi_thread")]
async fn srv_601_scoped_reads_reach_ones_own_instance_and_no_other() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let shared = rig.shared.clone();
    // A link to the victim's kind of document, followed by a watch.
    let link = |scope: &str| json!({ "/quote": { "/": { "link@1": { "id": "of:note", "path": [], "space": shared.as_str(), "scope": scope } } } });
    let operations = json!([{ "op": "set", "id": "of:door", "value": { "value":
        { "user": link("user"), "session": link("session"), "plain": link("space") } } }]);
    let answer = peer.transact(&shared, "m", 1, operations).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let roots = |scopes: &[&str]| -> Json {
        let mut roots: Vec<Json> = scopes
            .iter()
            .map(|scope| json!({ "id": "of:note", "scope": scope, "selector": { "path": [], "schema": true } }))
            .collect();
        roots.push(json!({ "id": "of:door", "selector": { "path": [], "schema": true } }));
        roots.into()
    };
    let answer = peer
        .query(&shared, "m", roots(&["space", "user", "session"]))
        .await;
    for entity in answer["ok"]["entities"].as_array().expect("entities") {
        if entity["id"] == "of:note" && entity["scope"].is_string() {
            assert_eq!(entity["document"], Json::Null, "not one's own: {entity}");
        }
    }
    let watched = peer
        .request(json!({
            "type": "session.watch.set", "requestId": "w", "space": shared.as_str(), "sessionId": "m",
            "watches": [{ "id": "w", "kind": "graph", "query": { "roots": roots(&["space", "user", "session"]) } }],
        }))
        .await;
    assert!(watched["ok"].is_object(), "{watched}");
    // The victim goes on writing its own instances while the attacker watches the same names.
    for n in 2..12u64 {
        let operations = json!([
            { "op": "set", "id": "of:note", "scope": "user",
              "value": { "value": { "text": crate::rig::SECRETS[1], "n": n } } },
            { "op": "set", "id": "of:note", "scope": "session",
              "value": { "value": { "text": crate::rig::SECRETS[2], "n": n } } },
        ]);
        let answer = rig.victim.transact(&shared, "vs", 1000 + n, operations).await;
        assert!(answer["ok"].is_object(), "{answer}");
    }
    memory_server::ServingPlane::idle(&*rig.server)
        .await
        .expect("settles");
    // A resume is told everything again: still nothing of others.
    let token = peer.tokens["m"].clone();
    let mut again = rig.peer(crate::rig::mallory()).await;
    let open = again
        .honest(
            &shared,
            memory_wire::value!({ "sessionId": "m", "sessionToken": (token.as_str()) }),
        )
        .frame();
    let resumed = again.ask(&open).await;
    assert_eq!(resumed["ok"]["resumed"], true, "{resumed}");
    let listed = again
        .request(
            json!({ "type": "entity-id.list", "requestId": "l", "space": shared.as_str(), "sessionId": "m" }),
        )
        .await;
    assert!(listed["ok"]["ids"].is_array(), "{listed}");
    rig.unharmed(&[&peer, &again]).await;
}

/// A session in one space says nothing about the space next door: not by link, not by name.
#[tokio::test(flavor = "multi_thread")]
async fn srv_402_the_space_next_door_stays_closed() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let (shared, private) = (rig.shared.clone(), rig.private.clone());
    let door = json!({ "/quote": { "/": { "link@1": { "id": "of:diary", "path": [], "space": private.as_str() } } } });
    let operations = json!([{ "op": "set", "id": "of:door", "value": { "value": door } }]);
    let answer = peer.transact(&shared, "m", 1, operations).await;
    assert!(answer["ok"].is_object(), "{answer}");
    for id in ["of:door", "of:diary", private.as_str()] {
        let roots = json!([{ "id": id, "selector": { "path": [], "schema": true } }]);
        let answer = peer.query(&shared, "m", roots).await;
        assert!(
            answer["ok"].is_object() || answer["error"].is_object(),
            "{answer}"
        );
    }
    for session in ["m", "vp"] {
        let answer = peer.query(&private, session, json!([])).await;
        judge("the private space", &answer, "SessionError", "not open").expect("refused");
    }
    let error = peer.open(&private, "x").await.expect_err("no member");
    assert_eq!(error["name"], "AuthorizationError");
    rig.unharmed(&[&peer]).await;
}
