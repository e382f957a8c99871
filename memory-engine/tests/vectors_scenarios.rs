//! Scenarios (`engine-scenarios.jsonl`, whole): every step's answer, and at the end every stored row byte for byte.

mod support;

use memory_engine::{Engine, EngineOptions, SnapshotPolicy, StoreLocation};
use serde_json::Value as Json;
use support::{Spelling, dump, normal, step, value, vector_lines};

#[test]
fn engine_scenarios_answer_and_store_exactly_what_the_vectors_say() {
    let mut failures = Vec::new();
    let scenarios = vector_lines("engine-scenarios.jsonl");
    let mut steps = 0;
    for scenario in &scenarios {
        let name = scenario["name"].as_str().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let mut options = EngineOptions {
            serving: scenario["serverExecution"] == Json::Bool(true),
            ..EngineOptions::default()
        };
        if let Some(open) = scenario.get("open") {
            let number = |key: &str| std::num::NonZeroU32::new(open[key].as_u64().unwrap() as u32);
            options.snapshots = SnapshotPolicy {
                interval: number("snapshotInterval"),
                retention: number("snapshotRetention"),
            };
        }
        let mut engine = Engine::open(StoreLocation::File(path.clone()), options).unwrap();
        for (index, vector) in scenario["steps"].as_array().unwrap().iter().enumerate() {
            steps += 1;
            let verb = vector["do"].as_str().unwrap();
            let args = &vector["args"];
            let commit = args.get("commit").map(value);
            let got = match step(&mut engine, verb, args, commit, Spelling::Plain) {
                Ok(ok) => serde_json::json!({ "ok": ok }),
                Err(error) => serde_json::json!({ "error": error.json() }),
            };
            if normal(&got) != normal(&vector["expect"]) {
                failures.push(format!(
                    "{name} · step {index} {verb}\n  want {}\n  got  {got}",
                    vector["expect"]
                ));
            }
        }
        drop(engine);
        let got = dumped(&path);
        for (table, rows) in scenario["store"].as_object().unwrap() {
            if normal(&got[table]) != normal(rows) {
                failures.push(format!(
                    "{name} · table {table}\n  want {rows}\n  got  {}",
                    got[table]
                ));
            }
        }
        let tables = |json: &Json| json.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        if tables(&got) != tables(&scenario["store"]) {
            failures.push(format!("{name} · tables {:?}", tables(&got)));
        }
    }
    println!(
        "scenarios: {} scenarios, {steps} steps, {} failures",
        scenarios.len(),
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(scenarios.len(), 24);
}

/// The rows as the vectors' dump states them: integers through a 32-bit reading (only lease expiries are larger), and
/// the branch table left out while it holds nothing but the untouched default branch.
fn dumped(path: &std::path::Path) -> Json {
    let mut rows = dump(path);
    for lease in rows
        .get_mut("execution_lease")
        .and_then(Json::as_array_mut)
        .into_iter()
        .flatten()
    {
        let expires_at = lease["expires_at"].as_i64().unwrap();
        lease["expires_at"] = (expires_at as i32).into();
    }
    let untouched = serde_json::json!([{
        "name": "", "parent_branch": null, "fork_seq": null, "created_seq": 0, "head_seq": 0, "status": "active"
    }]);
    if rows["branch"] == untouched {
        rows.as_object_mut().unwrap().remove("branch");
    }
    rows
}
