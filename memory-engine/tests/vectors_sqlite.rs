//! The SQLite builtin's kinds of `engine-misc.jsonl`: guard, write targets, row labels, table creation, files.

mod support;

use std::collections::BTreeMap;

use memory_engine::EngineError;
use memory_engine::sqlite_builtin::guard::{self, StatementKind};
use memory_engine::sqlite_builtin::row_label::{self, RowContext};
use memory_engine::sqlite_builtin::write_target::write_target;
use memory_engine::sqlite_builtin::{cell_file, table};
use memory_wire::scope_key::ScopeKey;
use memory_wire::value::Value;
use serde_json::{Value as Json, json};
use support::{normal, value, vector_lines};

fn stated<T: Into<Json>>(result: Result<T, EngineError>) -> Json {
    match result {
        Ok(ok) => json!({ "ok": ok.into() }),
        Err(error) => json!({ "error": { "name": error.name(), "message": error.to_string() } }),
    }
}

fn list(values: Vec<Value>) -> Json {
    values.iter().map(support::json).collect()
}

#[test]
fn the_sqlite_builtin_answers_as_the_vectors_say() {
    let mut failures = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (index, line) in vector_lines("engine-misc.jsonl").iter().enumerate() {
        let kind = line["kind"].as_str().unwrap();
        let text = |key: &str| line[key].as_str().unwrap();
        let mut check = |what: &str, got: Json, want: &Json| {
            if normal(&got) != normal(want) {
                failures.push(format!(
                    "line {} {kind} {what}\n  want {want}\n  got  {got}",
                    index + 1
                ));
            }
        };
        match kind {
            "guard" => {
                let seen = guard::classify(text("sql"));
                let kind = match seen.kind {
                    StatementKind::Select => "select",
                    StatementKind::Write => "write",
                    StatementKind::Other => "other",
                };
                let classified = json!({
                    "kind": kind, "multiple": seen.multiple, "qualified": seen.qualified, "forbidden": seen.forbidden,
                    "coreRef": seen.core_reference
                });
                check("classify", classified, &line["classify"]);
                check(
                    "readOnly",
                    stated(guard::check_read_only(text("sql")).map(|()| Json::Null)),
                    &line["readOnly"],
                );
                check(
                    "writeSafe",
                    stated(guard::check_write(text("sql")).map(|()| Json::Null)),
                    &line["writeSafe"],
                );
            }
            "write-target" => {
                let target = write_target(text("sql"));
                check("table", json!(target.table), &line["table"]);
                check(
                    "paramColumns",
                    json!(target.parameter_columns),
                    &line["paramColumns"],
                );
                check("setColumns", json!(target.set_columns), &line["setColumns"]);
            }
            "row-label" => {
                let spec = value(&line["spec"]);
                let columns: Vec<String> = line["columns"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|c| c.as_str().unwrap().to_owned())
                    .collect();
                let context = RowContext::new(line["ctx"].get("dbOwner").map(value));
                check(
                    "invalid",
                    json!(row_label::invalid(&spec, &columns)),
                    &line["invalid"],
                );
                check("inputs", json!(row_label::inputs(&spec)), &line["inputs"]);
                let row = value(&line["row"]);
                let evaluated = match row_label::evaluate(&spec, row.as_object().unwrap(), &context) {
                    Ok(label) => {
                        json!({ "confidentiality": list(label.confidentiality), "integrity": list(label.integrity) })
                    }
                    Err(error) => json!({ "error": error }),
                };
                check("evaluate", evaluated, &line["evaluate"]);
                check(
                    "common",
                    list(row_label::common(&spec, &context)),
                    &line["common"],
                );
            }
            "create-table" => {
                let created =
                    table::create_statement(text("name"), &value(&line["schema"]), line["alias"].as_str());
                check("sql", stated(created), &line["sql"]);
            }
            "cell-db-token" => check("token", cell_file::token(text("input")).into(), &line["token"]),
            "cell-db-file" => {
                let key = ScopeKey::parse(text("scopeKey")).unwrap();
                check(
                    "name",
                    cell_file::file_name(&text("space").into(), text("dbId"), &key).into(),
                    &line["name"],
                );
                check("alias", cell_file::alias(text("dbId")).into(), &line["alias"]);
            }
            _ => continue,
        }
        *counts.entry(kind.to_owned()).or_default() += 1;
    }
    println!("{counts:?}, {} failures", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let expected = [
        ("cell-db-file", 2),
        ("cell-db-token", 7),
        ("create-table", 5),
        ("guard", 24),
        ("row-label", 22),
        ("write-target", 17),
    ];
    assert_eq!(counts, expected.map(|(kind, n)| (kind.to_owned(), n)).into());
}

/// Text of any shape is judged, and never ends a thread: the pieces that the judges look for, put together at random.
#[test]
fn eng_1410_any_text_is_judged() {
    const PIECES: [&str; 44] = [
        "'",
        "\"",
        "[",
        "]",
        "`",
        "--",
        "/*",
        "*/",
        "?",
        "?1",
        ":a",
        "@é",
        "$",
        "$x",
        "é",
        "\u{10ffff}",
        "\0",
        "\n",
        "\u{a0}",
        "SELECT",
        "INSERT",
        "INTO",
        "UPDATE",
        "SET",
        "DELETE",
        "FROM",
        "WITH",
        "OR",
        "REPLACE",
        "VALUES",
        "RETURNING",
        "WHERE",
        "commit",
        "main",
        "(",
        ")",
        "=",
        ",",
        ".",
        ";",
        "*",
        "{2,",
        "\\",
        " ",
    ];
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..20_000 {
        let pieces = next(14);
        let text: String = (0..pieces).map(|_| PIECES[next(PIECES.len())]).collect();
        guard::classify(&text);
        assert!(guard::check_read_only(&text).is_err() || guard::check_write(&text).is_err());
        write_target(&text);
        let rule = memory_wire::value!({ "version": 1, "confidentiality": { "principal": { "protocol": "key",
            "of": { "match": { "field": "k", "source": (text.clone()), "flags": (text.chars().take(3).collect::<String>()) } } } } });
        row_label::invalid(&rule, &["k".to_owned()]);
        let rule = memory_wire::value!({ "version": 1, "confidentiality": { "principal": { "protocol": "key",
            "of": { "match": { "field": "k", "source": text, "flags": "g" } } } } });
        row_label::invalid(&rule, &["k".to_owned()]);
    }
}
