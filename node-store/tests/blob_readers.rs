//! Readers of blobs that meet damage, and readers beside a process that writes. Rule: NODE-16.

mod support;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use node_store::backend::sqlite::SqliteBackend;
use node_store::blob::CHUNK_BYTES;
use node_store::id::BlobId;
use node_store::{BlobStore, LayerExt, Programs, Store, StoreError, key, value};
use sha2::{Digest, Sha256};

fn chunk_id(bytes: &[u8]) -> BlobId {
    BlobId::new(Sha256::digest(bytes).into())
}

fn chunk_path(files: &Path, chunk: BlobId) -> PathBuf {
    files.join(bs58::encode(chunk.as_bytes()).into_string())
}

/// Three chunks, the middle one damaged on disk.
fn damaged() -> (tempfile::TempDir, BlobStore, BlobId) {
    let files = tempfile::tempdir().unwrap();
    let blobs = BlobStore::open(Store::memory(), files.path()).unwrap();
    let content: Vec<u8> = [1, 2, 3]
        .iter()
        .flat_map(|byte| vec![*byte; CHUNK_BYTES])
        .collect();
    let id = blobs.put(content.as_slice()).unwrap();
    let middle = chunk_path(files.path(), chunk_id(&[2; CHUNK_BYTES]));
    std::fs::write(middle, vec![0xbd; CHUNK_BYTES]).unwrap();
    (files, blobs, id)
}

#[test]
fn node_16_a_reader_that_failed_gives_no_bytes_and_no_end_to_whoever_asks_again() {
    let (_files, blobs, id) = damaged();
    let mut reader = blobs.reader(id).unwrap();
    let (mut content, mut buffer, mut failures) = (Vec::new(), vec![0; 1000], 0);
    while failures < 5 {
        match reader.read(&mut buffer) {
            Ok(0) => panic!("an end after {} bytes", content.len()),
            Ok(length) => content.extend_from_slice(&buffer[..length]),
            Err(_) => failures += 1,
        }
    }
    assert!(
        content == vec![1; CHUNK_BYTES],
        "only what was checked is given out"
    );

    let mut reader = blobs.reader(id).unwrap();
    assert_eq!(reader.next_chunk().unwrap().unwrap().len(), CHUNK_BYTES);
    for _ in 0..5 {
        assert!(matches!(reader.next_chunk(), Err(StoreError::CorruptBlob { .. })));
    }

    // The check of the whole comes once; that it failed stays.
    let one = blobs.put(&b"one"[..]).unwrap();
    let mut meta = blobs.meta(one).unwrap().unwrap();
    let (files, store) = (tempfile::tempdir().unwrap(), Store::memory());
    let other = BlobStore::open(store.clone(), files.path()).unwrap();
    assert_eq!(other.put(&b"one"[..]).unwrap(), one);
    meta.size += 1;
    store
        .clone()
        .handle()
        .put(&key::BlobMeta { blob_id: one }, &meta)
        .unwrap();
    let mut reader = other.reader(one).unwrap();
    assert_eq!(reader.next_chunk().unwrap(), Some(&b"one"[..]));
    for _ in 0..3 {
        assert!(reader.next_chunk().is_err());
    }
}

#[test]
fn node_16_chunks_and_bytes_may_be_asked_for_by_turns() {
    let files = tempfile::tempdir().unwrap();
    let blobs = BlobStore::open(Store::memory(), files.path()).unwrap();
    let content = [vec![1; CHUNK_BYTES], vec![2; 5]].concat();
    let id = blobs.put(content.as_slice()).unwrap();
    let mut reader = blobs.reader(id).unwrap();
    let mut some = [0; 10];
    reader.read_exact(&mut some).unwrap();
    assert_eq!(some, [1; 10]);
    assert_eq!(reader.next_chunk().unwrap(), Some(&[2; 5][..]));
    assert_eq!(
        reader.read(&mut some).unwrap(),
        0,
        "the chunk was given out whole"
    );
}

#[test]
fn node_16_a_chunk_whose_row_tells_another_size_is_corrupt() {
    let files = tempfile::tempdir().unwrap();
    let mut store = Store::memory();
    let blobs = BlobStore::open(store.clone(), files.path()).unwrap();
    let id = blobs.put(&b"content"[..]).unwrap();
    for blob_id in [chunk_id(b"content"), id] {
        let row = key::BlobMeta { blob_id };
        let meta = store.view().get(&row).unwrap().unwrap();
        let longer = value::BlobMeta { size: 70, ..meta };
        store.handle().put(&row, &longer).unwrap();
    }
    let read = io::read_to_string(blobs.reader(id).unwrap());
    assert!(
        read.unwrap_err()
            .to_string()
            .contains("its file has 7 bytes; its row says 70")
    );
}

#[test]
fn node_16_deleting_an_unknown_blob_takes_no_chunk_that_is_coming_in() {
    let files = tempfile::tempdir().unwrap();
    let blobs = BlobStore::open(Store::memory(), files.path()).unwrap();
    let staged = blobs.stage(&b"coming in"[..]).unwrap();
    let (id, chunk) = (staged.id(), chunk_id(b"coming in"));
    blobs.delete(chunk).unwrap();
    let change = node_store::blob::ReferenceChange::new().adding(staged);
    blobs.settle(change).unwrap();
    assert_eq!(
        io::read_to_string(blobs.reader(id).unwrap()).unwrap(),
        "coming in"
    );
    // A file that is nobody's goes.
    let orphan = chunk_path(files.path(), chunk_id(b"orphan"));
    std::fs::write(&orphan, b"orphan").unwrap();
    blobs.delete(chunk_id(b"orphan")).unwrap();
    assert!(!orphan.exists());
}

#[test]
fn node_16_over_a_store_that_is_read_only_no_file_is_touched() {
    let directory = tempfile::tempdir().unwrap();
    let (path, files) = (
        directory.path().join("node.sqlite"),
        directory.path().join("blobs"),
    );
    let writer = Store::new(SqliteBackend::open(&path, &Default::default()).unwrap());
    let writing = BlobStore::open(writer, &files).unwrap();
    let kept = writing.put(&b"kept"[..]).unwrap();
    // Another process is just taking a blob in: its file is there and its row is not.
    let staged = writing.stage(&b"coming in"[..]).unwrap();
    let chunk = chunk_path(&files, chunk_id(b"coming in"));

    let looking = Store::open_read_only(&path).unwrap();
    assert!(looking.is_read_only());
    let blobs = BlobStore::open(looking.clone(), &files).unwrap();
    let refused = [
        blobs.sweep().map(drop),
        blobs.delete(chunk_id(b"coming in")),
        blobs.delete(kept),
        blobs.put(&b"coming in"[..]).map(drop),
        Programs::new(looking.clone(), blobs.clone()).recover().map(drop),
    ];
    for outcome in refused {
        assert!(matches!(outcome, Err(StoreError::ReadOnly { .. })), "{outcome:?}");
    }
    assert!(chunk.is_file());
    assert_eq!(io::read_to_string(blobs.reader(kept).unwrap()).unwrap(), "kept");
    let absent = directory.path().join("absent");
    BlobStore::open(looking, &absent).unwrap();
    assert!(!absent.exists());

    let id = staged.id();
    let change = node_store::blob::ReferenceChange::new().adding(staged);
    writing.settle(change).unwrap();
    assert_eq!(
        io::read_to_string(writing.reader(id).unwrap()).unwrap(),
        "coming in"
    );
    assert_eq!(writing.dangling().unwrap(), []);
}
