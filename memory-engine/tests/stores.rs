//! Stores written by the reference implementation (`stores/stores.jsonl`): copies are opened, migrated where they are
//! old, read back exactly, written to, and checked; and their whole history, replayed into an empty store, leaves
//! the same rows byte for byte.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use memory_engine::lease::{LEASE_TTL_MS, LeaseTable};
use memory_engine::{Engine, EngineOptions, Holder, ReadInstance, StoreLocation};
use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{BranchName, EntityId, Seq};
use memory_wire::scope_key::{ScopeKey, identity_of};
use memory_wire::value::Value;
use memory_wire::{codec, value};
use rusqlite::Connection;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use support::{
    CommitArgs, Failure, NOW_MS, Spelling, branch_json, normal, rows_of, step, vector_file, vector_lines,
};

const FILES: [&str; 3] = ["authored.sqlite", "served.sqlite", "legacy.sqlite"];

/// A store under test, and what to say about it.
struct Copy {
    _dir: tempfile::TempDir,
    path: PathBuf,
    lines: Vec<Json>,
    options: EngineOptions,
    failures: Vec<String>,
    checked: BTreeMap<&'static str, usize>,
}

impl Copy {
    fn of(file: &str) -> Copy {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(file);
        std::fs::copy(vector_file("stores").join(file), &path).unwrap();
        let lines: Vec<Json> = vector_lines("stores/stores.jsonl")
            .into_iter()
            .filter(|l| l["file"] == *file)
            .collect();
        let store = lines.iter().find(|line| line["kind"] == "store").unwrap();
        let serving = store.get("serverExecution") == Some(&Json::Bool(true));
        let options = EngineOptions {
            serving,
            ..EngineOptions::default()
        };
        Copy {
            _dir: dir,
            path,
            lines,
            options,
            failures: Vec::new(),
            checked: BTreeMap::new(),
        }
    }

    fn kind(&self, kind: &'static str) -> Vec<Json> {
        self.lines
            .iter()
            .filter(|line| line["kind"] == *kind)
            .cloned()
            .collect()
    }

    fn open(&self) -> Engine {
        Engine::open(StoreLocation::File(self.path.clone()), self.options).unwrap()
    }

    fn check(&mut self, kind: &'static str, what: impl std::fmt::Display, got: Json, want: &Json) {
        *self.checked.entry(kind).or_default() += 1;
        if normal(&got) != normal(want) {
            self.failures
                .push(format!("{kind} {what}\n  want {want}\n  got  {got}"));
        }
    }

    fn finish(self, file: &str) {
        println!("{file}: {:?}, {} failures", self.checked, self.failures.len());
        assert!(self.failures.is_empty(), "{file}\n{}", self.failures.join("\n"));
    }
}

fn sha(text: &str) -> String {
    Sha256::digest(text.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn doc_hash(document: Option<&Value>) -> Json {
    document.map_or(Json::Null, |document| {
        sha(&codec::encode(document).unwrap())[..12].into()
    })
}

/// Schema texts as the vectors normalise them.
fn normal_sql(sql: &str) -> String {
    let mut text: String = sql
        .lines()
        .map(|line| line.split("--").next().unwrap())
        .collect::<Vec<_>>()
        .join(" ");
    text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for mark in ["(", ")", ","] {
        text = text
            .replace(&format!(" {mark}"), mark)
            .replace(&format!("{mark} "), mark);
    }
    text.trim().to_owned()
}

fn schema_of(conn: &Connection) -> Json {
    let mut statement = conn
        .prepare("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
        .unwrap();
    let objects = statement.query_map([], |row| {
        let sql: Option<String> = row.get(3)?;
        Ok(json!({
            "type": row.get::<_, String>(0)?, "name": row.get::<_, String>(1)?, "table": row.get::<_, String>(2)?,
            "sql": sql.map(|sql| normal_sql(&sql)),
        }))
    });
    objects.unwrap().map(Result::unwrap).collect()
}

/// Rows in one fixed order, whatever the order they were listed in.
fn sorted(rows: &Json) -> Json {
    let mut rows: Vec<Json> = rows.as_array().unwrap().iter().map(normal).collect();
    rows.sort_by_key(Json::to_string);
    rows.into()
}

fn read_back(file: &str) {
    let mut copy = Copy::of(file);
    let before = Connection::open(&copy.path).unwrap();
    for line in copy.kind("schema-before") {
        copy.check("schema-before", "", schema_of(&before), &line["objects"]);
    }
    drop(before);
    let engine = copy.open();
    let conn = Connection::open(&copy.path).unwrap();

    let store = copy.kind("store").remove(0);
    copy.check(
        "store",
        "legacy refs",
        engine.legacy_refs_required().into(),
        &store["legacyRefsRequired"],
    );
    copy.check(
        "store",
        "server seq",
        engine.server_seq().unwrap().0.into(),
        &store["serverSeq"],
    );
    for (branch, seq) in store["headSeq"].as_object().unwrap() {
        copy.check(
            "store",
            branch,
            engine.head_seq(&branch.as_str().into()).unwrap().0.into(),
            seq,
        );
    }
    let branches: Json = engine.list_branches().unwrap().iter().map(branch_json).collect();
    copy.check("store", "branches", branches, &store["branches"]);
    let ids: Json = engine
        .list_entity_ids()
        .unwrap()
        .iter()
        .map(|id| Json::from(id.as_str()))
        .collect();
    copy.check("store", "ids", ids, &store["entityIds"]);

    for line in copy.kind("schema") {
        copy.check("schema", "", schema_of(&conn), &line["objects"]);
    }
    for line in copy.kind("table") {
        let table = line["table"].as_str().unwrap();
        let mut rows = rows_of(&conn, table);
        if table == "branch" {
            for row in &mut rows {
                let name = row["name"].as_str().unwrap();
                let deleted = "SELECT deleted_at IS NOT NULL FROM branch WHERE name = ?1";
                row["has_deleted_at"] = conn
                    .query_row(deleted, [name], |row| row.get::<_, i64>(0))
                    .unwrap()
                    .into();
            }
        }
        copy.check("table", table, sorted(&rows.into()), &sorted(&line["rows"]));
    }
    let commits = rows_of(&conn, "commit");
    let revisions = rows_of(&conn, "revision");
    for line in copy.kind("commit") {
        let row = commits.iter().find(|row| row["seq"] == line["seq"]).unwrap();
        let decoded = |text: &Json| {
            text.as_str()
                .map_or(Json::Null, |text| support::json(&codec::decode(text).unwrap()))
        };
        let original = row["original"].as_str().unwrap();
        let written = revisions
            .iter()
            .filter(|revision| revision["commit_seq"] == line["seq"]);
        let got = json!({
            "seq": row["seq"], "branch": row["branch"], "sessionKey": row["session_id"], "localSeq": row["local_seq"],
            "class": row["class"], "holder": row["holder"], "annotations": decoded(&row["annotations"]),
            "consequenceOf": decoded(&row["consequence_of"]), "derivedThrough": row["derived_through"],
            "actingPrincipal": row["acting_principal"], "actingSession": row["acting_session"],
            "capabilityRef": row["capability_ref"], "invocationRef": row["invocation_ref"],
            "authorizationRef": row["authorization_ref"], "resolution": decoded(&row["resolution"]),
            "sha256": sha(original),
            "reencodes": codec::encode(&codec::decode(original).unwrap()).unwrap() == original,
            "revisions": written.map(|r| json!([
                r["id"], r["scope_key"], r["op_index"], r["op"], r["data"].as_str().map(sha)
            ])).collect::<Vec<_>>(),
        });
        let mut want = line.clone();
        let object = want.as_object_mut().unwrap();
        for key in ["file", "kind", "principal", "original"] {
            object.remove(key);
        }
        object.insert("sha256".into(), line["original"]["sha256"].clone());
        object.insert("reencodes".into(), line["original"]["reencodesEqual"].clone());
        copy.check("commit", &line["seq"], got, &want);
    }
    let read = |branch: &str, id: &str, key: &str, at: Option<Seq>| {
        let key = ScopeKey::parse(key).unwrap();
        engine
            .read_state(
                &EntityId::from(id),
                ReadInstance::Named(&key),
                &BranchName::from(branch),
                at,
            )
            .unwrap()
    };
    for line in copy.kind("current") {
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        let state = read(&text("branch"), &text("id"), &text("scopeKey"), None);
        let got = state.map_or(Json::Null, |state| {
            json!({
                "foundOn": state.branch.as_str(), "scope": state.scope.as_str(), "seq": state.seq.0,
                "opIndex": state.op_index, "op": state.op.as_str(), "doc": doc_hash(state.document.as_ref())
            })
        });
        copy.check(
            "current",
            format!("{} {} {}", line["branch"], line["id"], line["scopeKey"]),
            got,
            &line["state"],
        );
    }
    let known: BTreeSet<(String, String)> = revisions
        .iter()
        .map(|row| {
            (
                row["id"].as_str().unwrap().to_owned(),
                row["scope_key"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    for line in copy.kind("at") {
        let branch = line["branch"].as_str().unwrap();
        let at = Seq(line["seq"].as_u64().unwrap());
        let states = known.iter().filter_map(|(id, key)| {
            let state = read(branch, id, key, Some(at))?;
            Some(json!([
                id,
                key,
                state.branch.as_str(),
                state.seq.0,
                state.op_index,
                state.op.as_str(),
                doc_hash(state.document.as_ref())
            ]))
        });
        let states: Json = states.collect();
        copy.check(
            "at",
            format!("{branch} {at}"),
            sorted(&states),
            &sorted(&line["states"]),
        );
        let absent = known.len() - states.as_array().unwrap().len();
        copy.check(
            "at",
            format!("{branch} {at} absent"),
            absent.into(),
            &line["absent"],
        );
    }
    for line in copy.kind("doc") {
        if let Some(text) = line["document"].as_str() {
            copy.check("doc", &line["hash"], sha(text)[..12].into(), &line["hash"]);
        }
    }
    for line in copy.kind("range") {
        let branch = BranchName::from(line["branch"].as_str().unwrap());
        let got = match engine.check_seq_in_range(&branch, line["seq"].as_i64().unwrap()) {
            Ok(_) => json!({ "ok": null }),
            Err(error) => json!({ "error": { "name": error.name(), "message": error.to_string() } }),
        };
        copy.check("range", format!("{branch} {}", line["seq"]), got, &line["expect"]);
    }
    drop(engine);
    let mut engine = copy.open();
    for line in copy.kind("scan") {
        let got = step(
            &mut engine,
            line["what"].as_str().unwrap(),
            &line["args"],
            None,
            Spelling::Plain,
        )
        .unwrap();
        copy.check(
            "scan",
            format!("{} {}", line["what"], line["args"]),
            got,
            &line["expect"],
        );
    }
    copy.finish(file);
}

fn write_on(file: &str) {
    let mut copy = Copy::of(file);
    let mut engine = copy.open();
    for line in copy.kind("probe") {
        let verb = line["do"].as_str().unwrap();
        let args = &line["args"];
        let got = if verb == "table" || verb == "tableExists" {
            let conn = Connection::open(&copy.path).unwrap();
            Ok(sorted(&rows_of(&conn, args["table"].as_str().unwrap()).into()))
        } else {
            let commit = line
                .get("commit")
                .and_then(Json::as_str)
                .map(|text| codec::decode(text).unwrap());
            let spelling = if verb.starts_with("select") {
                Spelling::Plain
            } else {
                Spelling::Text
            };
            step(&mut engine, verb, args, commit, spelling)
        };
        let got = match got {
            Ok(ok) => json!({ "ok": ok }),
            Err(error) => json!({ "error": error.json() }),
        };
        let mut want = line["expect"].clone();
        if verb == "table" {
            want["ok"] = sorted(&want["ok"]);
        }
        if line["note"] == "scoped write without an address" {
            // Ours refuses the missing address itself, before any scope is resolved (decision 30).
            want["error"]["message"] = json!(
                "derived-class commit rejected: scoped write (op 0, scope \"user\") carries no explicit scope_key \
                 annotation (protocol.md §1)"
            );
        }
        copy.check("probe", format!("{} {}", line["n"], line["note"]), got, &want);
    }
    drop(engine);
    let conn = Connection::open(&copy.path).unwrap();
    let verdict: String = conn
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    copy.check("integrity", "", verdict.into(), &"ok".into());
    let orphans: i64 = conn
        .query_row("SELECT COUNT(*) FROM pragma_foreign_key_check", [], |row| {
            row.get(0)
        })
        .unwrap();
    copy.check("integrity", "foreign keys", orphans.into(), &0.into());
    let page_size: i64 = conn.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    let stored = copy.kind("store").remove(0)["pageSize"].clone();
    copy.check("integrity", "page size", page_size.into(), &stored);
    copy.finish(file);
}

/// Applies the whole history of a store to an empty one, with every refused attempt at its place.
fn rebuild(file: &str) {
    let mut copy = Copy::of(file);
    let theirs = Connection::open(&copy.path).unwrap();
    let store = copy.kind("store").remove(0);
    let space = store["space"].clone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rebuilt.sqlite");
    let mut engine = Engine::open(StoreLocation::File(path.clone()), copy.options).unwrap();
    let mut leased: Option<Holder> = None;
    let branch_events: Vec<Json> = store
        .get("branchEvents")
        .and_then(Json::as_array)
        .cloned()
        .unwrap_or_default();
    let refused = copy.kind("refused");
    for row in rows_of(&theirs, "commit") {
        let before = row["seq"].as_u64().unwrap() - 1;
        for event in branch_events.iter().filter(|event| event["afterSeq"] == before) {
            let args = json!({ "name": event["name"], "options": event });
            let state = step(
                &mut engine,
                event["do"].as_str().unwrap(),
                &args,
                None,
                Spelling::Plain,
            )
            .unwrap();
            copy.check(
                "branch event",
                &event["name"],
                state,
                event.get("state").unwrap_or(&Json::Null),
            );
        }
        for line in refused.iter().filter(|line| line["atSeq"] == before) {
            let got = attempt(&mut engine, line)
                .expect_err("the attempt was refused")
                .json();
            copy.check("refused", &line["note"], got, &line["error"]);
            copy.check(
                "refused",
                "left no commit",
                engine.server_seq().unwrap().0.into(),
                &before.into(),
            );
        }
        let class = CommitClass::from_name(row["class"].as_str().unwrap()).unwrap();
        let text = |key: &str| row[key].as_str().map(str::to_owned);
        let holder = text("holder").map(|holder| Holder::from(holder.as_str()));
        if let Some(holder) = holder.as_ref().filter(|holder| leased.as_ref() != Some(holder)) {
            let space = space.as_str().unwrap().into();
            if let Some(previous) = &leased {
                engine.release(&space, previous).unwrap();
            }
            assert!(engine.acquire(&space, holder, NOW_MS, LEASE_TTL_MS).unwrap());
            leased = Some(holder.clone());
        }
        let session_key = text("session_id").unwrap();
        let identity = identity_of(&session_key).filter(|_| session_key.starts_with("session:"));
        let list = |key: &str| text(key).map(|text| support::json(&codec::decode(&text).unwrap()));
        let delegated = text("capability_ref").map(|capability| {
            let mut carriage = json!({ "capabilityRef": capability });
            match text("acting_principal") {
                Some(principal) => carriage["actingPrincipal"] = principal.into(),
                None => carriage["sessionlessSpaceScope"] = true.into(),
            }
            if let Some(session) = text("acting_session") {
                carriage["actingSession"] = session.into();
            }
            carriage
        });
        let mut args = json!({ "sessionId": session_key, "commitClass": class.as_str(), "space": space });
        if let Some(identity) = identity {
            args["sessionId"] = identity.session_id.unwrap().as_str().into();
            args["principal"] = identity.principal.unwrap().as_str().into();
        }
        for (key, given) in [
            ("holder", text("holder").map(Json::from)),
            ("annotations", list("annotations")),
            ("consequenceOf", list("consequence_of")),
            (
                "derivedThrough",
                Some(row["derived_through"].clone()).filter(|seq| !seq.is_null()),
            ),
            ("delegated", delegated),
        ] {
            if let Some(given) = given {
                args[key] = given;
            }
        }
        let commit = codec::decode(row["original"].as_str().unwrap()).unwrap();
        let applied = apply(&mut engine, &args, commit);
        copy.check(
            "rebuilt",
            &row["seq"],
            applied.map_or_else(|error| error.json(), Json::from),
            &row["seq"],
        );
    }
    let last = store["serverSeq"].as_u64().unwrap();
    for event in branch_events
        .iter()
        .filter(|event| event["afterSeq"].as_u64() >= Some(last))
    {
        let args = json!({ "name": event["name"], "options": event });
        step(
            &mut engine,
            event["do"].as_str().unwrap(),
            &args,
            None,
            Spelling::Plain,
        )
        .unwrap();
    }
    drop(engine);
    let ours = Connection::open(&path).unwrap();
    // Objects and their texts, down to the case of a word.
    copy.check(
        "schema text",
        "of a new store",
        schema_of(&ours),
        &schema_of(&theirs),
    );
    for table in [
        "commit",
        "revision",
        "head",
        "snapshot",
        "branch",
        "invocation",
        "authorization",
    ] {
        let (want, got) = (rows_of(&theirs, table), rows_of(&ours, table));
        copy.check(
            "rebuilt table",
            format!("{table} size"),
            got.len().into(),
            &want.len().into(),
        );
        for (want, got) in want.iter().zip(got) {
            copy.check("rebuilt table", table, got, want);
        }
    }
    copy.finish(file);
}

fn apply(engine: &mut Engine, args: &Json, commit: Value) -> Result<u64, Failure> {
    let parsed = CommitArgs::read(args)?;
    let commit = memory_wire::message::ClientCommit::from_value(&commit)?;
    let apply = memory_engine::ApplyCommit {
        space: parsed.space.as_ref(),
        class: parsed.class,
        holder: parsed.holder.as_ref(),
        annotations: parsed.annotations.as_deref(),
        consequence_of: parsed.consequence_of.as_deref(),
        derived_through: parsed.derived_through,
        delegated: parsed.delegated.as_ref(),
        sqlite: Some(&mut Rowless),
        allow_empty_operations: parsed.class == CommitClass::Derived,
        ..memory_engine::ApplyCommit::authored(&parsed.session_id, parsed.principal.as_ref(), &commit, NOW_MS)
    };
    Ok(engine.apply_commit(apply)?.seq.0)
}

/// Stands in for the cell databases, which are files of their own: their statements leave nothing in these tables.
struct Rowless;

impl memory_engine::SqliteOperations for Rowless {
    fn execute(
        &mut self,
        _: &Connection,
        _: usize,
        _: &memory_wire::message::SqliteDb,
        _: &str,
        _: Option<&Value>,
    ) -> Result<(), memory_engine::EngineError> {
        Ok(())
    }
}

/// One refused attempt. A commit that has no encoding is built from the key its note names.
fn attempt(engine: &mut Engine, line: &Json) -> Result<Json, Failure> {
    let commit = match line["commit"].as_str() {
        Some(text) => codec::decode(text).unwrap(),
        None => {
            let key = line["note"].as_str().unwrap().strip_prefix("key ").unwrap();
            let document = Value::Object([(key, Value::from(1))].into_iter().collect());
            value!({
                "localSeq": 900,
                "operations": [{ "op": "set", "id": "of:bad", "value": { "value": document } }],
                "reads": { "confirmed": [], "pending": [] }
            })
        }
    };
    let verb = if line["args"].get("waveBasis").is_some() {
        "applyWaveCommit"
    } else {
        "applyCommit"
    };
    step(engine, verb, &line["args"], Some(commit), Spelling::Text)
}

#[test]
fn stores_of_the_reference_are_read_back_exactly() {
    FILES.into_iter().for_each(read_back);
}

#[test]
fn stores_of_the_reference_take_new_commits_and_stay_sound() {
    FILES.into_iter().for_each(write_on);
}

#[test]
fn replaying_a_reference_history_leaves_the_same_rows() {
    rebuild("authored.sqlite");
    rebuild("served.sqlite");
}
