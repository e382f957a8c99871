//! Schema and migrations (`engine-schema.jsonl`, whole): the shape of a fresh store, and of every old one after it was
//! opened. The pragmas of the open connection are checked beside the code that sets them.

mod support;

use std::path::Path;

use memory_engine::{ApplyCommit, Engine, EngineError, EngineOptions, StoreLocation};
use memory_wire::message::ClientCommit;
use rusqlite::Connection;
use serde_json::{Map, Value as Json, json};
use support::{NOW_MS, dump, normal, rows_of, value, vector_lines};

#[test]
fn stores_have_exactly_the_shape_and_rows_the_vectors_say() {
    let mut failures = Vec::new();
    let lines = vector_lines("engine-schema.jsonl");
    for line in &lines {
        let name = line["name"].as_str().unwrap();
        let mut check = |what: &str, got: Json, want: &Json| {
            if normal(&got) != normal(want) {
                failures.push(format!("{name} · {what}\n  want {want}\n  got  {got}"));
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        prepare(&path, line);
        let opened = Engine::open(StoreLocation::File(path.clone()), EngineOptions::default());
        let expect = &line["expect"];
        if let Some(error) = expect.get("error") {
            let got = opened.map(|_| ()).unwrap_err();
            check(
                "error",
                json!({ "name": got.name(), "message": got.to_string() }),
                error,
            );
            continue;
        }
        let mut engine = opened.unwrap();
        check(
            "legacy flag",
            engine.legacy_refs_required().into(),
            &expect["legacyCommitMetadataRefsRequired"],
        );
        if expect.get("extra").is_some() {
            // This line is about the commit after the open.
            commit(
                &mut engine,
                json!({ "localSeq": 1, "operations": [set("of:a", 1)] }),
            )
            .unwrap();
        }
        drop(engine);
        let conn = Connection::open(&path).unwrap();
        check("shape", shape(&conn), &expect["shape"]);
        let mut rows = dump(&path);
        let named = expect["rows"].as_object().unwrap();
        if named.is_empty() {
            rows.as_object_mut().unwrap().remove("branch");
        }
        for (table, want) in named {
            check(table, rows[table.as_str()].clone(), want);
        }
        for (table, want) in expect
            .get("extra")
            .and_then(Json::as_object)
            .into_iter()
            .flatten()
        {
            let columns: Vec<&String> = want[0].as_object().unwrap().keys().collect();
            let rows = rows_of(&conn, table);
            let got = rows.iter().map(|row| {
                Json::Object(
                    columns
                        .iter()
                        .map(|column| ((*column).clone(), row[column.as_str()].clone()))
                        .collect(),
                )
            });
            check(table, got.collect(), want);
        }
    }
    println!("schema: {} lines, {} failures", lines.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(lines.len(), 10);
}

/// ENG-139: every migration is idempotent; a store opened twice is a store opened once.
#[test]
fn eng_139_opening_again_changes_nothing() {
    for line in vector_lines("engine-schema.jsonl")
        .iter()
        .filter(|line| line["expect"].get("error").is_none())
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        prepare(&path, line);
        let open =
            || drop(Engine::open(StoreLocation::File(path.clone()), EngineOptions::default()).unwrap());
        open();
        let once = (shape(&Connection::open(&path).unwrap()), dump(&path));
        open();
        assert_eq!(
            (shape(&Connection::open(&path).unwrap()), dump(&path)),
            once,
            "{}",
            line["name"]
        );
    }
}

/// Builds the file a line starts from.
fn prepare(path: &Path, line: &Json) {
    if line.get("startFrom").is_some_and(|from| !from.is_null()) {
        let mut engine =
            Engine::open(StoreLocation::File(path.to_owned()), EngineOptions::default()).unwrap();
        commit(
            &mut engine,
            json!({ "localSeq": 1, "operations": [set("of:a", 1), set("of:b", 2)] }),
        )
        .unwrap();
        commit(
            &mut engine,
            json!({ "localSeq": 2, "operations": [{ "op": "delete", "id": "of:b" }] }),
        )
        .unwrap();
    }
    if let Some(sql) = line.get("sql").and_then(Json::as_str) {
        Connection::open(path).unwrap().execute_batch(sql).unwrap();
    }
}

fn set(id: &str, n: i64) -> Json {
    json!({ "op": "set", "id": id, "value": { "value": n } })
}

fn commit(engine: &mut Engine, mut commit: Json) -> Result<(), EngineError> {
    commit["reads"] = json!({ "confirmed": [], "pending": [] });
    let commit = ClientCommit::from_value(&value(&commit)).unwrap();
    engine
        .apply_commit(ApplyCommit::authored(&"s".into(), None, &commit, NOW_MS))
        .map(|_| ())
}

/// Columns, indexes and foreign keys of every table, as SQLite describes them.
fn shape(conn: &Connection) -> Json {
    let query = |sql: &str, name: &str, read: &dyn Fn(&rusqlite::Row<'_>) -> Json| -> Vec<Json> {
        let mut statement = conn.prepare(sql).unwrap();
        statement
            .query_map([name], |row| Ok(read(row)))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    let integer = |row: &rusqlite::Row<'_>, index: usize| Json::from(row.get::<_, i64>(index).unwrap());
    let text =
        |row: &rusqlite::Row<'_>, index: usize| Json::from(row.get::<_, Option<String>>(index).unwrap());
    let mut tables = Map::new();
    let mut names = conn
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        .unwrap();
    let names: Vec<String> = names
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for name in names.iter().filter(|name| !name.starts_with("sqlite_")) {
        let columns = query(
            "SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info(?1) ORDER BY cid",
            name,
            &|row| {
                json!({
                    "name": text(row, 0), "type": text(row, 1), "notnull": integer(row, 2), "default": text(row, 3),
                    "pk": integer(row, 4)
                })
            },
        );
        let indexes = query(
            "SELECT name, \"unique\", origin, partial FROM pragma_index_list(?1) ORDER BY name",
            name,
            &|row| {
                let index: String = row.get(0).unwrap();
                let columns = query(
                    "SELECT name FROM pragma_index_info(?1) ORDER BY seqno",
                    &index,
                    &|row| text(row, 0),
                );
                json!({
                    "name": index, "unique": integer(row, 1), "origin": text(row, 2), "partial": integer(row, 3),
                    "columns": columns
                })
            },
        );
        let foreign = query(
            "SELECT \"from\", \"table\", \"to\" FROM pragma_foreign_key_list(?1) ORDER BY 1",
            name,
            &|row| json!({ "from": text(row, 0), "table": text(row, 1), "to": text(row, 2) }),
        );
        tables.insert(
            name.clone(),
            json!({ "columns": columns, "indexes": indexes, "foreignKeys": foreign }),
        );
    }
    tables.into()
}
