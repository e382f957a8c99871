//! What several test files share.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod behaviour;
mod behaviour_files;
pub(crate) mod disk;
pub(crate) mod faults;
pub(crate) mod model;
pub(crate) mod process;
pub(crate) mod seeds;
pub(crate) mod vectors;

use node_store::backend::memory::MemoryBackend;
use node_store::backend::sqlite::SqliteBackend;
use node_store::key::{Fragment, GenericScope};
use node_store::{Column, Encrypted, Key, MasterKey, Store, key};

/// A temporary store file; the directory goes with the process's temp dir.
pub(crate) fn sqlite() -> SqliteBackend {
    let directory = tempfile::tempdir().unwrap().keep();
    // Durability against power cuts is not under test here and costs a sync a write.
    let options = node_store::SqliteOptions {
        durability: node_store::Durability::Process,
        ..Default::default()
    };
    SqliteBackend::open(directory.join("node.sqlite"), &options).unwrap()
}

pub(crate) fn master_key() -> MasterKey {
    MasterKey::new(vec![7; 32]).unwrap()
}

/// One empty store of every backend, bare and encrypted.
pub(crate) fn stores() -> Vec<(&'static str, Store)> {
    #[allow(unused_mut)]
    let mut stores = vec![
        ("memory", Store::memory()),
        ("sqlite", Store::new(sqlite())),
        (
            "encrypted memory",
            Store::new(Encrypted::new(MemoryBackend::new(), master_key()).unwrap()),
        ),
        (
            "encrypted sqlite",
            Store::new(Encrypted::new(sqlite(), master_key()).unwrap()),
        ),
    ];
    #[cfg(feature = "rocksdb")]
    {
        stores.push(("rocksdb", Store::new(rocks())));
        stores.push((
            "encrypted rocksdb",
            Store::new(Encrypted::new(rocks(), master_key()).unwrap()),
        ));
    }
    stores
}

#[cfg(feature = "rocksdb")]
pub(crate) fn rocks() -> node_store::backend::rocksdb::RocksBackend {
    let directory = tempfile::tempdir().unwrap().keep();
    node_store::backend::rocksdb::RocksBackend::open(directory, node_store::Durability::Process).unwrap()
}

/// The row that an encrypted store keeps for itself.
pub(crate) fn is_key_version(column: Column, key: &[u8]) -> bool {
    let row = key::Generic {
        scope: GenericScope::KEY_VERSION,
        fragment: Fragment::ONLY,
    };
    column == Column::Generic && key == row.to_bytes().as_slice()
}
