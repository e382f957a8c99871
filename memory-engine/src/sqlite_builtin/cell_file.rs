//! Where a cell database lies and what it is called while attached (ENG-1401, 1403).

use std::path::{Path, PathBuf};

use memory_wire::ids::SpaceId;
use memory_wire::scope_key::{Scope, ScopeKey};

use crate::store_path::StoreLocation;

/// A short file-name token: FNV-1a over the UTF-16 code units, and how many there are.
pub fn token(text: &str) -> String {
    let (mut hash, mut units) = (0x811c_9dc5_u32, 0usize);
    for unit in text.encode_utf16() {
        hash = (hash ^ u32::from(unit)).wrapping_mul(0x0100_0193);
        units += 1;
    }
    format!("{hash:08x}{units:x}")
}

/// The file name of a database instance.
pub fn file_name(space: &SpaceId, db: &str, scope_key: &ScopeKey) -> String {
    let instance = match scope_key.scope() {
        Scope::Space => String::new(),
        Scope::User | Scope::Session => format!("-{}", token(scope_key.as_str())),
    };
    format!("cell-{}-{}{instance}.sqlite", token(space.as_str()), token(db))
}

/// The file of a database instance: beside the store, or in the temporary directory for a store in memory.
pub fn path(store: &StoreLocation, space: &SpaceId, db: &str, scope_key: &ScopeKey) -> PathBuf {
    let name = file_name(space, db, scope_key);
    match store {
        StoreLocation::File(store) => store.parent().unwrap_or(Path::new(".")).join(name),
        StoreLocation::Memory => std::env::temp_dir().join(format!("cf-{name}")),
    }
}

/// The name a database is attached under.
pub fn alias(db: &str) -> String {
    let plain = db
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    format!("cf_{}", plain.collect::<String>())
}

/// True for the name of a cell database's file, whichever space it belongs to.
pub fn is_cell_file_name(name: &str) -> bool {
    name.strip_prefix("cf-").unwrap_or(name).starts_with("cell-") && name.ends_with(".sqlite")
}
