//! One blob of 1 GiB in and out, in a process that does nothing else, and the most memory it had at once. Rule: NODE-16.
//!
//! `cargo bench -p node-store --bench blob`; `NODE_STORE_BLOB_MIB` takes another size.

use std::io::Read;
use std::time::Instant;

use node_store::{BlobStore, Store};

/// The bound of the rule.
const LIMIT_KIB: u64 = 32 << 10;

/// Bytes that repeat nowhere within a chunk, so that no two chunks are one.
struct Counting(u64);

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        for word in buffer.chunks_mut(8) {
            let bytes = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
            self.0 += 1;
        }
        Ok(buffer.len())
    }
}

/// The most resident memory this process had, KiB; none where the system does not say.
fn peak_resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn main() {
    let mib: u64 = std::env::var("NODE_STORE_BLOB_MIB")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1024);
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("node.sqlite")).unwrap();
    let blobs = BlobStore::open(store, directory.path().join("blobs")).unwrap();
    let start = Instant::now();
    let id = blobs.put(Counting(0).take(mib << 20)).unwrap();
    let put = start.elapsed();
    let start = Instant::now();
    let read = std::io::copy(&mut blobs.reader(id).unwrap(), &mut std::io::sink()).unwrap();
    let get = start.elapsed();
    assert_eq!(read, mib << 20);
    println!("{mib} MiB in {put:?}, out {get:?}");
    if let Some(peak) = peak_resident_kib() {
        println!("most resident memory {} MiB", peak >> 10);
        assert!(
            peak < LIMIT_KIB,
            "{peak} KiB at once; at most {LIMIT_KIB} are allowed"
        );
    }
}
