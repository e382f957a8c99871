//! Golden lines of `runner.jsonl` that the storage side answers: key texts, watch ids, the differential, and the
//! derived document ids it uses. Produced by the reference implementation.

use memory_wire::codec;
use memory_wire::scope_key::{identity_of, is_scope_key, scope_of};
use memory_wire::well_known::{effect_nonce, stream_sidecar_id};
use memory_wire::{EntityId, EventId, Scope, ScopeIdentity, ScopeKey, SpaceId, Value};
use runner::address::{Address, path};
use runner::keys;
use runner::replica::{DocKey, Selector, changed_paths, watch_id};
use serde_json::Value as Json;

fn lines(kind: &str) -> Vec<(usize, Json)> {
    let text = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/vectors/runner.jsonl"
    ));
    let all = text
        .lines()
        .enumerate()
        .map(|(i, line)| (i + 1, serde_json::from_str::<Json>(line).expect("a JSON line")));
    all.filter(|(_, line)| line["kind"] == kind).collect()
}

fn text<'a>(line: &'a Json, key: &str) -> &'a str {
    line[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} is a string in {line}"))
}

fn value(json: &Json) -> Value {
    codec::decode(&format!("{}{json}", codec::PREFIX)).expect("plain JSON is a value")
}

fn segments(json: &Json) -> runner::address::Path {
    path(json.as_array().into_iter().flatten().filter_map(Json::as_str))
}

fn scope(json: &Json) -> Scope {
    json.as_str()
        .map_or(Scope::Space, |name| Scope::from_name(name).expect("a scope name"))
}

fn identity(json: &Json) -> ScopeIdentity {
    ScopeIdentity {
        principal: json["principal"].as_str().map(Into::into),
        session_id: json["sessionId"].as_str().map(Into::into),
    }
}

/// Compares and names the line on failure.
fn expect(line: usize, what: &str, got: impl AsRef<str>, want: &Json) {
    assert_eq!(Some(got.as_ref()), want.as_str(), "line {line}: {what}");
}

#[test]
fn keys_of_the_instance_keyed_sites() {
    let all = lines("keys");
    for (n, line) in &all {
        let who = identity(&line["identity"]);
        let at = Address {
            space: SpaceId::from(text(line, "space")),
            id: EntityId::from(text(line, "id")),
            scope: scope(&line["scope"]),
            scope_key: None,
            path: segments(&line["path"]),
        };
        let instance = keys::instance_of(&at, &who);
        let doc_key = DocKey {
            instance: instance.clone(),
            id: at.id.clone(),
        };
        let entity = keys::entity_key(&at, &who);
        expect(*n, "scopeKey", instance.as_str(), &line["scopeKey"]);
        expect(*n, "entityKey", entity.text(), &line["entityKey"]);
        expect(
            *n,
            "schemaTrackerKey",
            keys::seed_memo_key(&at, &who).text(),
            &line["schemaTrackerKey"],
        );
        expect(
            *n,
            "entityNameKey",
            keys::entity_name_key(&at).text(),
            &line["entityNameKey"],
        );
        expect(
            *n,
            "addressString",
            keys::address_string(&at, &who),
            &line["addressString"],
        );
        expect(
            *n,
            "graphLabel",
            keys::format_address(&at, &who),
            &line["graphLabel"],
        );
        expect(*n, "replicaDocKey", doc_key.to_string(), &line["replicaDocKey"]);
        expect(*n, "dirtyKey", doc_key.to_string(), &line["dirtyKey"]);
        expect(*n, "kickKey", keys::pull_kick_text(&entity), &line["kickKey"]);
    }
    println!("keys: {} lines", all.len());
    assert_eq!(all.len(), 12);
}

#[test]
fn an_explicit_instance_wins() {
    let all = lines("keys-explicit");
    for (n, line) in &all {
        let at = Address {
            space: SpaceId::from("did:key:z6MkSpace"),
            id: EntityId::from("of:fid1:tS6kMjpW1d-dSSIHHhUci1aSdS1CoNC17AkndtH3F1o"),
            scope: Scope::User,
            scope_key: Some(ScopeKey::parse("user:did%3Akey%3Az6MkBob").expect("a key")),
            path: path::<&str>([]),
        };
        let alice = ScopeIdentity::session("did:key:z6MkAlice", "sess-1");
        expect(
            *n,
            "entityKey",
            keys::entity_key(&at, &alice).text(),
            &line["entityKey"],
        );
        expect(
            *n,
            "addressString",
            keys::address_string(&at, &alice),
            &line["addressString"],
        );
    }
    println!("keys-explicit: {} lines", all.len());
    assert_eq!(all.len(), 1);
}

#[test]
fn scope_keys_are_inspected() {
    let all = lines("scopeKeyInspect");
    for (n, line) in &all {
        let key = text(line, "key");
        assert_eq!(
            is_scope_key(key),
            line["isScopeKey"].as_bool().expect("a boolean"),
            "line {n}: {key}"
        );
        expect(*n, "scope", scope_of(key).as_str(), &line["scope"]);
        let want = (!line["identity"].is_null()).then(|| identity(&line["identity"]));
        assert_eq!(identity_of(key), want, "line {n}: {key}");
    }
    println!("scopeKeyInspect: {} lines", all.len());
    assert_eq!(all.len(), 9);
}

#[test]
fn watch_ids() {
    let all = lines("watchId");
    for (n, line) in &all {
        let (address, wanted) = (&line["address"], &line["selector"]);
        let selector = Selector::new(segments(&wanted["path"]), Some(value(&wanted["schema"])));
        let scope_key = address["scopeKey"]
            .as_str()
            .map(|k| ScopeKey::parse(k).expect("a key"));
        let id = EntityId::from(text(address, "id"));
        let got = watch_id(&id, scope(&address["scope"]), scope_key.as_ref(), &selector);
        expect(*n, "watchId", got, &line["watchId"]);
    }
    println!("watchId: {} lines", all.len());
    assert_eq!(all.len(), 8);
}

#[test]
fn differentials() {
    let all = lines("differential");
    for (n, line) in &all {
        let side =
            |key: &str, absent: &str| (!line[absent].as_bool().unwrap_or(false)).then(|| value(&line[key]));
        let got = changed_paths(
            side("before", "beforeAbsent").as_ref(),
            side("after", "afterAbsent").as_ref(),
        );
        let want: Vec<_> = line["paths"]
            .as_array()
            .into_iter()
            .flatten()
            .map(segments)
            .collect();
        assert_eq!(got, want, "line {n}: {}", line["name"]);
    }
    println!("differential: {} lines", all.len());
    assert_eq!(all.len(), 10);
}

#[test]
fn sidecars_and_nonces() {
    let streams = lines("streamDoc");
    for (n, line) in &streams {
        let stream = &line["stream"];
        let id = EntityId::from(text(stream, "id"));
        let doc = stream_sidecar_id(&id, &segments(&stream["path"]), scope(&stream["scope"]));
        expect(*n, "doc", doc.as_str(), &line["doc"]);
    }
    let nonces = lines("nonce");
    for (n, line) in &nonces {
        let nonce = effect_nonce(&EventId::from(text(line, "eventId")), text(line, "instance"));
        expect(*n, "nonce", nonce, &line["nonce"]);
    }
    println!(
        "streamDoc: {} lines, nonce: {} lines",
        streams.len(),
        nonces.len()
    );
    assert_eq!((streams.len(), nonces.len()), (3, 1));
}
