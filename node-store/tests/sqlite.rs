//! What only the SQLite backend has: its file, its lock, its log, and reading beside a writer. Rules: NODE-20, NODE-25.

mod support;

use node_store::backend::sqlite::SqliteBackend;
use node_store::{
    Column, Direction, Durability, KeyRange, ReadLayer, SqliteOptions, Store, StoreError, WriteLayer,
};

fn options() -> SqliteOptions {
    SqliteOptions {
        durability: Durability::Process,
        ..Default::default()
    }
}

#[test]
fn node_20_one_without_rowid_table_a_column() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sqlite");
    drop(SqliteBackend::open(&path, &options()).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    for column in Column::ALL {
        let sql: String = connection
            .query_row(
                "SELECT sql FROM sqlite_schema WHERE name = ?1",
                [column.name()],
                |row| row.get(0),
            )
            .unwrap();
        assert!(sql.ends_with("STRICT, WITHOUT ROWID"), "{sql}");
    }
}

#[test]
fn node_20_a_database_of_another_program_or_a_later_format_is_refused_and_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let foreign = directory.path().join("foreign.sqlite");
    rusqlite::Connection::open(&foreign)
        .unwrap()
        .execute_batch("CREATE TABLE theirs (x)")
        .unwrap();
    let refused = SqliteBackend::open(&foreign, &options()).err().unwrap();
    assert!(matches!(refused, StoreError::NotAStore { .. }), "{refused}");
    let tables: i64 = rusqlite::Connection::open(&foreign)
        .unwrap()
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1);

    let later = directory.path().join("later.sqlite");
    drop(SqliteBackend::open(&later, &options()).unwrap());
    rusqlite::Connection::open(&later)
        .unwrap()
        .pragma_update(None, "user_version", 2)
        .unwrap();
    let refused = SqliteBackend::open(&later, &options()).err().unwrap();
    assert!(
        refused
            .to_string()
            .ends_with("format version 2; this program knows 1"),
        "{refused}"
    );
    assert!(SqliteBackend::open_read_only(directory.path().join("absent.sqlite")).is_err());
}

#[test]
fn node_20_a_reader_beside_the_writer_sees_whole_batches_and_cannot_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sqlite");
    let mut writer = Store::new(SqliteBackend::open(&path, &options()).unwrap());
    writer.put(Column::Meta, b"k", b"1").unwrap();
    let mut reader = Store::new(SqliteBackend::open_read_only(&path).unwrap());
    assert_eq!(reader.get(Column::Meta, b"k").unwrap().unwrap(), b"1");
    writer.put(Column::Meta, b"k", b"2").unwrap();
    assert_eq!(reader.get(Column::Meta, b"k").unwrap().unwrap(), b"2");
    assert!(matches!(
        reader.put(Column::Meta, b"k", b"3"),
        Err(StoreError::ReadOnly { .. })
    ));
    assert!(matches!(reader.flush(), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(
        reader.delete_range(Column::Meta, &KeyRange::all()),
        Err(StoreError::ReadOnly { .. })
    ));
}

#[test]
fn f39_the_log_is_cut_back_once_no_view_needs_it() {
    let directory = tempfile::tempdir().unwrap();
    let backend =
        std::sync::Arc::new(SqliteBackend::open(directory.path().join("node.sqlite"), &options()).unwrap());
    let mut store = Store::new(backend.clone());
    store.put(Column::State, b"k", b"before").unwrap();
    let reader = store.clone();
    let view = reader.snapshot().unwrap();
    let cursor = reader.iter(Column::State).unwrap();
    for round in 0..64u8 {
        store.put(Column::State, b"k", &vec![round; 256 << 10]).unwrap();
    }
    let grown = backend.statistics();
    assert_eq!(grown.open_views, 2);
    assert!(grown.log_bytes > 8 << 20, "{grown:?}");
    assert_eq!(view.get(Column::State, b"k").unwrap().unwrap(), b"before");
    store.flush().unwrap();
    assert_eq!(view.get(Column::State, b"k").unwrap().unwrap(), b"before");
    drop((view, cursor));
    assert_eq!(backend.statistics().open_views, 0);
    store.flush().unwrap();
    assert_eq!(backend.statistics().log_bytes, 0);
    assert_eq!(
        store.get(Column::State, b"k").unwrap().unwrap(),
        vec![63; 256 << 10]
    );
}

#[test]
fn node_6_a_scan_over_many_pages_is_of_one_moment_in_both_directions() {
    let mut store = Store::new(support::sqlite());
    let key = |n: u32| n.to_be_bytes();
    let mut rows = node_store::Transaction::new();
    for n in 0..3000 {
        rows.put(Column::State, key(n), vec![n as u8; 300]);
    }
    store.apply(&rows).unwrap();
    let reader = store.clone();
    let mut up = reader.iter_snapshot(Column::State).unwrap();
    let mut down = reader
        .range(Column::State, &KeyRange::all(), Direction::Descending)
        .unwrap();
    for n in 0..3000u32 {
        assert_eq!(up.next().unwrap().unwrap().key, key(n));
        assert_eq!(down.next().unwrap().unwrap().key, key(2999 - n));
        store.delete(Column::State, &key(n)).unwrap();
        store.put(Column::State, &key(n + 10_000), b"later").unwrap();
    }
    assert!(up.next().unwrap().is_none());
    assert!(down.next().unwrap().is_none());
}

#[test]
fn node_20_writers_and_readers_of_many_threads_see_whole_batches() {
    let store = Store::new(support::sqlite());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..200u32 {
                let mut rows = node_store::Transaction::new();
                for column in [Column::Meta, Column::State] {
                    for row in 0..20u8 {
                        rows.put(column, [row], round.to_be_bytes());
                    }
                }
                store.write(&rows).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while !done.load(std::sync::atomic::Ordering::SeqCst) {
                    let view = store.snapshot().unwrap();
                    let mut values = std::collections::BTreeSet::new();
                    for column in [Column::Meta, Column::State] {
                        let mut cursor = view.iter(column).unwrap();
                        while let Some(row) = cursor.next().unwrap() {
                            values.insert(row.value.to_vec());
                        }
                    }
                    assert!(values.len() <= 1, "two batches in one view: {values:?}");
                    seen += 1;
                }
                seen
            });
        }
    });
}

#[test]
fn node_20_node_25_missing_columns_are_made_at_opening_and_unknown_ones_are_kept_and_reported() {
    use node_store::{ColumnSet, Database, ReadView};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sqlite");
    let options = SqliteOptions::default();
    let store = SqliteBackend::open(&path, &options).unwrap();
    store.put(Column::State, b"k", b"v").unwrap();
    drop(store);
    // A file of a version that had no upgrade markers yet, and one column that this one has no more.
    let file = rusqlite::Connection::open(&path).unwrap();
    for column in [
        "ContextResyncRequested",
        "ContextActivatedBlob",
        "ApplicationPreviousBlob",
    ] {
        file.execute_batch(&format!("DROP TABLE {column}")).unwrap();
    }
    file.execute_batch(
        "CREATE TABLE Retired (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;
         INSERT INTO Retired VALUES (x'01', x'02')",
    )
    .unwrap();
    drop(file);
    let store = SqliteBackend::open(&path, &options).unwrap();
    assert_eq!(store.columns(), ColumnSet::ALL);
    assert_eq!(store.unknown_columns(), ["Retired"]);
    assert_eq!(store.get(Column::State, b"k").unwrap().unwrap(), b"v");
    assert!(
        !store.has(Column::ContextResyncRequested, b"k").unwrap(),
        "there, and empty"
    );
    drop(store);
    let file = rusqlite::Connection::open(&path).unwrap();
    let kept: i64 = file
        .query_row("SELECT count(*) FROM Retired", [], |row| row.get(0))
        .unwrap();
    assert_eq!(kept, 1);
}

#[test]
fn node_20_one_file_under_two_names_is_still_one_store() {
    let directory = tempfile::tempdir().unwrap();
    let (path, link) = (
        directory.path().join("node.sqlite"),
        directory.path().join("link.sqlite"),
    );
    let other = directory.path().join("other");
    std::os::unix::fs::symlink(directory.path(), &other).unwrap();
    let store = SqliteBackend::open(&path, &options()).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for name in [&path, &link, &other.join("node.sqlite")] {
        let refused = SqliteBackend::open(name, &options()).err().expect("open already");
        assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
    }
    drop(store);
    // Nor is it another one when it is made under the second name.
    std::fs::remove_file(&path).unwrap();
    let store = SqliteBackend::open(other.join("node.sqlite"), &options()).unwrap();
    assert!(matches!(
        SqliteBackend::open(&path, &options()),
        Err(StoreError::Locked { .. })
    ));
    drop(store);
    let refused = SqliteBackend::open(directory.path(), &options()).err().unwrap();
    assert!(
        refused.to_string().ends_with("not a node store: a directory"),
        "{refused}"
    );
}

#[test]
fn node_6_a_scan_over_large_values_sees_every_row_in_both_directions() {
    let mut store = Store::new(support::sqlite());
    for row in 0..12u8 {
        store.put(Column::State, &[row], &vec![row; 100 << 10]).unwrap();
    }
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut cursor = store.range(Column::State, &KeyRange::all(), direction).unwrap();
        let mut seen = 0;
        while let Some(row) = cursor.next().unwrap() {
            assert!(row.value == vec![row.key[0]; 100 << 10]);
            seen += 1;
        }
        assert_eq!(seen, 12, "{direction:?}");
    }
}
