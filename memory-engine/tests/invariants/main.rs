//! The invariants of ENG §13, each as a named test in a room of its own, and the rules beside them that no vector covers.
//! INV-10 is a matter of threads: `actor.rs` and `concurrency.rs`. INV-12 and INV-13 are the server's for the most part;
//! here is what they need of the engine.

mod access_list;
#[path = "../support/admission/mod.rs"]
mod admission;
mod atomicity;
mod coherence;
mod depth;
mod foreign;
mod replay;
mod retirement;
mod stacks;
mod states;
#[path = "../support/mod.rs"]
mod support;

use admission::run;
use memory_engine::lease::{Clocks, LEASE_TTL_MS};
use memory_engine::{Applied, ApplyCommit, Engine, EngineError, EngineOptions, Holder, LeaseHolder};
use memory_wire::message::ClientCommit;
use memory_wire::value::Value;
use serde_json::json;
use support::NOW_MS;

const SPACE: &str = "did:key:zSpace";

fn serving() -> EngineOptions {
    EngineOptions {
        serving: true,
        ..EngineOptions::default()
    }
}

fn commit(local_seq: u64, mut parts: serde_json::Value) -> ClientCommit {
    parts["localSeq"] = local_seq.into();
    for (key, default) in [("operations", json!([])), ("reads", json!({}))] {
        if parts.get(key).is_none() {
            parts[key] = default;
        }
    }
    for key in ["confirmed", "pending"] {
        if parts["reads"].get(key).is_none() {
            parts["reads"][key] = json!([]);
        }
    }
    ClientCommit::from_value(&support::value(&parts)).unwrap()
}

fn set(id: &str, value: serde_json::Value) -> serde_json::Value {
    json!({ "op": "set", "id": id, "value": { "value": value } })
}

fn patch(id: &str, patches: serde_json::Value) -> serde_json::Value {
    json!({ "op": "patch", "id": id, "patches": patches })
}

fn by(engine: &mut Engine, session: &str, commit: &ClientCommit) -> Result<Applied, EngineError> {
    engine.apply_commit(ApplyCommit::authored(
        &session.into(),
        Some(&"did:key:zA".into()),
        commit,
        NOW_MS,
    ))
}

fn number(engine: &Engine, id: &str) -> Option<Value> {
    engine.read_space_value(&id.into()).unwrap()
}

fn leased(engine: &mut Engine) -> LeaseHolder {
    let mut lease = LeaseHolder::new(SPACE.into(), Holder::from("did:key:zSvc#p1"), LEASE_TTL_MS);
    assert!(
        lease
            .acquire(
                engine,
                Clocks {
                    wall_ms: NOW_MS,
                    monotonic_ms: 0
                }
            )
            .unwrap()
    );
    lease
}
