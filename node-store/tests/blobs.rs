//! Blobs: addresses, counts, streams, what a crash leaves and what corruption looks like. Rule: NODE-16.

mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use node_store::backend::memory::MemoryBackend;
use node_store::blob::{CHUNK_BYTES, ReferenceChange, application_blob_path};
use node_store::id::{BlobId, Hash};
use node_store::{BlobStore, LayerExt, Store, StoreError, key, value};
use sha2::{Digest, Sha256};

use support::faults::{Faulty, Plan};

struct Fixture {
    files: tempfile::TempDir,
    store: Store,
    blobs: BlobStore,
    plan: Arc<Plan>,
}

impl Fixture {
    fn new() -> Self {
        let (files, plan) = (tempfile::tempdir().unwrap(), Plan::new());
        let store = Store::new(Faulty {
            inner: MemoryBackend::new(),
            plan: plan.clone(),
        });
        let blobs = BlobStore::open(store.clone(), files.path()).unwrap();
        Fixture {
            files,
            store,
            blobs,
            plan,
        }
    }

    fn file_names(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.files.path()).unwrap();
        let mut names: Vec<String> = names
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn rows(&self) -> BTreeMap<BlobId, value::BlobMeta> {
        let view = self.store.view();
        view.scan_family::<key::BlobMeta>()
            .unwrap()
            .map(Result::unwrap)
            .map(|(key, meta)| (key.blob_id, meta))
            .collect()
    }

    fn chunk_path(&self, chunk: BlobId) -> PathBuf {
        self.files
            .path()
            .join(bs58::encode(chunk.as_bytes()).into_string())
    }

    fn read(&self, id: BlobId) -> std::io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.blobs
            .reader(id)
            .map_err(std::io::Error::other)?
            .read_to_end(&mut content)?;
        Ok(content)
    }
}

fn sha(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Bytes that differ from chunk to chunk.
fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect()
}

fn chunks(content: &[u8]) -> Vec<BlobId> {
    content
        .chunks(CHUNK_BYTES)
        .map(|chunk| BlobId::new(sha(chunk)))
        .collect()
}

fn root(chunks: &[BlobId]) -> BlobId {
    BlobId::new(sha(&chunks
        .iter()
        .flat_map(|chunk| *chunk.as_bytes())
        .collect::<Vec<u8>>()))
}

#[test]
fn node_16_addresses_are_those_of_the_layout_at_every_edge_of_a_chunk() {
    for length in [
        0,
        1,
        CHUNK_BYTES - 1,
        CHUNK_BYTES,
        CHUNK_BYTES + 1,
        3 * CHUNK_BYTES + 5,
    ] {
        let fixture = Fixture::new();
        let content = content(length);
        let id = fixture.blobs.put(content.as_slice()).unwrap();
        let links = chunks(&content);
        assert_eq!(id, root(&links), "{length} bytes");
        let meta = fixture.blobs.meta(id).unwrap().unwrap();
        let expected = value::BlobMeta {
            size: length as u64,
            hash: Hash::new(sha(&content)),
            links: links.clone(),
            refs: 1,
        };
        assert_eq!(meta, expected, "{length} bytes");
        let mut names: Vec<String> = links
            .iter()
            .map(|chunk| bs58::encode(chunk.as_bytes()).into_string())
            .collect();
        names.sort();
        assert_eq!(
            fixture.file_names(),
            names,
            "a file a chunk and none for the root"
        );
        assert!(fixture.read(id).unwrap() == content, "{length} bytes");
        assert_eq!(fixture.blobs.reader(id).unwrap().size(), length as u64);
        fixture.blobs.delete(id).unwrap();
        assert!(
            fixture.rows().is_empty() && fixture.file_names().is_empty(),
            "{length} bytes"
        );
        assert!(matches!(
            fixture.blobs.reader(id),
            Err(StoreError::UnknownBlob { .. })
        ));
    }
}

#[test]
fn node_16_every_owner_counts_and_shared_chunks_stay_for_the_others() {
    let fixture = Fixture::new();
    let one = content(2 * CHUNK_BYTES);
    let other = [&one[..CHUNK_BYTES], &[7; 10]].concat();
    let (one_id, other_id) = (
        fixture.blobs.put(one.as_slice()).unwrap(),
        fixture.blobs.put(other.as_slice()).unwrap(),
    );
    assert_eq!(fixture.blobs.put(one.as_slice()).unwrap(), one_id);
    let shared = chunks(&one)[0];
    assert_eq!(fixture.rows()[&shared].refs, 3);
    assert_eq!(fixture.rows()[&one_id].refs, 2);
    fixture.blobs.delete(one_id).unwrap();
    assert!(fixture.read(one_id).unwrap() == one);
    fixture.blobs.delete(one_id).unwrap();
    assert!(!fixture.blobs.has(one_id).unwrap());
    assert_eq!(fixture.rows()[&shared].refs, 1);
    assert!(fixture.read(other_id).unwrap() == other);
    fixture.blobs.delete(other_id).unwrap();
    assert!(fixture.rows().is_empty() && fixture.file_names().is_empty());
    // Deleting what is unknown is no error.
    fixture.blobs.delete(other_id).unwrap();
}

#[test]
fn node_16_a_chunk_that_occurs_several_times_is_counted_each_time() {
    let fixture = Fixture::new();
    let zeros = vec![0; 3 * CHUNK_BYTES];
    let id = fixture.blobs.put(zeros.as_slice()).unwrap();
    assert_eq!(fixture.rows()[&chunks(&zeros)[0]].refs, 3);
    assert_eq!(fixture.file_names().len(), 1);
    assert!(fixture.read(id).unwrap() == zeros);
    fixture.blobs.delete(id).unwrap();
    assert!(fixture.rows().is_empty() && fixture.file_names().is_empty());
}

/// A stream that fails after some bytes.
struct Failing(usize);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::Error::other("the peer went away"));
        }
        let length = buffer.len().min(self.0);
        buffer[..length].fill(self.0 as u8);
        self.0 -= length;
        Ok(length)
    }
}

#[test]
fn node_16_a_stream_that_fails_midway_leaves_no_count_no_row_and_no_file() {
    let fixture = Fixture::new();
    let error = fixture.blobs.put(Failing(3 * CHUNK_BYTES + 17)).unwrap_err();
    assert_eq!(error.to_string(), "reading the blob's source: the peer went away");
    assert!(fixture.rows().is_empty() && fixture.file_names().is_empty());

    // A chunk that another blob owns stays.
    let kept = fixture.blobs.put(content(CHUNK_BYTES).as_slice()).unwrap();
    let both = content(CHUNK_BYTES);
    assert!(fixture.blobs.put(both.as_slice().chain(Failing(5))).is_err());
    assert!(fixture.read(kept).unwrap() == both);
    drop(fixture.blobs.stage(both.as_slice()).unwrap());
    assert!(
        fixture.read(kept).unwrap() == both,
        "a staged blob that is dropped takes nothing of others"
    );
}

#[test]
fn node_16_a_crash_between_file_and_row_leaves_an_orphan_that_the_sweep_finds() {
    let content = content(2 * CHUNK_BYTES + 9);
    for after in [false, true] {
        let fixture = Fixture::new();
        let kept = fixture.blobs.put(&b"kept"[..]).unwrap();
        // The process dies at the one write that brings rows and counts; what its memory knew is gone with it.
        let staged = fixture.blobs.stage(content.as_slice()).unwrap();
        let id = staged.id();
        fixture.plan.die(1, after);
        assert!(
            fixture
                .blobs
                .settle(ReferenceChange::new().adding(staged))
                .is_err()
        );
        fixture.plan.sound();
        let reopened = BlobStore::open(fixture.store.clone(), fixture.files.path()).unwrap();
        assert_eq!(reopened.dangling().unwrap(), []);
        std::fs::write(fixture.files.path().join(".unfinished-1-1"), b"torn").unwrap();
        std::fs::write(fixture.files.path().join("notes.txt"), b"somebody's").unwrap();
        let swept = reopened.sweep().unwrap();
        if after {
            assert_eq!((swept.files, swept.bytes), (1, 4));
            assert!(fixture.read(id).unwrap() == content);
        } else {
            assert_eq!((swept.files, swept.bytes), (4, 4 + content.len() as u64));
            assert!(!reopened.has(id).unwrap());
        }
        assert_eq!(reopened.sweep().unwrap().files, 0);
        assert!(fixture.file_names().contains(&"notes.txt".to_owned()));
        assert_eq!(fixture.read(kept).unwrap(), b"kept");
    }
}

#[test]
fn node_16_the_sweep_leaves_streams_that_are_coming_in_alone() {
    let fixture = Fixture::new();
    let content = content(CHUNK_BYTES + 1);
    let staged = fixture.blobs.stage(content.as_slice()).unwrap();
    assert_eq!(fixture.blobs.sweep().unwrap().files, 0);
    // Somebody deletes the same content while it is coming in again: the files stay for the newcomer.
    let id = fixture.blobs.put(content.as_slice()).unwrap();
    fixture.blobs.delete(id).unwrap();
    assert_eq!(fixture.file_names().len(), 2);
    fixture
        .blobs
        .settle(ReferenceChange::new().adding(staged))
        .unwrap();
    assert!(fixture.read(id).unwrap() == content);
}

#[test]
fn node_16_corruption_is_named_and_never_read_as_content() {
    let content = content(2 * CHUNK_BYTES + 9);
    let read = |damage: &dyn Fn(&Fixture, BlobId, &[BlobId])| {
        let fixture = Fixture::new();
        let id = fixture.blobs.put(content.as_slice()).unwrap();
        damage(&fixture, id, &chunks(&content));
        let mut reader = fixture.blobs.reader(id)?;
        let mut found = Vec::new();
        while let Some(chunk) = reader.next_chunk()? {
            found.extend_from_slice(chunk);
        }
        assert!(found == content);
        Ok::<(), StoreError>(())
    };
    let put = |fixture: &Fixture, blob_id: BlobId, meta: value::BlobMeta| {
        fixture
            .store
            .clone()
            .handle()
            .put(&key::BlobMeta { blob_id }, &meta)
            .unwrap();
    };
    assert!(read(&|_, _, _| ()).is_ok());
    let flipped = read(&|fixture, _, links| {
        let path = fixture.chunk_path(links[1]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[77] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    });
    assert!(
        flipped
            .unwrap_err()
            .to_string()
            .ends_with("the file's bytes do not hash to its id")
    );
    let longer = read(&|fixture, _, links| {
        let path = fixture.chunk_path(links[2]);
        std::fs::write(
            &path,
            [std::fs::read(&path).unwrap().as_slice(), &[0; 5000]].concat(),
        )
        .unwrap();
    });
    assert!(
        longer
            .unwrap_err()
            .to_string()
            .ends_with("the file's bytes do not hash to its id")
    );
    let missing = read(&|fixture, _, links| std::fs::remove_file(fixture.chunk_path(links[0])).unwrap());
    assert!(missing.unwrap_err().to_string().ends_with("its file is missing"));
    let no_row = read(&|fixture, _, links| {
        fixture
            .store
            .clone()
            .handle()
            .delete(&key::BlobMeta { blob_id: links[0] })
            .unwrap();
    });
    assert!(no_row.unwrap_err().to_string().ends_with("a part has no row"));
    let relinked = read(&|fixture, id, links| {
        let meta = fixture.rows()[&id].clone();
        put(
            fixture,
            id,
            value::BlobMeta {
                links: vec![links[1], links[0], links[2]],
                ..meta
            },
        );
    });
    assert!(
        relinked
            .unwrap_err()
            .to_string()
            .ends_with("its links do not hash to its id")
    );
    let other_hash = read(&|fixture, id, _| {
        let meta = fixture.rows()[&id].clone();
        put(
            fixture,
            id,
            value::BlobMeta {
                hash: Hash::ZERO,
                ..meta
            },
        );
    });
    assert!(
        other_hash
            .unwrap_err()
            .to_string()
            .contains("bytes came, or other ones")
    );
    let giant = read(&|fixture, _, links| {
        let meta = fixture.rows()[&links[0]].clone();
        put(
            fixture,
            links[0],
            value::BlobMeta {
                size: 1 << 40,
                ..meta
            },
        );
    });
    assert!(
        giant
            .unwrap_err()
            .to_string()
            .contains("a chunk of 1099511627776 bytes")
    );
}

#[test]
fn node_16_nodes_of_nodes_are_walked_without_recursion_and_within_bounds() {
    let fixture = Fixture::new();
    let put = |blob_id: BlobId, links: Vec<BlobId>, content: &[u8]| {
        let meta = value::BlobMeta {
            size: content.len() as u64,
            hash: Hash::new(sha(content)),
            links,
            refs: 1,
        };
        fixture
            .store
            .clone()
            .handle()
            .put(&key::BlobMeta { blob_id }, &meta)
            .unwrap();
        blob_id
    };
    let one = fixture.blobs.put(&b"one"[..]).unwrap();
    let two = fixture.blobs.put(&b"two"[..]).unwrap();
    let pair = put(root(&[one, two]), vec![one, two], b"onetwo");
    assert_eq!(fixture.read(pair).unwrap(), b"onetwo");
    // Repeated leaves are fine; a node that comes twice is not.
    let leaf = chunks(b"one")[0];
    let twice = put(root(&[leaf, leaf]), vec![leaf, leaf], b"oneone");
    assert_eq!(fixture.read(twice).unwrap(), b"oneone");
    let doubled = put(root(&[one, one]), vec![one, one], b"oneone");
    assert!(
        fixture
            .read(doubled)
            .unwrap_err()
            .to_string()
            .ends_with("occurs twice")
    );
    let mut deep = one;
    for _ in 0..63 {
        deep = put(root(&[deep]), vec![deep], b"one");
    }
    assert_eq!(fixture.read(deep).unwrap(), b"one");
    let deeper = put(root(&[deep]), vec![deep], b"one");
    assert!(
        fixture
            .read(deeper)
            .unwrap_err()
            .to_string()
            .ends_with("more than 64 levels")
    );
    // A chunk can be asked for by its own id.
    assert_eq!(fixture.read(leaf).unwrap(), b"one");
}

#[test]
fn node_16_content_that_has_the_id_of_another_blob_is_refused() {
    // The root of a one-chunk blob is the hash of that chunk's id, so 32 bytes that are that id would be a chunk of the
    // root's address.
    let fixture = Fixture::new();
    let id = fixture.blobs.put(&b"content"[..]).unwrap();
    let rows = fixture.rows();
    let trap = *chunks(b"content")[0].as_bytes();
    let error = fixture.blobs.put(&trap[..]).unwrap_err();
    assert!(
        matches!(error, StoreError::CorruptBlob { id: found, .. } if found == id),
        "{error}"
    );
    assert_eq!(fixture.rows(), rows);
    assert_eq!(fixture.read(id).unwrap(), b"content");
}

#[test]
fn node_16_counts_stay_true_under_many_threads() {
    let fixture = Fixture::new();
    let content = content(CHUNK_BYTES + 3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    let id = fixture.blobs.put(content.as_slice()).unwrap();
                    assert!(
                        fixture.read(id).unwrap() == content,
                        "an owner can read what it owns"
                    );
                    fixture.blobs.sweep().unwrap();
                    fixture.blobs.delete(id).unwrap();
                }
            });
        }
    });
    assert!(fixture.rows().is_empty() && fixture.file_names().is_empty());
}

#[test]
fn node_16_counts_do_not_overflow() {
    let fixture = Fixture::new();
    let id = fixture.blobs.put(&b"x"[..]).unwrap();
    let meta = fixture.rows()[&id].clone();
    let full = value::BlobMeta {
        refs: u32::MAX,
        ..meta
    };
    fixture
        .store
        .clone()
        .handle()
        .put(&key::BlobMeta { blob_id: id }, &full)
        .unwrap();
    assert!(matches!(
        fixture.blobs.put(&b"x"[..]),
        Err(StoreError::BlobReferences { .. })
    ));
    assert_eq!(fixture.rows()[&id].refs, u32::MAX);
    assert_eq!(fixture.read(id).unwrap(), b"x");
}

#[test]
fn node_16_a_fault_at_any_call_of_put_and_delete_changes_nothing_or_everything() {
    let content = content(CHUNK_BYTES + 3);
    for deleting in [false, true] {
        for at in 1.. {
            let fixture = Fixture::new();
            let kept = fixture.blobs.put(&content[..CHUNK_BYTES]).unwrap();
            let id = root(&chunks(&content));
            if deleting {
                fixture.blobs.put(content.as_slice()).unwrap();
            }
            let before = fixture.rows();
            fixture.plan.fail(at);
            let outcome = match deleting {
                false => fixture.blobs.put(content.as_slice()).map(drop),
                true => fixture.blobs.delete(id),
            };
            let struck = fixture.plan.struck();
            fixture.plan.sound();
            assert_eq!(outcome.is_err(), struck, "call {at}");
            if struck {
                assert_eq!(fixture.rows(), before, "call {at}");
            }
            assert_eq!(fixture.blobs.dangling().unwrap(), []);
            assert!(fixture.read(kept).unwrap() == content[..CHUNK_BYTES]);
            fixture.blobs.sweep().unwrap();
            let files = fixture
                .rows()
                .values()
                .filter(|meta| meta.links.is_empty())
                .count();
            assert_eq!(fixture.file_names().len(), files, "call {at}");
            if !struck {
                assert!(at > 3, "only {at} calls");
                break;
            }
        }
    }
}

#[test]
fn node_16_memory_does_not_grow_with_the_blob() {
    let fixture = Fixture::new();
    let length = 64 * CHUNK_BYTES as u64;
    let mut id = BlobId::ZERO;
    let put = allocation_counter::measure(|| {
        id = fixture.blobs.put(std::io::repeat(7).take(length)).unwrap();
    });
    let mut read = 0;
    let streamed = allocation_counter::measure(|| {
        let mut reader = fixture.blobs.reader(id).unwrap();
        read = std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    });
    assert_eq!(read, length);
    for (what, peak) in [("in", put.bytes_max), ("out", streamed.bytes_max)] {
        assert!(
            peak < 4 << 20,
            "{what}: {peak} bytes at once for a blob of {length}"
        );
    }
}

#[test]
fn program_paths_lead_nowhere_else() {
    let id = BlobId::new([1; 32]);
    let path = application_blob_path("org.example.notes", "1.2.3-rc.1", id).unwrap();
    assert_eq!(
        path,
        Path::new("applications/org.example.notes/1.2.3-rc.1/blobs")
            .join(bs58::encode([1; 32]).into_string())
    );
    for bad in [
        "", ".", "..", ".hidden", "dot.", "a..b", "a/b", "a\\b", "ä", "a b", "a\0b",
    ] {
        assert!(
            matches!(
                application_blob_path(bad, "1", id),
                Err(StoreError::PathComponent { .. })
            ),
            "{bad:?}"
        );
        assert!(application_blob_path("p", bad, id).is_err(), "{bad:?}");
    }
}
