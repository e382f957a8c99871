//! Observed behaviours that are about files, run against the file backends of ours.

use node_store::backend::sqlite::SqliteBackend;
use node_store::{Column, Database, ReadView, SqliteOptions, StoreError};
use serde_json::Value;

fn open(path: &std::path::Path) -> Result<SqliteBackend, StoreError> {
    SqliteBackend::open(path, &SqliteOptions::default())
}

fn truth(holds: bool) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err("does not hold".into())
    }
}

pub(crate) fn check(case: &str, expected: &Value) -> Result<(), String> {
    #[cfg(feature = "rocksdb")]
    rocks(case, expected)?;
    let _ = expected;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sqlite");
    match case {
        "unflushed put survives drop + reopen" => {
            open(&path).unwrap().put(Column::Meta, b"k", b"v").unwrap();
            truth(open(&path).unwrap().has(Column::Meta, b"k").unwrap())
        }
        "second open of the same path in-process" => {
            let _first = open(&path).unwrap();
            truth(matches!(open(&path), Err(StoreError::Locked { .. })))
        }
        "column families after first open" => truth(
            open(&path)
                .unwrap()
                .columns()
                .iter()
                .eq(Column::ALL.iter().copied()),
        ),
        "open when a known family is missing" | "families after that open" => {
            drop(open(&path).unwrap());
            rusqlite::Connection::open(&path)
                .unwrap()
                .execute_batch("DROP TABLE ContextResyncRequested")
                .unwrap();
            let reader = SqliteBackend::open_read_only(&path).unwrap();
            truth(!reader.columns().contains(Column::ContextResyncRequested))?;
            let error = reader.has(Column::ContextResyncRequested, b"k").unwrap_err();
            truth(matches!(error, StoreError::UnknownColumns { .. }))?;
            drop(reader);
            truth(open(&path).unwrap().columns() == node_store::ColumnSet::ALL)
        }
        "open when the directory holds an unknown family" => {
            // Observed: refused. Ours keeps it and says so (NODE-20, NODE-22).
            drop(open(&path).unwrap());
            let sql = "CREATE TABLE RetiredColumn (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID";
            rusqlite::Connection::open(&path)
                .unwrap()
                .execute_batch(sql)
                .unwrap();
            truth(open(&path).unwrap().unknown_columns() == ["RetiredColumn"])?;
            truth(open(&path).unwrap().unknown_columns() == ["RetiredColumn"])
        }
        "open below a missing parent directory" => {
            truth(open(&directory.path().join("a/b/c/node.sqlite")).is_ok())
        }
        "open on a regular file" => {
            std::fs::write(
                &path,
                "not a database, and long enough to have a header of its own",
            )
            .unwrap();
            let refused = open(&path)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            truth(refused.contains("not a node store"))?;
            let text = std::fs::read_to_string(&path).unwrap();
            truth(text.starts_with("not a database"))
        }
        // A matter of RocksDB alone.
        "block cache capacity per family with open_cf" => Ok(()),
        other => Err(format!("unknown case {other}")),
    }
}

#[cfg(feature = "rocksdb")]
fn rocks(case: &str, expected: &Value) -> Result<(), String> {
    use node_store::Durability;
    use node_store::backend::rocksdb::RocksBackend;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let open = |path: &std::path::Path| RocksBackend::open(path, Durability::Process);
    let families = |path: &std::path::Path| {
        let mut names = rocksdb::DB::list_cf(&rocksdb::Options::default(), path).unwrap();
        names.sort();
        names
    };
    match case {
        "unflushed put survives drop + reopen" => {
            open(&path).unwrap().put(Column::Meta, b"k", b"v").unwrap();
            truth(open(&path).unwrap().has(Column::Meta, b"k").unwrap())
        }
        "second open of the same path in-process" => {
            let _first = open(&path).unwrap();
            truth(matches!(open(&path), Err(StoreError::Locked { .. })))
        }
        "column families after first open" => {
            drop(open(&path).unwrap());
            let mut names: Vec<String> = expected
                .as_array()
                .unwrap()
                .iter()
                .map(|name| name.as_str().unwrap().to_owned())
                .collect();
            names.sort();
            truth(families(&path) == names)
        }
        "open when a known family is missing" | "families after that open" => {
            drop(open(&path).unwrap());
            let names = rocksdb::DB::list_cf(&rocksdb::Options::default(), &path).unwrap();
            let mut db = rocksdb::DB::open_cf(&rocksdb::Options::default(), &path, names).unwrap();
            db.drop_cf("ContextResyncRequested").unwrap();
            drop(db);
            let reader = RocksBackend::open_read_only(&path).unwrap();
            truth(!reader.columns().contains(Column::ContextResyncRequested))?;
            drop(reader);
            drop(open(&path).unwrap());
            truth(families(&path).len() == 23)
        }
        "open when the directory holds an unknown family" => {
            drop(open(&path).unwrap());
            let names = rocksdb::DB::list_cf(&rocksdb::Options::default(), &path).unwrap();
            let mut db = rocksdb::DB::open_cf(&rocksdb::Options::default(), &path, names).unwrap();
            db.create_cf("RetiredColumn", &rocksdb::Options::default())
                .unwrap();
            drop(db);
            truth(RocksBackend::open_read_only(&path).unwrap().unknown_columns() == ["RetiredColumn"])?;
            truth(open(&path).unwrap().unknown_columns() == ["RetiredColumn"])
        }
        "open below a missing parent directory" => truth(open(&directory.path().join("a/b/c")).is_ok()),
        "open on a regular file" => {
            std::fs::write(&path, "file").unwrap();
            truth(open(&path).is_err())
        }
        "block cache capacity per family with open_cf" => {
            // Observed: the intended size reaches no family. Ours does.
            let store = open(&path).unwrap();
            let reached =
                |column: &Column| store.statistics(*column).unwrap().block_cache_capacity == 128 << 20;
            truth(Column::ALL.iter().all(reached))
        }
        _ => Ok(()),
    }
}
