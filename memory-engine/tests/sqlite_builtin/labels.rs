//! Rows of tables that declare labels (ENG-1425): one for which no label can be given is not written.

use memory_engine::EngineError;
use memory_wire::scope_key::Scope;
use memory_wire::value;
use memory_wire::value::Value;

use crate::{DB, INSERT, Store, operation, set, support, tables};

fn labelled(rule: Value) -> Value {
    value!({ "id": DB, "owner": "did:key:owner", "tables": (tables(Some(rule))) })
}

fn mail_rule() -> Value {
    let pattern = value!({ "field": "who", "source": "[^ ]+@[^ ]+", "flags": "g" });
    value!({
        "version": 1,
        "confidentiality": { "allOf": [{ "principal": { "protocol": "mailto", "of": { "match": pattern } } }, { "dbOwner": true }] }
    })
}

#[test]
fn eng_1425_a_row_without_a_label_is_not_written() {
    let mut store = Store::new();
    let db = labelled(mail_rule());
    store
        .commit(vec![operation(db.clone(), INSERT, value!(["a@x.org", 1]))])
        .unwrap();
    for (sql, params, part) in [
        (INSERT, value!(["nobody", 1]), "matched nothing"),
        (
            "INSERT INTO notes (who) VALUES (?) RETURNING id",
            value!(["b@x.org"]),
            "RETURNING",
        ),
        ("UPDATE notes SET who = ?", value!(["nobody"]), "matched nothing"),
        (
            "WITH q AS (SELECT 1) INSERT INTO notes (who) VALUES (?)",
            value!(["b@x.org"]),
            "shape",
        ),
        (
            "INSERT INTO elsewhere (who) VALUES (?)",
            value!(["b@x.org"]),
            "not declared",
        ),
    ] {
        let refused = store
            .commit(vec![set("of:a", value!(1)), operation(db.clone(), sql, params)])
            .unwrap_err();
        assert_eq!(refused.name(), "RowLabelCommitError", "{sql}: {refused}");
        assert!(
            refused.to_string().starts_with("sqlite commit refused: "),
            "{refused}"
        );
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let rows = store.rows(Scope::Space, "SELECT who FROM notes").unwrap();
    assert_eq!(support::json(&rows[0])["who"], "a@x.org");
    assert_eq!(store.engine.server_seq().unwrap().0, 1);
    store
        .commit(vec![operation(db, "DELETE FROM notes", value!([]))])
        .unwrap();
    assert_eq!(
        store.rows(Scope::Space, "SELECT who FROM notes").unwrap().len(),
        0
    );
}

#[test]
fn eng_1425_a_missing_owner_is_the_handle_documents() {
    let mut store = Store::new();
    let db = value!({ "id": DB, "tables": (tables(Some(mail_rule()))) });
    let refused = store
        .commit(vec![operation(db.clone(), INSERT, value!(["a@x.org", 1]))])
        .unwrap_err();
    assert!(
        refused.to_string().contains("dbOwner() has no owner"),
        "{refused}"
    );
    store
        .commit(vec![set(DB, value!({ "owner": "did:key:owner" }))])
        .unwrap();
    store
        .commit(vec![operation(db, INSERT, value!(["a@x.org", 1]))])
        .unwrap();
}

/// Writes by one statement that takes each row's text from its parameter.
fn write_each(store: &mut Store, texts: Vec<String>) -> Result<(), EngineError> {
    let texts = serde_json::Value::from(texts).to_string();
    let sql = "INSERT INTO notes (who) SELECT value FROM json_each(?)";
    let operation = operation(labelled(mail_rule()), sql, value!([texts]));
    store.commit(vec![operation]).map(|_| ())
}

/// Every row that was written is read back, also beyond the four hundred that are read at a time; ten thousand are as many
/// as a statement may write.
#[test]
fn eng_1425_every_row_of_a_statement_is_judged() {
    let mut store = Store::new();
    let mails = |count: usize| -> Vec<String> { (0..count).map(|n| format!("u{n}@x.org")).collect() };
    let mut one_without = mails(1_201);
    one_without[1_200] = "nobody".into();
    let refused = write_each(&mut store, one_without).unwrap_err();
    assert!(refused.to_string().contains("matched nothing"), "{refused}");
    let refused = write_each(&mut store, mails(10_001)).unwrap_err();
    assert!(refused.to_string().contains("at most 10000 rows"), "{refused}");
    write_each(&mut store, mails(10_000)).unwrap();
    let count = |store: &Store| {
        let rows = store
            .rows(Scope::Space, "SELECT count(*) AS n FROM notes")
            .unwrap();
        rows[0].member("n").and_then(Value::as_u64).unwrap()
    };
    assert_eq!(count(&store), 10_000);
    // An update is judged by what its rows have become, one by one.
    let update = |sql: &str| operation(labelled(mail_rule()), sql, value!([]));
    let refused = store
        .commit(vec![update("UPDATE notes SET who = 'nobody' WHERE id = 9999")])
        .unwrap_err();
    assert!(refused.to_string().contains("matched nothing"), "{refused}");
    store
        .commit(vec![update(
            "UPDATE notes SET id = id + 20000, who = 'v@x.org' WHERE id > 9990",
        )])
        .unwrap();
    store
        .commit(vec![update("DELETE FROM notes WHERE id < 9991")])
        .unwrap();
    assert_eq!(count(&store), 10);
}

/// A table whose columns hide the row id, or take the name that it is returned under, is not written under a rule; a table
/// without a rule is, whatever its columns.
#[test]
fn eng_1425_rows_that_cannot_be_told_apart_are_not_written() {
    let mut store = Store::new();
    let columns = |names: &[&str]| {
        let properties = names
            .iter()
            .map(|name| ((*name).to_owned(), value!({ "sqlType": "text" })))
            .collect::<memory_wire::value::Object>();
        value!({ "properties": properties })
    };
    let with_rule = |mut schema: Value| {
        if let Value::Object(schema) = &mut schema {
            schema.insert(
                "rowLabel",
                value!({ "version": 1, "confidentiality": { "constant": "c" } }),
            );
        }
        schema
    };
    for (hidden, part) in [
        (
            &["who", "rowid", "_ROWID_", "oid"][..],
            "every name of the row id",
        ),
        (&["who", "__cf_rowid"][..], "__cf_rowid"),
    ] {
        let db = value!({ "id": DB, "tables": { "hidden": (with_rule(columns(hidden))), "free": (columns(hidden)) } });
        let write = |table: &str| {
            let sql = format!("INSERT INTO {table} (who) VALUES ('x')");
            operation(db.clone(), &sql, value!([]))
        };
        let refused = store.commit(vec![write("hidden")]).unwrap_err();
        assert_eq!(refused.name(), "RowLabelCommitError");
        assert!(refused.to_string().contains(part), "{refused}");
        store.commit(vec![write("free")]).unwrap();
        store = Store::new();
    }
    // One name that is left is enough.
    let db = value!({ "id": DB, "tables": { "notes": (with_rule(columns(&["who", "rowid", "oid"]))) } });
    store
        .commit(vec![operation(
            db,
            "INSERT INTO notes (who) VALUES ('x')",
            value!([]),
        )])
        .unwrap();
}

/// What a client declares is refused by name, whatever it is.
#[test]
fn eng_1420_flags_that_are_none_are_refused() {
    let mut store = Store::new();
    for flags in ["x", "gg", "é", "éa", "gé", "\u{10ffff}g"] {
        let pattern = value!({ "field": "who", "source": "a", "flags": flags });
        let rule = value!({ "version": 1, "confidentiality": { "principal": { "protocol": "key", "of": { "match": pattern } } } });
        let refused = store
            .commit(vec![operation(labelled(rule), INSERT, value!(["a", 1]))])
            .unwrap_err();
        assert!(
            refused.to_string().contains("invalid regex flags"),
            "{flags}: {refused}"
        );
    }
    assert_eq!(store.engine.server_seq().unwrap().0, 0);
}

/// A pattern that backtracks without end refuses the row, with the field's name, and the space goes on. Steps end it, so
/// nothing here waits.
#[test]
fn eng_1421_a_pattern_that_takes_too_many_steps_refuses_the_row() {
    let rule = |source: &str| {
        let pattern = value!({ "field": "who", "source": source, "flags": "gu" });
        let gate = value!({ "when": { "match": pattern }, "then": { "dbOwner": true } });
        value!({ "version": 1, "confidentiality": gate })
    };
    let mut store = Store::new();
    let polynomial = format!("{}b", "a*".repeat(100));
    for source in [
        "^(a|aa)*$",
        polynomial.as_str(),
        "(?:){4000000000}",
        "^(?:||a)(?:||a){60}$",
    ] {
        let db = labelled(rule(source));
        let text = "a".repeat(70) + "!";
        let refused = store
            .commit(vec![
                set("of:a", value!(1)),
                operation(db, INSERT, value!([text, 1])),
            ])
            .unwrap_err();
        assert_eq!(refused.name(), "RowLabelCommitError", "{source}: {refused}");
        let reason = "field \"who\": the pattern takes too many steps on this text";
        assert!(refused.to_string().ends_with(reason), "{source}: {refused}");
        let before = store.engine.server_seq().unwrap().0;
        store
            .commit(vec![operation(
                labelled(mail_rule()),
                INSERT,
                value!(["a@x.org", 1]),
            )])
            .unwrap();
        assert_eq!(store.engine.server_seq().unwrap().0, before + 1);
    }
    assert_eq!(
        store.rows(Scope::Space, "SELECT who FROM notes").unwrap().len(),
        4
    );
    // The same rule labels the texts that it can answer for.
    let short = operation(labelled(rule("^(a|aa)*$")), INSERT, value!(["aaaa", 1]));
    store.commit(vec![short]).unwrap();
    // A few properties of characters are enough for a pattern.
    let many = labelled(rule(&"\\p{L}".repeat(9)));
    let refused = store
        .commit(vec![operation(many, INSERT, value!(["aaaa", 1]))])
        .unwrap_err();
    assert!(
        refused.to_string().contains("more than 8 properties"),
        "{refused}"
    );
}
