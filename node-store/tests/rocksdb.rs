//! The RocksDB backend against a directory that the reference implementation wrote, and where it does better than that
//! one. Rules: NODE-6, NODE-22, NODE-25.
#![cfg(feature = "rocksdb")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use node_store::backend::rocksdb::RocksBackend;
use node_store::{
    Column, ColumnSet, Database, Direction, Durability, Family, KeyRange, ReadLayer, ReadView, Store,
    StoreError, Transaction, WriteLayer,
};

use support::vectors::{bytes, hex, lines, text};

/// Unpacks the reference's directory: plain files of a ustar archive.
fn reference_directory(into: &Path) -> PathBuf {
    let archive = format!(
        "{}/../tests/vectors/node-store-db.tar",
        env!("CARGO_MANIFEST_DIR")
    );
    let archive = std::fs::read(archive).unwrap();
    let mut rest = archive.as_slice();
    let field = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8(bytes[..end].to_vec()).unwrap()
    };
    while let Some((header, after)) = rest.split_at_checked(512).filter(|(header, _)| header[0] != 0) {
        let name = field(&header[..100]);
        let size = usize::from_str_radix(field(&header[124..136]).trim(), 8).unwrap();
        match header[156] {
            b'0' | 0 => {
                let path = into.join(&name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, &after[..size]).unwrap();
            }
            b'5' => std::fs::create_dir_all(into.join(&name)).unwrap(),
            kind => panic!("{name}: an entry of kind {kind}"),
        }
        rest = &after[size.div_ceil(512) * 512..];
    }
    find_current(into).expect("the archive holds a RocksDB directory")
}

fn find_current(directory: &Path) -> Option<PathBuf> {
    if directory.join("CURRENT").is_file() {
        return Some(directory.to_owned());
    }
    let entries = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.is_dir())
        .find_map(|path| find_current(&path))
}

fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect()
}

fn all_rows(store: &Store) -> Vec<(Column, Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for column in Column::ALL {
        for (key, value) in store.scan(*column, &KeyRange::all(), None).unwrap() {
            all.push((*column, key, value));
        }
    }
    all
}

#[test]
fn node_22_every_row_of_the_reference_decodes_and_comes_back_byte_for_byte_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = reference_directory(directory.path());
    let before = contents(&path);
    let store = Store::open_read_only(&path).unwrap();
    let rows = all_rows(&store);
    for (column, key, value) in &rows {
        let family = Family::require(*column, key).unwrap();
        let again = family.recode(key, value).unwrap();
        assert_eq!(
            (hex(&again.0), hex(&again.1)),
            (hex(key), hex(value)),
            "{family:?}"
        );
        family.describe(key, value).unwrap();
    }
    let mut golden: Vec<_> = lines("node-store.jsonl")
        .iter()
        .map(|line| {
            let column = Column::from_name(text(&line["column"])).unwrap();
            (column, bytes(&line["key_hex"]), bytes(&line["value_hex"]))
        })
        .collect();
    golden.sort();
    assert_eq!(rows, golden, "exactly the golden rows");
    println!("{} rows of the reference's directory", rows.len());
    assert!(matches!(
        store.clone().put(Column::Meta, b"k", b"v"),
        Err(StoreError::ReadOnly { .. })
    ));
    assert!(matches!(store.flush(), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(
        store.delete_range(Column::Meta, &KeyRange::all()),
        Err(StoreError::ReadOnly { .. })
    ));
    drop(store);
    assert!(
        contents(&path) == before,
        "opening for reading changed the directory"
    );
}

#[test]
fn node_22_the_reference_s_directory_opens_for_writing_and_keeps_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = reference_directory(directory.path());
    let rows = all_rows(&Store::open_read_only(&path).unwrap());
    let mut store = Store::new(RocksBackend::open(&path, Durability::Full).unwrap());
    store.put(Column::Meta, &[0xee; 32], b"ours").unwrap();
    // A reader takes no lock: it opens beside the running node.
    let beside = Store::open_read_only(&path).unwrap();
    assert_eq!(beside.get(Column::Meta, &[0xee; 32]).unwrap().unwrap(), b"ours");
    assert!(matches!(
        RocksBackend::open(&path, Durability::Full),
        Err(StoreError::Locked { .. })
    ));
    drop((store, beside));
    let store = Store::new(RocksBackend::open(&path, Durability::Full).unwrap());
    let mut found = all_rows(&store);
    found.retain(|(_, key, _)| *key != [0xee; 32]);
    assert_eq!(found, rows);
}

#[test]
fn node_22_a_directory_of_ours_has_the_families_of_the_reference() {
    let directory = tempfile::tempdir().unwrap();
    let theirs = reference_directory(directory.path());
    let ours = directory.path().join("ours");
    let mut store = Store::new(RocksBackend::open(&ours, Durability::Full).unwrap());
    let mut rows = Transaction::new();
    for (column, key, value) in all_rows(&Store::open_read_only(&theirs).unwrap()) {
        rows.put(column, key, value);
    }
    store.apply(&rows).unwrap();
    store.flush().unwrap();
    drop(store);
    let families = |path: &Path| {
        let mut names = rocksdb::DB::list_cf(&rocksdb::Options::default(), path).unwrap();
        names.sort();
        names
    };
    assert_eq!(families(&ours), families(&theirs));
    assert_eq!(families(&ours).len(), 23);
    // And it opens the way the reference opens one: exactly these families, by name.
    let names = families(&ours);
    let db = rocksdb::DB::open_cf(&rocksdb::Options::default(), &ours, &names).unwrap();
    let meta = db.cf_handle("Meta").unwrap();
    assert_eq!(db.get_cf(meta, [1; 32]).unwrap().unwrap().len(), 142);
}

/// The largest table file of a directory.
fn largest_table(directory: &Path) -> PathBuf {
    let tables = contents(directory)
        .into_iter()
        .filter(|(path, _)| path.extension().is_some_and(|extension| extension == "sst"));
    tables
        .max_by_key(|(_, bytes)| bytes.len())
        .expect("rows were written out")
        .0
}

/// The reference takes a scan that failed for one that ended.
#[test]
fn node_6_node_22_a_corrupt_block_is_an_error_and_never_the_end_of_the_rows() {
    const ROWS: u32 = 5000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let mut store = Store::new(RocksBackend::open(&path, Durability::Process).unwrap());
    let mut rows = Transaction::new();
    for number in 0..ROWS {
        rows.put(Column::State, number.to_be_bytes(), vec![number as u8; 100]);
    }
    store.apply(&rows).unwrap();
    drop(store);
    let table = largest_table(&path);
    let mut bytes = std::fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(&table, bytes).unwrap();

    let writer = Store::new(RocksBackend::open(&path, Durability::Process).unwrap());
    let reader = Store::open_read_only(&path).unwrap();
    for store in [&writer, &reader] {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut cursor = store.range(Column::State, &KeyRange::all(), direction).unwrap();
            let mut seen = 0;
            let error = loop {
                match cursor.next() {
                    Ok(Some(_)) => seen += 1,
                    Ok(None) => panic!("{direction:?}: the rows end after {seen} of {ROWS}"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, StoreError::Backend { .. }), "{error}");
            assert!((1..ROWS).contains(&seen), "{direction:?}: {seen}");
        }
        assert!(store.scan(Column::State, &KeyRange::all(), None).is_err());
    }
}

/// The reference writes out only the default family when it closes, in which there is nothing.
#[test]
fn node_22_a_flush_and_a_close_write_out_every_family_and_the_log_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let backend = RocksBackend::open(&path, Durability::Process).unwrap();
    let unwritten = |backend: &RocksBackend| -> u64 {
        let rows = Column::ALL
            .iter()
            .map(|column| backend.statistics(*column).unwrap().unwritten_rows);
        rows.sum()
    };
    let put_all = || {
        for column in Column::ALL {
            backend.put(*column, b"k", column.name().as_bytes()).unwrap();
        }
    };
    put_all();
    assert_eq!(unwritten(&backend), Column::COUNT as u64);
    backend.flush().unwrap();
    assert_eq!(unwritten(&backend), 0);
    put_all();
    drop(backend);
    let names = rocksdb::DB::list_cf(&rocksdb::Options::default(), &path).unwrap();
    let db = rocksdb::DB::open_cf_for_read_only(&rocksdb::Options::default(), &path, names, true).unwrap();
    for column in Column::ALL {
        let tables = db.live_files().unwrap();
        let of_column = tables
            .iter()
            .filter(|table| table.column_family_name == column.name());
        assert_eq!(
            of_column.count(),
            2,
            "{column}: one by the flush, one by the close"
        );
    }
    let mut options = contents(&path).into_iter().filter(|(path, _)| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("OPTIONS-")
    });
    let written = String::from_utf8(options.next_back().expect("the options are kept").1).unwrap();
    assert!(written.contains("max_total_wal_size=268435456"), "{written}");
    assert!(written.contains("max_open_files=256"), "{written}");
}

/// At the reference an inverted range stops every later write until the next opening.
#[test]
fn node_22_an_inverted_range_removes_nothing_and_disturbs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let backend = RocksBackend::open(directory.path().join("data"), Durability::Process).unwrap();
    backend.put(Column::State, b"m", b"1").unwrap();
    for range in [KeyRange::new(*b"z", *b"a"), KeyRange::new(*b"m", *b"m")] {
        backend.delete_range(Column::State, &range).unwrap();
        backend.put(Column::Meta, b"k", b"v").unwrap();
        backend.flush().unwrap();
        assert!(backend.has(Column::State, b"m").unwrap());
    }
}

#[test]
fn node_22_node_25_missing_families_are_made_at_opening_and_unknown_ones_are_kept_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let backend = RocksBackend::open(&path, Durability::Process).unwrap();
    backend.put(Column::State, b"k", b"v").unwrap();
    drop(backend);
    let names = rocksdb::DB::list_cf(&rocksdb::Options::default(), &path).unwrap();
    let mut db = rocksdb::DB::open_cf(&rocksdb::Options::default(), &path, names).unwrap();
    let markers = [
        "ContextResyncRequested",
        "ContextActivatedBlob",
        "ApplicationPreviousBlob",
    ];
    for marker in markers {
        db.drop_cf(marker).unwrap();
    }
    db.create_cf("Retired", &rocksdb::Options::default()).unwrap();
    db.put_cf(db.cf_handle("Retired").unwrap(), b"k", b"kept")
        .unwrap();
    drop(db);

    // A reader makes nothing: the columns are missing, and asking for one is an error.
    let reader = RocksBackend::open_read_only(&path).unwrap();
    assert_eq!(reader.unknown_columns(), ["Retired"]);
    assert!(matches!(
        reader.has(Column::ContextActivatedBlob, b"k"),
        Err(StoreError::UnknownColumns { .. })
    ));
    drop(reader);
    let backend = RocksBackend::open(&path, Durability::Process).unwrap();
    assert_eq!(backend.columns(), ColumnSet::ALL);
    assert_eq!(backend.unknown_columns(), ["Retired"]);
    assert_eq!(backend.get(Column::State, b"k").unwrap().unwrap(), b"v");
    assert!(!backend.has(Column::ContextActivatedBlob, b"k").unwrap());
    drop(backend);
    let names = rocksdb::DB::list_cf(&rocksdb::Options::default(), &path).unwrap();
    let db = rocksdb::DB::open_cf(&rocksdb::Options::default(), &path, names).unwrap();
    let kept = db.get_cf(db.cf_handle("Retired").unwrap(), b"k").unwrap();
    assert_eq!(kept.unwrap(), b"kept");
}
