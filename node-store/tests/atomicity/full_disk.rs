//! A disk without room: a store with a largest size, and a file system that is really full. Rule: NODE-5.

use std::path::Path;
use std::process::Command;

use node_store::Column;
use node_store::backend::sqlite::SqliteBackend;
use node_store::{
    Durability, KeyRange, ReadLayer, SqliteOptions, Store, StoreError, Transaction, WriteLayer,
};

use crate::batches::{COLUMNS, find_batch, write};
use crate::support::disk::{self, BACKENDS};
use crate::support::process::{End, Process, say, told};

/// The test function that the process on the small file system runs.
const TEST: &str = "full_disk::the_process_on_a_small_file_system";
const VALUE_BYTES: usize = 800;

#[test]
fn node_5_on_a_full_disk_nothing_of_a_batch_is_written_and_the_store_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sqlite");
    let options = SqliteOptions {
        durability: Durability::Process,
        max_pages: Some(400),
    };
    let mut store = Store::new(SqliteBackend::open(&path, &options).unwrap());
    let mut written = 0u32;
    let error = loop {
        let mut rows = Transaction::new();
        for column in COLUMNS {
            for row in 0..4u32 {
                let key = [written.to_be_bytes(), row.to_be_bytes()].concat();
                rows.put(column, key, vec![written as u8; 9000]);
            }
        }
        match store.apply(&rows) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "the limit was never met");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(written > 2, "only {written} batches fitted");
    for reopened in [false, true] {
        if reopened {
            drop(store);
            store = Store::new(SqliteBackend::open(&path, &options).unwrap());
        }
        for column in COLUMNS {
            assert_eq!(
                store.scan(column, &KeyRange::all(), None).unwrap().len(),
                4 * written as usize
            );
        }
    }
    // A single put fails whole too, and once there is room the store takes writes again.
    assert!(matches!(
        store.put(Column::Meta, b"large", &[1; 1 << 20]),
        Err(StoreError::Full { .. })
    ));
    assert!(!store.has(Column::Meta, b"large").unwrap());
    store.delete_range(Column::State, &KeyRange::all()).unwrap();
    store.put(Column::Meta, b"small", &[1; 9000]).unwrap();
    assert!(store.has(Column::Meta, b"small").unwrap());
}

/// A mount of its own kind, seen by the process alone and gone with it.
fn script(directory: &Path, kilobytes: u32) -> String {
    format!(
        "mount -t tmpfs -o size={kilobytes}k tmpfs '{}' && exec \"$0\" \"$@\"",
        directory.display()
    )
}

/// Whether this machine lets us mount at all.
fn may_mount() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let mount = script(directory.path(), 64);
    let tried = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", &mount, "true"])
        .output();
    tried.is_ok_and(|output| output.status.success())
}

#[test]
fn node_5_on_a_full_file_system_a_batch_is_there_or_not_and_the_store_goes_on() {
    if !may_mount() {
        println!("SKIPPED: this machine does not let the test mount a small file system");
        return;
    }
    for backend in BACKENDS {
        for kilobytes in [1024, 1500, 2048, 3333] {
            // RocksDB reserves room for its logs ahead.
            let kilobytes = if *backend == "rocksdb" {
                16 * kilobytes
            } else {
                kilobytes
            };
            let directory = tempfile::tempdir().unwrap();
            let variables = [
                ("NODE_STORE_FULL", directory.path().display().to_string()),
                ("NODE_STORE_BACKEND", (*backend).to_owned()),
            ];
            let mount = script(directory.path(), kilobytes).replace('\'', "'\\''");
            let script = format!("exec unshare --mount --map-root-user sh -c '{mount}' \"$0\" \"$@\"");
            let mut process = Process::start_in(&script, TEST, &variables);
            let said = process.hear();
            let end = process.end();
            let case = format!(
                "{backend}, {kilobytes} KiB: {}",
                said.as_deref().unwrap_or("nothing")
            );
            assert_eq!(end, End::Success, "{case}");
            println!("{case}");
            let written = said.and_then(|said| said.split(' ').next()?.parse::<u32>().ok());
            assert!(written.is_some_and(|written| written > 1), "{case}");
        }
    }
}

#[test]
fn the_process_on_a_small_file_system() {
    let Some(directory) = told("NODE_STORE_FULL") else {
        return;
    };
    let directory = Path::new(&directory);
    let backend = told("NODE_STORE_BACKEND").unwrap();
    let open = || disk::open(&backend, directory).map(Store::new);
    let ballast = directory.join("ballast");
    std::fs::write(&ballast, vec![0; 400 << 10]).unwrap();
    let mut store = open().unwrap();
    let mut written = 0;
    let error = loop {
        match write(&mut store, written + 1, VALUE_BYTES) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(
        find_batch(&store, VALUE_BYTES),
        written,
        "nothing of what was refused"
    );
    drop(store);
    // Without room an opening may be refused, and a store that opens all the same is whole.
    let opened = match open() {
        Ok(store) => {
            assert_eq!(find_batch(&store, VALUE_BYTES), written, "still full");
            "opens while it is full".to_owned()
        }
        Err(error) => format!("while it is full: {error}"),
    };
    std::fs::remove_file(&ballast).unwrap();
    let mut store = open().unwrap();
    assert_eq!(
        find_batch(&store, VALUE_BYTES),
        written,
        "and nothing of it later"
    );
    say(&format!("{written} batches; {opened}"));
    for column in COLUMNS {
        store.delete_range(column, &KeyRange::all()).unwrap();
    }
    store.flush().unwrap();
    write(&mut store, 2, 4).unwrap();
    assert_eq!(find_batch(&store, 4), 2);
}
