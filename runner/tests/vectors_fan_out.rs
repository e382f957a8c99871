//! Golden vectors of fan-out as the serving host states them: instances, ratchet, dirtiness and runs
//! (RUN-542…545, SS-1111).

use memory_wire::{Did, Scope, ScopeIdentity, ScopeKey, SessionId};
use runner::scheduler::fan_out::{Dirt, FanOut};
use runner::scheduler::trigger::ReadLog;
use serde_json::Value as Json;

const VECTORS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/vectors/space-server.jsonl"
));

fn lines(kind: &str, count: usize) -> Vec<Json> {
    let lines: Vec<Json> = VECTORS
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).expect("a vector line is JSON"))
        .filter(|line| line["kind"] == kind)
        .collect();
    assert_eq!(lines.len(), count, "{kind}");
    lines
}

fn identity(json: &Json) -> ScopeIdentity {
    ScopeIdentity {
        principal: json["principal"].as_str().map(Did::from),
        session_id: json["sessionId"].as_str().map(SessionId::from),
    }
}

fn pairs(json: &Json) -> Vec<ScopeIdentity> {
    json.as_array()
        .map(|list| list.iter().map(identity).collect())
        .unwrap_or_default()
}

/// A record at the given ratchet.
fn at_ratchet(input: &Json) -> FanOut {
    let mut fan_out = FanOut::default();
    if input["narrowed"] == true {
        fan_out.discover(&ScopeIdentity::default(), Scope::User);
    }
    for principal in input["sessionPrincipals"].as_array().into_iter().flatten() {
        let principal = ScopeIdentity::user(principal.as_str().expect("a DID"));
        fan_out.discover(&principal, Scope::Session);
    }
    fan_out
}

fn names<'a>(keys: impl IntoIterator<Item = &'a ScopeKey>) -> Json {
    keys.into_iter().map(|key| key.as_str().to_owned()).collect()
}

fn to_run(fan_out: &FanOut, demanders: &[ScopeIdentity]) -> Json {
    fan_out
        .to_run(demanders)
        .iter()
        .map(|i| i.key.as_str().to_owned())
        .collect()
}

#[test]
fn fan_out_instances() {
    for line in lines("fan-out-instances", 6) {
        let input = &line["input"];
        let found: Json = at_ratchet(input)
            .demanded(&pairs(&input["demanders"]))
            .into_iter()
            .map(|instance| {
                let mut who = serde_json::Map::new();
                if let Some(principal) = &instance.identity.principal {
                    who.insert("principal".into(), principal.as_str().into());
                }
                if let Some(session) = &instance.identity.session_id {
                    who.insert("sessionId".into(), session.as_str().into());
                }
                serde_json::json!({ "key": instance.key.as_str(), "identity": who })
            })
            .collect();
        assert_eq!(found, line["expected"], "{}", line["name"]);
    }
}

#[test]
fn fan_out_ratchet() {
    for line in lines("fan-out-ratchet", 3) {
        let mut fan_out = FanOut::default();
        let discoveries = line["input"]["discoveries"].as_array().expect("discoveries");
        let expected = line["expected"].as_array().expect("one answer each");
        assert_eq!(discoveries.len(), expected.len(), "{}", line["name"]);
        for (discovery, expected) in discoveries.iter().zip(expected) {
            let who = identity(discovery);
            let scope = Scope::from_name(discovery["discovered"].as_str().expect("a scope")).expect("known");
            let moved = fan_out.discover(&who, scope);
            let principals: Json = fan_out
                .session_principals()
                .map(|p| p.as_str().to_owned())
                .collect();
            let found = serde_json::json!({
                "moved": moved,
                "narrowed": fan_out.narrowed(),
                "sessionPrincipals": principals,
                "depthForThis": fan_out.depth_for(&who).as_str(),
                "keyForThis": fan_out.key_at_ratchet(&who).map(|key| key.as_str().to_owned()),
            });
            assert_eq!(found, *expected, "{}: {discovery}", line["name"]);
        }
    }
}

#[test]
fn fan_out_dirty() {
    for line in lines("fan-out-dirty", 7) {
        let input = &line["input"];
        let demanders = pairs(&input["demanders"]);
        let mut fan_out = at_ratchet(input);
        assert_eq!(input["allClean"], true, "{}", line["name"]);
        for instance in fan_out.demanded(&demanders) {
            let depth = instance.key.scope();
            fan_out.run_started(&instance.key, &instance.identity);
            fan_out.run_finished(depth, ReadLog::default());
        }
        let cause = input["cause"]["scopeKey"]
            .as_str()
            .map(|key| ScopeKey::parse(key).expect("canonical"));
        fan_out.dirty(&Dirt::of_change(cause.as_ref()));
        assert_eq!(
            names(fan_out.clean()),
            line["expected"]["clean"],
            "{}: clean",
            line["name"]
        );
        assert_eq!(
            to_run(&fan_out, &demanders),
            line["expected"]["toRun"],
            "{}: to run",
            line["name"]
        );
    }
}

#[test]
fn fan_out_run() {
    for line in lines("fan-out-run", 2) {
        let (input, expected) = (&line["input"], &line["expected"]);
        assert_eq!(input["probe"], true, "{}", line["name"]);
        // A vector without demanders has one, whoever it is.
        let mut demanders = pairs(&input["demanders"]);
        if demanders.is_empty() {
            demanders.push(ScopeIdentity::session("did:key:zA", "s1"));
        }
        let mut fan_out = FanOut::default();
        let probe = fan_out.demanded(&demanders).remove(0);
        fan_out.run_started(&probe.key, &probe.identity);
        if input["dirtyDuringRun"] == true {
            fan_out.dirty(&Dirt::All);
        }
        let scope = Scope::from_name(input["discovered"].as_str().expect("a scope")).expect("known");
        let moved = fan_out.run_finished(scope, ReadLog::default());
        assert_eq!(Json::from(moved), expected["moved"], "{}: moved", line["name"]);
        assert_eq!(
            names(fan_out.clean()),
            expected["clean"],
            "{}: clean",
            line["name"]
        );
        assert_eq!(
            names(fan_out.instances().map(|(key, _)| key)),
            expected["instances"],
            "{}: kept",
            line["name"]
        );
        if !expected["nextSet"].is_null() {
            let next: Json = fan_out
                .demanded(&demanders)
                .iter()
                .map(|i| i.key.as_str().to_owned())
                .collect();
            assert_eq!(next, expected["nextSet"], "{}: next set", line["name"]);
            assert_eq!(
                to_run(&fan_out, &demanders),
                expected["toRun"],
                "{}: to run",
                line["name"]
            );
        }
    }
}
