//! Golden vectors of the reactive side: derived ids, event ids, input hashes, triggers, overlap, log compaction,
//! fan-out and retry delays. The storage side's kinds are run beside it.

use memory_wire::well_known::{effect_nonce, stream_sidecar_id};
use memory_wire::{
    Did, EntityId, EventId, Object, Scope, ScopeIdentity, ScopeKey, SessionId, SpaceId, Value, value,
};
use runner::address::{Address, Path};
use runner::entity_derivation as derive;
use runner::link::Link;
use runner::scheduler::fan_out::{Dirt, FanOut};
use runner::scheduler::trigger::{Depth, ReadLog, compact_recursive, compact_shallow, overlaps, triggers};
use runner::scheduler::{caller_event_id, retry_delay_ms};
use serde_json::Value as Json;

const VECTORS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/vectors/runner.jsonl"
));
const SPACE: &str = "did:key:z6MkSpace";

/// Kinds run here, each with how many lines the file has of it.
const KINDS: [(&str, usize); 11] = [
    ("id", 17),
    ("listKeys", 2),
    ("inputHash", 5),
    ("streamDoc", 3),
    ("callerEventId", 1),
    ("nonce", 1),
    ("trigger", 18),
    ("overlap", 5),
    ("compact", 1),
    ("fanout", 8),
    ("backoff", 12),
];

fn lines(kind: &str) -> Vec<Json> {
    VECTORS
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).expect("a vector line is JSON"))
        .filter(|line| line["kind"] == kind)
        .collect()
}

/// Plain data: no tagged forms are interpreted.
fn plain(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => Value::from(n.as_f64().expect("vectors hold doubles")),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(plain).collect::<Vec<_>>()),
        Json::Object(members) => Value::Object(
            members
                .iter()
                .map(|(key, member)| (key.as_str(), plain(member)))
                .collect::<Object>(),
        ),
    }
}

fn path(json: &Json) -> Path {
    json.as_array()
        .expect("a path is a list")
        .iter()
        .map(|s| s.as_str().expect("of strings").into())
        .collect()
}

fn link(id: &str, scope: Scope, at: &[&str]) -> Link {
    let mut link = Link::to_document(SpaceId::from(SPACE), EntityId::from(id), scope);
    link.path = at.iter().map(|s| (*s).into()).collect();
    link
}

fn text(json: &Json) -> &str {
    json.as_str().unwrap_or_default()
}

#[test]
fn every_kind_is_there_in_full() {
    for (kind, count) in KINDS {
        assert_eq!(lines(kind).len(), count, "{kind}");
    }
}

/// RUN-800…802. Where a vector describes its cause in words, the derivation named by it is called.
#[test]
fn ids() {
    let piece = derive::entity_for(Value::from("piece-1"));
    let place = |scope| link(piece.as_str(), scope, &[]);
    for line in lines("id") {
        let name = text(&line["name"]);
        let minted = match name {
            "argument cell of piece" => derive::argument_document(&place(Scope::Space)),
            "argument cell of the same piece at user scope" => derive::argument_document(&place(Scope::User)),
            "internal cell 'count'" | "internal cell of user-scoped piece (entityId only: same hash)" => {
                derive::internal_document(&piece, &Value::from("count"))
            }
            "internal cell 'count' computed" => {
                derive::computed(&derive::internal_document(&piece, &Value::from("count")))
            }
            "child pattern result" => derive::child_result(&link(piece.as_str(), Scope::Space, &["child"])),
            "map container" => {
                derive::list_container("map", &piece, &link(piece.as_str(), Scope::Space, &["rows"]))
            }
            "handler receipt" => {
                derive::receipt(&derive::Frame::handler(Object::new(), &EventId::from("evt:abc")))
            }
            "cell embedded in cause == its link form" => derive::list_element(&place(Scope::Space), "k"),
            "same, user-scoped container" => derive::list_element(&place(Scope::User), "k"),
            // The reference nulls the second occurrence of one object. Our causes are values, so nothing in them is
            // ever the same object twice (RUN-800): sharing one value gives the id of two equal ones, below.
            "SAME object twice: second occurrence hashes as null" => {
                derive::entity_for(value!({ "x": { "k": 1 }, "y": null }))
            }
            "two EQUAL but distinct objects are both hashed" => {
                let shared = value!({ "k": 1 });
                derive::entity_for(value!({ "x": (shared.clone()), "y": shared }))
            }
            _ => {
                let source: Object = match plain(&line["source"]) {
                    Value::Object(source) => source,
                    _ => Object::new(),
                };
                derive::create_ref(&source, plain(&line["cause"]))
            }
        };
        assert_eq!(minted.as_str(), text(&line["id"]), "{name}");
    }
}

#[test]
fn list_element_keys() {
    for line in lines("listKeys") {
        let wanted: Vec<String> = line["keys"]
            .as_array()
            .expect("keys")
            .iter()
            .map(|pair| text(&pair[1]).to_owned())
            .collect();
        let links: Vec<Link> = match line["elements"].as_array() {
            Some(elements) => elements
                .iter()
                .map(|id| link(text(id), Scope::Space, &[]))
                .collect(),
            // Inline values are told apart by their position in the list they are in.
            None => ["0", "1"]
                .map(|at| {
                    link(
                        "of:fid1:tS6kMjpW1d-dSSIHHhUci1aSdS1CoNC17AkndtH3F1o",
                        Scope::User,
                        &["items", at],
                    )
                })
                .to_vec(),
        };
        let keys: Vec<String> = derive::list_element_keys(links.iter().map(Some))
            .into_iter()
            .map(|key| key.expect("no holes"))
            .collect();
        assert_eq!(keys, wanted, "{line}");
    }
    let one = link("of:a", Scope::Space, &[]);
    assert_eq!(
        derive::list_element_keys([None, Some(&one)])[0],
        None,
        "a hole has no key"
    );
}

#[test]
fn fetch_input_hashes() {
    for line in lines("inputHash") {
        let Value::Object(mut inputs) = plain(&line["inputs"]) else {
            panic!("{line}")
        };
        for property in line["undefinedProps"].as_array().expect("a list") {
            match text(property).split_once('.') {
                Some((outer, inner)) => match inputs.get_mut(outer) {
                    Some(Value::Object(object)) => {
                        object.insert(inner, Value::Undefined);
                    }
                    _ => panic!("{line}"),
                },
                None => {
                    inputs.insert(text(property), Value::Undefined);
                }
            }
        }
        assert_eq!(derive::fetch_input_hash(&inputs), text(&line["hash"]), "{line}");
    }
}

#[test]
fn stream_and_event_ids() {
    for line in lines("streamDoc") {
        let stream = &line["stream"];
        let scope = Scope::from_name(stream["scope"].as_str().unwrap_or("space")).expect("a scope");
        let id = stream_sidecar_id(
            &EntityId::from(text(&stream["id"])),
            &path(&stream["path"]),
            scope,
        );
        assert_eq!(id.as_str(), text(&line["doc"]), "{line}");
    }
    for line in lines("callerEventId") {
        let at = &line["link"];
        let stream = Link {
            space: SpaceId::from(text(&at["space"])),
            path: path(&at["path"]),
            ..link(
                text(&at["id"]),
                Scope::from_name(text(&at["scope"])).expect("a scope"),
                &[],
            )
        };
        let session = SessionId::from(text(&line["session"]));
        assert_eq!(
            caller_event_id(text(&line["caller"]), &session, &stream).as_str(),
            text(&line["eventId"])
        );
    }
    for line in lines("nonce") {
        let nonce = effect_nonce(&EventId::from(text(&line["eventId"])), text(&line["instance"]));
        assert_eq!(nonce, text(&line["nonce"]));
    }
}

/// RUN-511.
#[test]
fn change_triggers() {
    for line in lines("trigger") {
        let document = |side: &str, absent: &str| (line[absent] == false).then(|| plain(&line[side]));
        let (before, after) = (
            document("before", "beforeAbsent"),
            document("after", "afterAbsent"),
        );
        let depth = if line["shallow"] == true {
            Depth::Shallow
        } else {
            Depth::Recursive
        };
        let fired = line["reads"].as_array().expect("reads").iter().any(|read| {
            triggers(
                &path(read),
                depth,
                &path(&line["changePath"]),
                before.as_ref(),
                after.as_ref(),
            )
        });
        assert_eq!(Json::from(fired), line["triggered"], "{}", line["name"]);
    }
}

#[test]
fn path_overlap() {
    for line in lines("overlap") {
        let (read, write) = (path(&line["read"]), path(&line["write"]));
        assert_eq!(
            Json::from(overlaps(&read, &write, Depth::Recursive)),
            line["deep"],
            "deep: {line}"
        );
        assert_eq!(
            Json::from(overlaps(&read, &write, Depth::Shallow)),
            line["shallow"],
            "shallow: {line}"
        );
    }
}

#[test]
fn log_compaction() {
    for line in lines("compact") {
        let addresses: Vec<Address> = line["in"]
            .as_array()
            .expect("paths")
            .iter()
            .map(|p| link("of:a", Scope::Space, &[]).document_address().at(path(p)))
            .collect();
        let paths = |kept: Vec<Address>| kept.into_iter().map(|a| a.path).collect::<Vec<_>>();
        let wanted = |side: &str| {
            line[side]
                .as_array()
                .expect("paths")
                .iter()
                .map(path)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            paths(compact_recursive(addresses.clone())),
            wanted("deep"),
            "{line}"
        );
        assert_eq!(paths(compact_shallow(addresses)), wanted("shallow"), "{line}");
    }
}

fn identity(json: &Json) -> ScopeIdentity {
    ScopeIdentity {
        principal: json["principal"].as_str().map(Did::from),
        session_id: json["sessionId"].as_str().map(SessionId::from),
    }
}

fn keys(json: &Json) -> Vec<String> {
    let mut keys: Vec<String> = json
        .as_array()
        .expect("a list")
        .iter()
        .map(|k| text(k).to_owned())
        .collect();
    keys.sort();
    keys
}

/// RUN-542…545, the one story that the fan-out lines tell in order.
#[test]
fn fan_out_story() {
    let steps = lines("fanout");
    let step = |name: &str| {
        steps
            .iter()
            .find(|line| line["step"] == name)
            .unwrap_or_else(|| panic!("no step {name}"))
            .clone()
    };
    let check = |fan_out: &FanOut, demanders: &[ScopeIdentity], line: &Json| {
        let name = text(&line["step"]).to_owned();
        if let Some(wanted) = line["instances"].as_array() {
            let found: Vec<(String, ScopeIdentity)> = fan_out
                .demanded(demanders)
                .into_iter()
                .map(|i| (i.key.as_str().to_owned(), i.identity))
                .collect();
            let wanted: Vec<(String, ScopeIdentity)> = wanted
                .iter()
                .map(|i| (text(&i["key"]).to_owned(), identity(&i["identity"])))
                .collect();
            assert_eq!(found, wanted, "{name}: instances");
        }
        let sorted = |found: Vec<&ScopeKey>| {
            found
                .into_iter()
                .map(|k| k.as_str().to_owned())
                .collect::<Vec<_>>()
        };
        if line["clean"].is_array() {
            assert_eq!(
                sorted(fan_out.clean().collect()),
                keys(&line["clean"]),
                "{name}: clean"
            );
        }
        if line["instanceKeys"].is_array() {
            let found = sorted(fan_out.instances().map(|(key, _)| key).collect());
            assert_eq!(found, keys(&line["instanceKeys"]), "{name}: recorded");
        }
        if line["toRun"].is_array() {
            let mut found: Vec<String> = fan_out
                .to_run(demanders)
                .into_iter()
                .map(|i| i.key.as_str().to_owned())
                .collect();
            found.sort();
            assert_eq!(found, keys(&line["toRun"]), "{name}: to run");
        }
        if line["sessionPrincipals"].is_array() {
            let found: Vec<String> = fan_out
                .session_principals()
                .map(|p| p.as_str().to_owned())
                .collect();
            assert_eq!(
                found,
                keys(&line["sessionPrincipals"]),
                "{name}: session principals"
            );
        }
    };
    let probe = step("probe");
    let demanders: Vec<ScopeIdentity> = probe["demanders"]
        .as_array()
        .expect("demanders")
        .iter()
        .map(identity)
        .collect();
    let mut fan_out = FanOut::default();
    check(&fan_out, &demanders, &probe);

    let anonymous = step("anonymous dropped");
    let nobody: Vec<ScopeIdentity> = anonymous["demanders"]
        .as_array()
        .expect("demanders")
        .iter()
        .map(identity)
        .collect();
    check(&fan_out, &nobody, &anonymous);

    let run = |fan_out: &mut FanOut, discovered: Scope, disturb: bool| {
        let next = fan_out
            .to_run(&demanders)
            .into_iter()
            .next()
            .expect("something to run");
        fan_out.run_started(&next.key, &next.identity);
        if disturb {
            fan_out.dirty(&Dirt::All);
        }
        fan_out.run_finished(discovered, ReadLog::default())
    };
    let line = step("probe discovered user");
    assert_eq!(Json::from(run(&mut fan_out, Scope::User, false)), line["moved"]);
    assert_eq!(Json::from(fan_out.narrowed()), line["narrowed"]);
    check(&fan_out, &demanders, &line);

    let line = step("bob discovered session (ragged)");
    assert_eq!(
        Json::from(run(&mut fan_out, Scope::Session, false)),
        line["moved"]
    );
    check(&fan_out, &demanders, &line);

    let bob = ScopeKey::parse("user:did%3Akey%3Az6MkBob").expect("canonical");
    fan_out.dirty(&Dirt::of_change(Some(&bob)));
    check(
        &fan_out,
        &demanders,
        &step("cause user:bob dirties bob's session instance only"),
    );

    fan_out.dirty(&Dirt::of_change(None));
    check(&fan_out, &demanders, &step("unkeyed cause dirties all"));

    let mut fresh = FanOut::default();
    run(&mut fresh, Scope::Space, true);
    check(&fresh, &demanders, &step("dirtied mid-run stays dirty"));

    let alice: Vec<ScopeIdentity> = demanders
        .iter()
        .filter(|d| d.principal == Some(Did::from("did:key:z6MkAlice")))
        .cloned()
        .collect();
    let wanted = fan_out.demanded(&alice);
    fan_out.prune(&wanted);
    check(&fan_out, &alice, &step("prune after bob leaves"));
}

/// RUN-556.
#[test]
fn retry_delays() {
    for line in lines("backoff") {
        let attempt = u32::try_from(line["attempt"].as_u64().expect("a number")).expect("small");
        assert_eq!(
            Some(retry_delay_ms(attempt)),
            line["delayMs"].as_f64(),
            "attempt {attempt}"
        );
    }
}
