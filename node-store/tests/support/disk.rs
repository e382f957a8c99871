//! Stores that outlive a process: one a directory, by the name of its backend.

use std::path::Path;
use std::sync::Arc;

use node_store::backend::sqlite::SqliteBackend;
use node_store::{Database, Durability, SqliteOptions, StoreError};

/// The backends that write to disk.
pub(crate) const BACKENDS: &[&str] = if cfg!(feature = "rocksdb") {
    &["sqlite", "rocksdb"]
} else {
    &["sqlite"]
};

/// Opens the store of a directory. Durability against power cuts is not under test where processes die, and costs a sync a
/// write.
pub(crate) fn open(backend: &str, directory: &Path) -> Result<Arc<dyn Database>, StoreError> {
    match backend {
        "sqlite" => {
            let options = SqliteOptions {
                durability: Durability::Process,
                ..Default::default()
            };
            Ok(Arc::new(SqliteBackend::open(
                directory.join("node.sqlite"),
                &options,
            )?))
        }
        #[cfg(feature = "rocksdb")]
        "rocksdb" => {
            use node_store::backend::rocksdb::RocksBackend;
            Ok(Arc::new(RocksBackend::open(
                directory.join("data"),
                Durability::Process,
            )?))
        }
        other => panic!("unknown backend {other}"),
    }
}

/// Copies a directory with everything in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}
