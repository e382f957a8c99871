//! Read-only databases that an operator put on disk (ENG-1431): which file stands for a database id, for this process
//! only. Whether a path may be registered is the server's to judge.

use std::path::PathBuf;

use memory_wire::ids::SpaceId;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::refusal::Refusal;

/// Sources a process keeps.
const MAX_SOURCES: usize = 4_096;

/// The registered files.
#[derive(Debug, Default)]
pub struct DiskSources {
    sources: RwLock<FxHashMap<(SpaceId, String), PathBuf>>,
}

impl DiskSources {
    /// No sources yet.
    pub fn new() -> DiskSources {
        DiskSources::default()
    }

    /// Registers a canonical absolute path; a second registration of the same id replaces the first.
    ///
    /// # Errors
    /// A refusal when a new id finds the registry full.
    pub fn register(&self, space: &SpaceId, db: &str, path: PathBuf) -> Result<(), Refusal> {
        let mut sources = self.sources.write();
        let key = (space.clone(), db.to_owned());
        if sources.len() >= MAX_SOURCES && !sources.contains_key(&key) {
            let text = format!("disk-source registry is full (max {MAX_SOURCES} sources)");
            return Err(Refusal::SqlitePreparation(text));
        }
        sources.insert(key, path);
        Ok(())
    }

    /// The file behind a database id.
    pub fn get(&self, space: &SpaceId, db: &str) -> Option<PathBuf> {
        self.sources.read().get(&(space.clone(), db.to_owned())).cloned()
    }
}
