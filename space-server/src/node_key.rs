//! The key a process acts with: its DID is the audience of session opens and the service half of the lease holder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use memory_wire::identity::{IdentityError, Signer};
use thiserror::Error;

use crate::configuration::IdentitySource;

/// File of the node's own key, in the data directory.
const KEY_FILE: &str = "identity.pem";

/// The key that ships with the reference: anybody can be it.
const WELL_KNOWN_PASSPHRASE: &str = "implicit trust";

/// Why there is no key.
#[derive(Debug, Error)]
pub enum NodeKeyError {
    /// The file cannot be read or written.
    #[error("key file {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file holds no Ed25519 key.
    #[error("key file {path}: {source}")]
    Key {
        /// Which.
        path: PathBuf,
        /// Why.
        source: IdentityError,
    },
    /// The system gives no random numbers.
    #[error("no randomness for a new key: {0}")]
    Randomness(getrandom::Error),
}

/// The key of `source`; made and kept when the data directory has none.
pub fn load(source: &IdentitySource, data: &Path, development: bool) -> Result<Signer, NodeKeyError> {
    match source {
        IdentitySource::File(path) => read(path),
        IdentitySource::Passphrase(passphrase) => {
            if passphrase == WELL_KNOWN_PASSPHRASE && !development {
                tracing::warn!(
                    "IDENTITY_PASSPHRASE is the one everybody knows: anybody can act as this server"
                );
            }
            Ok(Signer::from_passphrase(passphrase))
        }
        IdentitySource::DataDirectory => own(&data.join(KEY_FILE)),
    }
}

/// The key kept at `path`, made there if absent. Never overwrites a file.
pub fn own(path: &Path) -> Result<Signer, NodeKeyError> {
    match path.try_exists() {
        Ok(true) => read(path),
        Ok(false) => make(path),
        Err(source) => Err(NodeKeyError::File {
            path: path.to_owned(),
            source,
        }),
    }
}

fn read(path: &Path) -> Result<Signer, NodeKeyError> {
    let text = fs::read_to_string(path).map_err(|source| NodeKeyError::File {
        path: path.to_owned(),
        source,
    })?;
    Signer::from_pem(&text).map_err(|source| NodeKeyError::Key {
        path: path.to_owned(),
        source,
    })
}

fn make(path: &Path) -> Result<Signer, NodeKeyError> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(NodeKeyError::Randomness)?;
    let signer = Signer::from_seed(seed);
    let written = (|| {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut file = private_file(path)?;
        file.write_all(signer.to_pem().as_bytes())?;
        file.sync_all()
    })();
    written.map_err(|source| NodeKeyError::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(signer)
}

#[cfg(unix)]
fn private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

#[cfg(not(unix))]
fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = load(&IdentitySource::DataDirectory, dir.path(), false).unwrap();
        let again = load(&IdentitySource::DataDirectory, dir.path(), false).unwrap();
        assert_eq!(first.did(), again.did());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(dir.path().join(KEY_FILE))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_broken_key_file_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KEY_FILE);
        fs::write(&path, "not a key").unwrap();
        let error = load(&IdentitySource::DataDirectory, dir.path(), false).unwrap_err();
        assert!(error.to_string().contains("identity.pem"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "not a key");
    }
}
