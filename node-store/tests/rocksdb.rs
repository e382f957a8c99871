//! The RocksDB backend against a directory that the reference implementation wrote. Rule: NODE-22.
#![cfg(feature = "rocksdb")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use node_store::backend::rocksdb::RocksBackend;
use node_store::{
    Column, Durability, Family, KeyRange, ReadLayer, Store, StoreError, Transaction, WriteLayer,
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
