//! Chunk files: one a chunk, named by the base58 of its id, written under another name and renamed. Facts: §10.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::StoreError;
use crate::id::BlobId;

const UNFINISHED: &str = ".unfinished-";

pub(super) struct ChunkFiles {
    directory: PathBuf,
    unfinished: AtomicU64,
}

/// A name found in the directory.
pub(super) enum Found {
    Chunk(BlobId),
    Unfinished,
    Foreign,
}

impl ChunkFiles {
    pub(super) fn open(directory: PathBuf, create: bool) -> Result<Self, StoreError> {
        if create {
            fs::create_dir_all(&directory)
                .map_err(|cause| StoreError::file(&directory, "create directory", cause))?;
        }
        Ok(ChunkFiles {
            directory,
            unfinished: AtomicU64::new(0),
        })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, chunk: BlobId) -> PathBuf {
        self.directory.join(bs58::encode(chunk.as_bytes()).into_string())
    }

    /// Writes a chunk whole or not at all, and on disk when it returns. A file of that name is replaced, which heals it.
    pub(super) fn write(&self, chunk: BlobId, bytes: &[u8]) -> Result<(), StoreError> {
        let number = self.unfinished.fetch_add(1, Ordering::Relaxed);
        let unfinished = self
            .directory
            .join(format!("{UNFINISHED}{}-{number}", std::process::id()));
        let written = (|| {
            let mut file = File::create(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_data()?;
            fs::rename(&unfinished, self.path(chunk))
        })();
        written.map_err(|cause| {
            // Best effort: what stays is found by the sweep.
            let _ = fs::remove_file(&unfinished);
            match cause.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full {
                    backend: "blob files",
                    operation: "write chunk",
                },
                _ => StoreError::file(self.path(chunk), "write chunk", cause),
            }
        })
    }

    /// Makes the names of all files written so far survive a power cut.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|cause| StoreError::file(&self.directory, "sync directory", cause))
    }

    /// Reads a chunk of a known size into `bytes`; none if there is no file.
    pub(super) fn read(
        &self,
        chunk: BlobId,
        size: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<()>, StoreError> {
        let path = self.path(chunk);
        bytes.clear();
        let read = (|| {
            // One byte more than expected, so that a longer file is seen as one and is not read whole.
            File::open(&path)?.take(size as u64 + 1).read_to_end(bytes)
        })();
        match read {
            Ok(_) => Ok(Some(())),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(StoreError::file(path, "read chunk", cause)),
        }
    }

    pub(super) fn exists(&self, chunk: BlobId) -> bool {
        self.path(chunk).is_file()
    }

    /// Removes a chunk's file; an absent one is no error.
    pub(super) fn remove(&self, chunk: BlobId) -> Result<(), StoreError> {
        remove(&self.path(chunk))
    }

    /// Every name in the directory, with its size.
    pub(super) fn list(&self) -> Result<Vec<(PathBuf, u64, Found)>, StoreError> {
        let failed = |cause| StoreError::file(&self.directory, "list directory", cause);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let size = entry.metadata().map_or(0, |file| file.len());
            found.push((
                entry.path(),
                size,
                recognise(&entry.file_name().to_string_lossy()),
            ));
        }
        Ok(found)
    }
}

pub(super) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => {
            Err(StoreError::file(path, "remove file", cause))
        }
        _ => Ok(()),
    }
}

fn recognise(name: &str) -> Found {
    if name.starts_with(UNFINISHED) {
        return Found::Unfinished;
    }
    let mut id = [0; 32];
    match bs58::decode(name).onto(&mut id) {
        Ok(32) => Found::Chunk(BlobId::new(id)),
        _ => Found::Foreign,
    }
}

/// Where a program's blob lies below a directory of programs: `applications/<package>/<version>/blobs/<id>`. Package and
/// version must be path components that lead nowhere else.
pub fn application_blob_path(package: &str, version: &str, blob: BlobId) -> Result<PathBuf, StoreError> {
    let component = |field: &'static str, text: &str| {
        let sound = !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
            && !text.starts_with('.')
            && !text.ends_with('.')
            && !text.contains("..");
        if sound {
            Ok(())
        } else {
            Err(StoreError::PathComponent {
                field,
                found: text.to_owned(),
            })
        }
    };
    component("package", package)?;
    component("version", version)?;
    let name = bs58::encode(blob.as_bytes()).into_string();
    Ok(PathBuf::from("applications")
        .join(package)
        .join(version)
        .join("blobs")
        .join(name))
}
