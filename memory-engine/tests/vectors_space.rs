//! The parts of `space-server.jsonl` that need nothing but the engine: kinds `engine`, `lease` and
//! `lease-holder-split`.

mod support;

use memory_engine::lease::{Clocks, LEASE_TTL_MS, LeaseTable, Tenure};
use memory_engine::{Engine, EngineOptions, Holder, LeaseHolder, ReadInstance, StoreLocation};
use memory_wire::ids::SpaceId;
use memory_wire::scope_key::ScopeKey;
use serde_json::{Value as Json, json};
use support::{NOW_MS, Spelling, normal, step, value, vector_lines};

const SPACE: &str = "did:key:zSpace";
const HOLDER: &str = "did:key:zSvc#p1";

fn lines(kind: &str) -> Vec<Json> {
    vector_lines("space-server.jsonl")
        .into_iter()
        .filter(|line| line["kind"] == *kind)
        .collect()
}

#[test]
fn streams_and_effects_behave_as_the_serving_loop_expects() {
    let mut failures = Vec::new();
    let vectors = lines("engine");
    for line in &vectors {
        let mut engine = Engine::in_memory(EngineOptions {
            serving: true,
            ..EngineOptions::default()
        })
        .unwrap();
        let mut local_seq = 0;
        for (index, input) in line["input"]["steps"].as_array().unwrap().iter().enumerate() {
            let want = &line["expected"][index];
            let got = run(&mut engine, input, &mut local_seq);
            if normal(&got) != normal(want) {
                failures.push(format!(
                    "{} · step {index} {}\n  want {want}\n  got  {got}",
                    line["name"], input["do"]
                ));
            }
        }
    }
    println!("engine: {} lines, {} failures", vectors.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(vectors.len(), 5);
}

fn run(engine: &mut Engine, input: &Json, local_seq: &mut u64) -> Json {
    match input["do"].as_str().unwrap() {
        "lease" => {
            let held = engine
                .acquire(&SPACE.into(), &Holder::from(HOLDER), NOW_MS, LEASE_TTL_MS)
                .unwrap();
            if held { "ok".into() } else { "refused".into() }
        }
        class @ ("authored" | "derived") => {
            *local_seq += 1;
            let mut commit = json!({
                "localSeq": *local_seq, "operations": input["operations"], "reads": { "confirmed": [], "pending": [] }
            });
            if let Some(appends) = input.get("eventAppends") {
                commit["eventAppends"] = appends.clone();
            }
            let mut args = match class {
                "derived" => {
                    json!({ "sessionId": HOLDER, "holder": HOLDER, "space": SPACE, "commitClass": "derived" })
                }
                _ => json!({ "sessionId": "sess-1", "principal": "did:key:zU1", "space": SPACE }),
            };
            for key in ["annotations", "consequenceOf"] {
                if let Some(given) = input.get(key) {
                    args[key] = given.clone();
                }
            }
            match step(
                engine,
                "applyCommit",
                &args,
                Some(value(&commit)),
                Spelling::Plain,
            ) {
                Ok(applied) => json!({ "seq": applied["seq"] }),
                Err(error) => {
                    let error = error.json();
                    json!({ "error": error["name"], "message": error["message"] })
                }
            }
        }
        "read" => {
            let key = input.get("scopeKey").and_then(Json::as_str).unwrap_or("space");
            let key = ScopeKey::parse(key).unwrap();
            let id = input["id"].as_str().unwrap().into();
            let document = engine
                .read(&id, ReadInstance::Named(&key), &"".into(), None)
                .unwrap();
            document
                .as_ref()
                .and_then(|document| document.member("value"))
                .map_or(Json::Null, support::json)
        }
        "pending" => step(
            engine,
            "selectPendingStreamEventDocs",
            &json!({}),
            None,
            Spelling::Plain,
        )
        .unwrap(),
        "retirable" => step(
            engine,
            "selectRetirableEffects",
            &json!({}),
            None,
            Spelling::Plain,
        )
        .unwrap(),
        other => panic!("unknown step {other}"),
    }
}

#[test]
fn a_lease_changes_hands_as_the_vectors_say() {
    let mut failures = Vec::new();
    let vectors = lines("lease");
    for line in &vectors {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let mut engine = Engine::open(StoreLocation::File(path.clone()), EngineOptions::default()).unwrap();
        let rows = rusqlite::Connection::open(&path).unwrap();
        let space = SpaceId::from(SPACE);
        let ttl = line["input"]["ttlMs"].as_i64().unwrap();
        let mut holders: std::collections::BTreeMap<String, LeaseHolder> = line["input"]["holders"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(who, holder)| {
                (
                    who.clone(),
                    LeaseHolder::new(space.clone(), Holder::from(holder.as_str().unwrap()), ttl),
                )
            })
            .collect();
        for (index, input) in line["input"]["steps"].as_array().unwrap().iter().enumerate() {
            let at = input["at"].as_i64().unwrap();
            let now = Clocks {
                wall_ms: at,
                monotonic_ms: at,
            };
            let lease = holders.get_mut(input["who"].as_str().unwrap()).unwrap();
            let result = match input["op"].as_str().unwrap() {
                "acquire" => lease.acquire(&mut engine, now).unwrap().into(),
                "renew" => lease.renew(&mut engine, now).unwrap().into(),
                "release" => {
                    lease.release(&mut engine).unwrap();
                    Json::Null
                }
                other => panic!("unknown operation {other}"),
            };
            let row = rows.query_row("SELECT holder, expires_at FROM execution_lease", [], |row| {
                Ok(json!({ "holder": row.get::<_, String>(0)?, "expires_at": row.get::<_, i64>(1)? }))
            });
            let live = engine.reader().live_holder(&space, at).unwrap();
            let got = json!({
                "result": result,
                "held": lease.is_held(now),
                "tenure": lease.tenure().0,
                "currentTenure1": lease.is_current(Tenure(1), now),
                "row": row.unwrap_or(Json::Null),
                "live": live.map(|holder| holder.as_str().to_owned()),
            });
            let want = &line["expected"][index];
            if got != *want {
                failures.push(format!(
                    "{} · step {index} {input}\n  want {want}\n  got  {got}",
                    line["name"]
                ));
            }
        }
    }
    println!("lease: {} lines, {} failures", vectors.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(vectors.len(), 1);
}

#[test]
fn the_service_of_a_holder_is_split_off_as_the_vectors_say() {
    let vectors = lines("lease-holder-split");
    for line in &vectors {
        let holder = Holder::from(line["input"]["holder"].as_str().unwrap());
        assert_eq!(
            holder.service().as_str(),
            line["expected"].as_str().unwrap(),
            "{}",
            line["name"]
        );
    }
    assert_eq!(vectors.len(), 4);
}
