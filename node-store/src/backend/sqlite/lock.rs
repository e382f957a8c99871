//! The lock beside a store's file: one process at a time writes (NODE-20).

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::StoreError;

/// Held as long as the store is open for writing.
#[derive(Debug)]
pub(super) struct WriterLock(File);

impl WriterLock {
    /// # Errors
    /// [`StoreError::Locked`] while somebody else holds it.
    pub(super) fn take(path: &Path) -> Result<WriterLock, StoreError> {
        let mut lock_path = path.to_owned().into_os_string();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|cause| StoreError::file(&lock_path, "open lock file", cause))?;
        match file.try_lock() {
            Ok(()) => Ok(WriterLock(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked {
                path: path.to_owned(),
            }),
            Err(TryLockError::Error(cause)) => Err(StoreError::file(lock_path, "lock", cause)),
        }
    }
}

impl Drop for WriterLock {
    /// Closing the file is not enough: a process that another thread is just starting has it open too, until it has become
    /// another program, and the lock would be held as long.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a store's lock is left to the end of the process");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_20_a_lock_that_is_given_back_can_be_taken_though_a_starting_process_has_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sqlite");
        let lock = WriterLock::take(&path).unwrap();
        // What a process has between its start and its own program.
        let inherited = lock.0.try_clone().unwrap();
        assert!(matches!(WriterLock::take(&path), Err(StoreError::Locked { .. })));
        drop(lock);
        WriterLock::take(&path).unwrap();
        drop(inherited);
    }
}
