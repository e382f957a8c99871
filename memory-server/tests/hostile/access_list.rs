//! Getting at the access list of a space (SRV-402, SRV-801…812): every shape of change, by those who may not, and the
//! last owner by those who may.

use memory_wire::well_known::acl_document_id;
use serde_json::{Value as Json, json};

use crate::rig::{Peer, Rig, error_series, judge, mallory, metric_label, stranger, victim};

const AUTHORIZATION: &str = "AuthorizationError";
const PROTOCOL: &str = "ProtocolError";

fn grants_mallory() -> Json {
    json!({ "value": { victim().did().as_str(): "OWNER", mallory().did().as_str(): "OWNER" } })
}

/// Every change of the list that a member without OWNER may try, with what it must be answered.
fn attempts(list: &str) -> Vec<(&'static str, Json, &'static str, &'static str)> {
    let mallory = mallory().did().to_string();
    let plain = |operations: Json| json!({ "operations": operations });
    let only_list = "ACL mutations must be an ACL-only commit";
    let replace = "ACL mutations must replace the space-scoped ACL document";
    let owner = "must be valid and retain at least one concrete OWNER";
    vec![
        (
            "set",
            plain(json!([{ "op": "set", "id": list, "value": grants_mallory() }])),
            AUTHORIZATION,
            "lacks OWNER",
        ),
        (
            "patch of the own entry",
            plain(json!([{ "op": "patch", "id": list, "patches": [
                { "op": "replace", "path": format!("/value/{mallory}"), "value": "OWNER" }] }])),
            PROTOCOL,
            replace,
        ),
        (
            "patch of the whole",
            plain(json!([{ "op": "patch", "id": list, "patches": [
                { "op": "replace", "path": "/value", "value": { &mallory: "OWNER" } }] }])),
            PROTOCOL,
            replace,
        ),
        (
            "patch that removes the victim",
            plain(json!([{ "op": "patch", "id": list, "patches": [
                { "op": "remove", "path": format!("/value/{}", victim().did()) }] }])),
            PROTOCOL,
            replace,
        ),
        (
            "patch of nothing",
            plain(json!([{ "op": "patch", "id": list, "patches": [] }])),
            PROTOCOL,
            replace,
        ),
        (
            "delete",
            plain(json!([{ "op": "delete", "id": list }])),
            PROTOCOL,
            replace,
        ),
        (
            "set of a user's instance",
            plain(json!([{ "op": "set", "id": list, "scope": "user", "value": grants_mallory() }])),
            PROTOCOL,
            replace,
        ),
        (
            "set of a session's instance",
            plain(json!([{ "op": "set", "id": list, "scope": "session", "value": grants_mallory() }])),
            PROTOCOL,
            replace,
        ),
        (
            "delete of a session's instance",
            plain(json!([{ "op": "delete", "id": list, "scope": "session" }])),
            PROTOCOL,
            replace,
        ),
        (
            "behind an innocent operation",
            plain(json!([
                { "op": "set", "id": "of:innocent", "value": { "value": 1 } },
                { "op": "set", "id": list, "value": grants_mallory() }])),
            PROTOCOL,
            only_list,
        ),
        (
            "twice in one commit",
            plain(json!([
                { "op": "set", "id": list, "value": grants_mallory() },
                { "op": "set", "id": list, "value": grants_mallory() }])),
            PROTOCOL,
            only_list,
        ),
        (
            "on another branch",
            json!({ "branch": "b", "operations": [{ "op": "set", "id": list, "value": grants_mallory() }] }),
            PROTOCOL,
            "default branch",
        ),
        (
            "emptied",
            plain(json!([{ "op": "set", "id": list, "value": { "value": {} } }])),
            PROTOCOL,
            owner,
        ),
        (
            "everyone as owner",
            plain(json!([{ "op": "set", "id": list, "value": { "value": { "*": "OWNER" } } }])),
            PROTOCOL,
            owner,
        ),
        (
            "a rank that does not exist",
            plain(json!([{ "op": "set", "id": list, "value": { "value": { &mallory: "ADMIN" } } }])),
            PROTOCOL,
            owner,
        ),
        (
            "a name that is none",
            plain(json!([{ "op": "set", "id": list, "value": { "value": { "mallory": "OWNER" } } }])),
            PROTOCOL,
            owner,
        ),
        (
            "no value",
            plain(json!([{ "op": "set", "id": list, "value": {} }])),
            PROTOCOL,
            owner,
        ),
        (
            "leaving and taking somebody along",
            plain(json!([{ "op": "set", "id": list, "value": { "value": { &mallory: "WRITE" } } }])),
            PROTOCOL,
            owner,
        ),
        (
            "raising everyone on the way out",
            plain(json!([{ "op": "set", "id": list, "value": { "value": {
                victim().did().as_str(): "OWNER", "*": "WRITE" } } }])),
            AUTHORIZATION,
            "lacks OWNER",
        ),
        (
            "an event's append",
            json!({
                "operations": [{ "op": "patch", "id": list, "patches": [
                    { "op": "append", "path": "/value/entries", "values": [{ "eventId": "e" }] }] }],
                "eventAppends": [{ "id": list, "eventId": "e" }],
            }),
            PROTOCOL,
            replace,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_812_no_shape_of_change_gets_through() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let list = acl_document_id(&rig.shared).to_string();
    let mut failures = Vec::new();
    let attempts = attempts(&list);
    println!("{} attempts", attempts.len());
    for (n, (label, mut commit, name, message)) in attempts.into_iter().enumerate() {
        commit["localSeq"] = json!(n + 1);
        commit["reads"] = json!({ "confirmed": [], "pending": [] });
        let before = rig.counters().await;
        let space = rig.shared.clone();
        let answer = peer.commit(&space, "m", commit).await;
        let after = rig.counters().await;
        failures.extend(judge(label, &answer, name, message).err());
        let verdict = format!(
            "memory_commits_total{{class=\"authored\",verdict=\"{}\"}}",
            metric_label(name)
        );
        for series in [error_series(metric_label(name)), verdict] {
            let was = before.get(&series).copied().unwrap_or(0);
            if after.get(&series).copied() != Some(was + 1) {
                failures.push(format!("{label}: {series} did not rise"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Names that look like the list's and are not: the list stays as it is, and so does what the member may do.
    let space = rig.shared.to_string();
    let aliases = [
        space.clone(),
        format!("OF:{space}"),
        format!("of:{space}/"),
        format!("of:{space}/value"),
        format!("of:{space}\u{0}"),
        format!("of: {space}"),
        format!("of:{}", space.replace(':', "%3A")),
        format!("of:{}", space.to_uppercase()),
        format!("of:of:{space}"),
        format!("of:{space}\u{301}"),
    ];
    for (n, alias) in aliases.iter().enumerate() {
        let operations = json!([{ "op": "set", "id": alias, "value": grants_mallory() }]);
        let shared = rig.shared.clone();
        let answer = peer.transact(&shared, "m", 100 + n as u64, operations).await;
        assert!(
            answer["ok"].is_object() || answer["error"]["name"].is_string(),
            "{alias}: {answer}"
        );
        let again = json!([{ "op": "set", "id": list, "value": grants_mallory() }]);
        let answer = peer.transact(&shared, "m", 200 + n as u64, again).await;
        judge(alias, &answer, AUTHORIZATION, "lacks OWNER").expect("an alias is not the list");
    }
    // A view reads; whatever it names, it writes nothing and shows nobody else's.
    let views = json!([{ "id": "v", "revision": 1, "mode": "render", "componentContractVersion": "1", "query": {
        "roots": [{ "id": list, "selector": { "path": [], "schema": true } }] } }]);
    let shared = rig.shared.clone();
    let answer = peer
        .request(json!({
            "type": "session.watch.set", "requestId": "v", "space": shared.as_str(), "sessionId": "m",
            "watches": [], "views": views,
        }))
        .await;
    assert!(
        answer["ok"].is_object() || answer["error"].is_object(),
        "{answer}"
    );
    rig.unharmed(&[&peer]).await;
}

/// Writes into the list's database name do not reach the list either.
#[tokio::test(flavor = "multi_thread")]
async fn srv_402_a_database_named_like_the_list_is_not_the_list() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let (shared, list) = (rig.shared.clone(), acl_document_id(&rig.shared).to_string());
    let answer = peer
        .transact(
            &shared,
            "m",
            1,
            json!([{ "op": "sqlite", "db": { "id": list, "tables": {} },
                     "sql": "UPDATE head SET seq = 0", "params": [] }]),
        )
        .await;
    assert!(answer["error"]["name"].is_string(), "{answer}");
    rig.unharmed(&[&peer]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_806_nobody_else_founds_a_space() {
    let mut rig = Rig::start().await;
    let key = memory_wire::identity::Signer::from_passphrase("a space nobody founded");
    let space = memory_wire::SpaceId::from(key.did().as_str());
    let mut peer = rig.peer(stranger()).await;
    peer.open(&space, "s")
        .await
        .expect("an empty space may be looked at");
    let list = acl_document_id(&space).to_string();
    let cases: [(&str, Json, &str); 3] = [
        (
            "an ordinary write",
            json!([{ "op": "set", "id": "of:squat", "value": { "value": 1 } }]),
            "requires an ACL genesis commit",
        ),
        (
            "a list of one's own",
            json!([{ "op": "set", "id": list, "value": { "value": { stranger().did().as_str(): "OWNER" } } }]),
            "Only the space identity or a service DID may initialize",
        ),
        (
            "a list in the space's name",
            json!([{ "op": "set", "id": list, "value": { "value": { space.as_str(): "OWNER", "*": "WRITE" } } }]),
            "Only the space identity or a service DID may initialize",
        ),
    ];
    for (n, (label, operations, message)) in cases.into_iter().enumerate() {
        let answer = peer.transact(&space, "s", n as u64 + 1, operations).await;
        judge(label, &answer, AUTHORIZATION, message).expect("refused");
    }
    rig.unharmed(&[&peer]).await;
}

/// The last owner cannot leave, and a revoked member hears nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn srv_808_the_last_owner_stays_and_a_removed_member_goes() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let (shared, list) = (rig.shared.clone(), acl_document_id(&rig.shared).to_string());
    let watch = json!([{ "id": "w", "kind": "graph", "query": { "roots": [
        { "id": "of:note", "selector": { "path": [], "schema": true } }] } }]);
    let watched = peer
        .request(json!({
            "type": "session.watch.set", "requestId": "w", "space": shared.as_str(), "sessionId": "m",
            "watches": watch,
        }))
        .await;
    assert!(watched["ok"].is_object(), "{watched}");
    let mut owner = rig.peer(victim()).await;
    owner.open(&shared, "second").await.expect("an owner");
    let attempts = [
        json!({ "value": { mallory().did().as_str(): "WRITE" } }),
        json!({ "value": { victim().did().as_str(): "WRITE", mallory().did().as_str(): "WRITE" } }),
        json!({ "value": { "*": "OWNER" } }),
    ];
    for (n, value) in attempts.into_iter().enumerate() {
        let operations = json!([{ "op": "set", "id": list, "value": value }]);
        let answer = owner.transact(&shared, "second", n as u64 + 1, operations).await;
        judge(
            "the last owner",
            &answer,
            PROTOCOL,
            "retain at least one concrete OWNER",
        )
        .expect("refused");
    }
    let before = rig.counters().await;
    let without =
        json!([{ "op": "set", "id": list, "value": { "value": { victim().did().as_str(): "OWNER" } } }]);
    let answer = owner.transact(&shared, "second", 10, without).await;
    assert!(answer["ok"].is_object(), "{answer}");
    // Everything after the removal is a secret to the removed.
    let after_removal =
        json!([{ "op": "set", "id": "of:note", "value": { "value": { "text": SECRET_AFTER } } }]);
    let answer = owner.transact(&shared, "second", 11, after_removal).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let revoked = loop {
        let message = peer.receive().await.expect("told of its removal");
        if message["type"] == "session/revoked" {
            break message;
        }
    };
    assert_eq!(revoked["reason"], "unauthorized");
    let answer = peer.query(&shared, "m", json!([])).await;
    judge("a session that was taken", &answer, "SessionError", "not open").expect("gone");
    let mut again = rig.peer(mallory()).await;
    let error = again.open(&shared, "m").await.expect_err("no longer a member");
    assert_eq!(error["name"], AUTHORIZATION);
    let after = rig.counters().await;
    let series = "memory_session_ends_total{cause=\"revoked\"}";
    assert_eq!(after[series], before[series] + 1);
    // The server has flushed what it would have flushed.
    memory_server::ServingPlane::idle(&*rig.server)
        .await
        .expect("settles");
    for attacker in [&peer, &again] as [&Peer; 2] {
        attacker.heard.holds_no(&[SECRET_AFTER.to_owned()]);
    }
    rig.unharmed(&[&peer, &again]).await;
}

const SECRET_AFTER: &str = "SECRET-after-the-removal";
