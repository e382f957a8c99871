//! Files that are cut short, overwritten or somebody else's: an error, and never fewer rows. Rules: NODE-6, NODE-7, NODE-20.

mod support;

use std::path::Path;

use node_store::backend::sqlite::SqliteBackend;
use node_store::{Column, Direction, KeyRange, ReadLayer, SqliteOptions, Store, StoreError, Transaction};

const ROWS: u32 = 400;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// A store that was closed in peace, so that all of it is in one file.
fn sound(path: &Path) {
    let options = SqliteOptions {
        durability: node_store::Durability::Process,
        ..Default::default()
    };
    let store = Store::new(SqliteBackend::open(path, &options).unwrap());
    let mut rows = Transaction::new();
    for number in 0..ROWS {
        for column in [Column::Meta, Column::State] {
            rows.put(
                column,
                key(number),
                vec![number as u8; 100 + number as usize % 50],
            );
        }
    }
    store.write(&rows).unwrap();
}

/// Every row, by a walk in each direction and by key.
fn read_all(store: &Store) -> Result<(), StoreError> {
    for column in [Column::Meta, Column::State] {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut cursor = store.range(column, &KeyRange::all(), direction)?;
            let mut count = 0;
            while cursor.next()?.is_some() {
                count += 1;
            }
            assert_eq!(count, ROWS, "a walk that ends well has seen all rows");
        }
        for number in 0..ROWS {
            assert!(
                store.get(column, &key(number))?.is_some(),
                "row {number} is not absent"
            );
        }
    }
    Ok(())
}

fn open(path: &Path, read_only: bool) -> Result<Store, StoreError> {
    if read_only {
        Store::open_read_only(path)
    } else {
        Store::open(path)
    }
}

#[test]
fn node_6_a_file_that_is_cut_short_anywhere_is_an_error_and_never_fewer_rows() {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole.sqlite");
    sound(&whole);
    let bytes = std::fs::read(&whole).unwrap();
    assert!(bytes.len() > 50 * 4096);
    // At every page, within pages, and within the header.
    let lengths = (1..bytes.len())
        .step_by(4096 * 3 + 1)
        .chain((4096..bytes.len()).step_by(4096 * 5));
    for length in lengths.chain([16, 99, 100, 512, bytes.len() - 1]) {
        for read_only in [false, true] {
            let cut = directory.path().join("cut.sqlite");
            std::fs::write(&cut, &bytes[..length]).unwrap();
            let read = open(&cut, read_only).and_then(|store| read_all(&store));
            assert!(read.is_err(), "{length} of {} bytes", bytes.len());
            for rest in ["cut.sqlite-wal", "cut.sqlite-shm"] {
                let _ = std::fs::remove_file(directory.path().join(rest));
            }
        }
    }
    for read_only in [true, false] {
        read_all(&open(&whole, read_only).unwrap()).unwrap();
    }
}

#[test]
fn node_6_a_page_that_is_overwritten_is_an_error_and_never_fewer_rows() {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole.sqlite");
    sound(&whole);
    let bytes = std::fs::read(&whole).unwrap();
    let mut struck = 0;
    for page in (1..bytes.len() / 4096).step_by(3) {
        for garbage in [0, 0xff] {
            let path = directory.path().join("overwritten.sqlite");
            let mut damaged = bytes.clone();
            damaged[page * 4096..(page + 1) * 4096].fill(garbage);
            std::fs::write(&path, damaged).unwrap();
            // A page of a table that is not read here harms nobody yet.
            struck += usize::from(
                Store::open_read_only(&path)
                    .and_then(|store| read_all(&store))
                    .is_err(),
            );
            for rest in ["overwritten.sqlite-wal", "overwritten.sqlite-shm"] {
                let _ = std::fs::remove_file(directory.path().join(rest));
            }
        }
    }
    assert!(struck > 20, "{struck}");
}

#[test]
fn node_20_what_is_no_store_is_refused_by_name_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("text", vec![b'x'; 5000]),
        ("zeros", vec![0; 8192]),
        ("short", vec![1]),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, &content).unwrap();
        for read_only in [false, true] {
            let refused = open(&path, read_only).expect_err(name);
            assert!(
                matches!(refused, StoreError::NotAStore { .. }),
                "{name}: {refused}"
            );
        }
        assert_eq!(std::fs::read(&path).unwrap(), content, "{name}");
    }
    // An empty file is a store that is still to be made; whoever only reads makes none.
    let empty = directory.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    assert!(matches!(
        Store::open_read_only(&empty),
        Err(StoreError::NotAStore { .. })
    ));
    assert_eq!(std::fs::read(&empty).unwrap(), b"");
    // Beside a log with rows it is one that was lost, and making it anew would end the log too.
    let log = directory.path().join("empty-wal");
    std::fs::write(&log, [7; 5000]).unwrap();
    for read_only in [false, true] {
        let refused = open(&empty, read_only).unwrap_err();
        assert!(matches!(refused, StoreError::NotAStore { .. }), "{refused}");
    }
    assert_eq!(std::fs::read(&log).unwrap(), [7; 5000]);
    std::fs::remove_file(&log).unwrap();
    drop(Store::open(&empty).unwrap());
    assert!(Store::open_read_only(&empty).is_ok());
}

#[test]
fn node_20_a_log_that_a_killed_writer_left_is_read_without_another_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sqlite");
    let store = Store::open(&path).unwrap();
    store.flush().unwrap();
    let mut rows = Transaction::new();
    rows.put(Column::Meta, *b"k", *b"only in the log");
    store.write(&rows).unwrap();
    // What a kill leaves: the file and its log, as they are now.
    let left = tempfile::tempdir().unwrap();
    for name in ["node.sqlite", "node.sqlite-wal"] {
        std::fs::copy(directory.path().join(name), left.path().join(name)).unwrap();
    }
    let looking = Store::open_read_only(left.path().join("node.sqlite")).unwrap();
    assert_eq!(
        looking.get(Column::Meta, b"k").unwrap().unwrap(),
        b"only in the log"
    );
    drop(looking);
    let store = Store::open(left.path().join("node.sqlite")).unwrap();
    assert_eq!(
        store.get(Column::Meta, b"k").unwrap().unwrap(),
        b"only in the log"
    );
}
