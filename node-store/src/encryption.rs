//! At-rest encryption around any backend: keys stay plain, values become `version ‖ nonce ‖ ciphertext ‖ tag`.
//!
//! The key version in force is a row of the store itself, so a restart goes on with it. Rule: NODE-17; facts: §9.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use parking_lot::Mutex;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::backend::{Database, Durability, ReadView};
use crate::column::{Column, ColumnSet};
use crate::cursor::{Row, RowCursor};
use crate::error::{Hex, StoreError};
use crate::key::{self, Direction, Fragment, GenericScope, Key, KeyRange};
use crate::store::OwnedRow;
use crate::transaction::{Op, Transaction};

const NONCE: usize = 12;
const TAG: usize = 16;
const HEADER: usize = 1 + NONCE;

/// The key that all data keys derive from: at least 32 bytes, wiped when dropped.
pub struct MasterKey(Zeroizing<Vec<u8>>);

impl MasterKey {
    /// Takes the key; a shorter one is refused rather than stretched.
    pub fn new(bytes: Vec<u8>) -> Result<Self, StoreError> {
        let bytes = Zeroizing::new(bytes);
        if bytes.len() < 32 {
            Err(StoreError::MasterKeyTooShort { length: bytes.len() })
        } else {
            Ok(MasterKey(bytes))
        }
    }

    fn cipher(&self, version: u8) -> Aes256Gcm {
        let salt = format!("calimero-dek-v{version}");
        let mut key = Zeroizing::new([0; 32]);
        hkdf::Hkdf::<Sha256>::new(Some(salt.as_bytes()), &self.0)
            .expand(b"encryption", key.as_mut_slice())
            .expect("32 bytes are a valid HKDF-SHA256 length");
        let key: &[u8; 32] = &key;
        Aes256Gcm::new(key.into())
    }
}

/// Data keys by version, derived when first needed. Version 0 is never written but is read like any other.
struct Keys {
    master: MasterKey,
    ciphers: Box<[OnceLock<Aes256Gcm>; 256]>,
}

impl Keys {
    fn cipher(&self, version: u8) -> &Aes256Gcm {
        self.ciphers[usize::from(version)].get_or_init(|| self.master.cipher(version))
    }

    fn seal(&self, version: u8, nonce: [u8; NONCE], plain: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut stored = Vec::with_capacity(HEADER + plain.len() + TAG);
        stored.push(version);
        stored.extend_from_slice(&nonce);
        stored.extend_from_slice(plain);
        let (header, body) = stored.split_at_mut(HEADER);
        let tag = self
            .cipher(version)
            .encrypt_inout_detached(&Nonce::from(nonce), header, body.into())
            .map_err(|_| StoreError::backend("encryption", "encrypt", "the value is too long"))?;
        stored.extend_from_slice(&tag);
        Ok(stored)
    }

    /// Refuses a store whose values this key does not open. The reference implementation keeps no version row, and a key
    /// that is wrong must not be made the right one by writing such a row with it.
    fn require_first_row_opens(&self, store: &impl Database) -> Result<(), StoreError> {
        for column in store.columns().iter() {
            let mut rows = store.cursor(column, &KeyRange::all(), Direction::Ascending)?;
            rows.advance()?;
            if let Some(row) = rows.row() {
                return self.open(column, row.key, row.value, &mut Vec::new());
            }
        }
        Ok(())
    }

    /// Decrypts into `plain`, whose old content goes.
    fn open(&self, column: Column, key: &[u8], stored: &[u8], plain: &mut Vec<u8>) -> Result<(), StoreError> {
        let refuse = |reason: String| StoreError::Ciphertext {
            column,
            key: Hex(key.to_vec()),
            reason,
        };
        plain.clear();
        let Some((header, rest)) = stored
            .split_at_checked(HEADER)
            .filter(|(_, rest)| rest.len() >= TAG)
        else {
            return Err(refuse(format!(
                "has {} bytes; expected at least {}",
                stored.len(),
                HEADER + TAG
            )));
        };
        let (body, tag) = rest.split_at(rest.len() - TAG);
        let (version, nonce) = (header[0], &header[1..]);
        let broken = || refuse(format!("does not open with key version {version}"));
        let nonce: &[u8; NONCE] = nonce.try_into().map_err(|_| broken())?;
        let tag: &[u8; TAG] = tag.try_into().map_err(|_| broken())?;
        plain.extend_from_slice(body);
        let opened = self.cipher(version).decrypt_inout_detached(
            &Nonce::from(*nonce),
            header,
            plain.as_mut_slice().into(),
            &Tag::from(*tag),
        );
        opened.map_err(|_| {
            plain.clear();
            broken()
        })
    }
}

/// Encrypts every value on its way into `D`. Blobs' bytes lie beside the store and are not touched.
pub struct Encrypted<D> {
    inner: D,
    keys: Keys,
    version: AtomicU8,
    /// One rotation at a time.
    rotating: Mutex<()>,
}

fn version_row() -> key::Generic {
    key::Generic {
        scope: GenericScope::KEY_VERSION,
        fragment: Fragment::ONLY,
    }
}

impl<D: Database> Encrypted<D> {
    /// Wraps an opened backend. The version in force is read from it, and written to one that has none, so that a wrong
    /// master key is found here: by that row, or where there is none yet by the first row there is. A store with plain
    /// values is refused for the same reason; one that is opened again is only read.
    pub fn new(inner: D, master: MasterKey) -> Result<Self, StoreError> {
        let keys = Keys {
            master,
            ciphers: Box::new([const { OnceLock::new() }; 256]),
        };
        let row = version_row().to_bytes();
        let version = match inner.get(Column::Generic, &row)? {
            Some(stored) => {
                let mut plain = Vec::new();
                keys.open(Column::Generic, &row, &stored, &mut plain)?;
                match *plain {
                    [version] if version > 0 => version,
                    _ => {
                        let reason = "is no key version".into();
                        return Err(StoreError::Ciphertext {
                            column: Column::Generic,
                            key: Hex(row.to_vec()),
                            reason,
                        });
                    }
                }
            }
            None => {
                keys.require_first_row_opens(&inner)?;
                let first = keys.seal(1, random_nonce()?, &[1])?;
                match inner.put(Column::Generic, &row, &first) {
                    Ok(()) | Err(StoreError::ReadOnly { .. }) => 1,
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(Encrypted {
            inner,
            keys,
            version: AtomicU8::new(version),
            rotating: Mutex::new(()),
        })
    }

    /// The version that values are written under now.
    pub fn key_version(&self) -> u8 {
        self.version.load(Ordering::Acquire)
    }

    /// Goes to the next version: later writes use it, also after a restart; what is stored stays as it is.
    pub fn rotate(&self) -> Result<u8, StoreError> {
        let _one = self.rotating.lock();
        let next = self
            .key_version()
            .checked_add(1)
            .ok_or(StoreError::KeyVersionsExhausted)?;
        self.store_version(next)?;
        self.version.store(next, Ordering::Release);
        Ok(next)
    }

    fn store_version(&self, version: u8) -> Result<(), StoreError> {
        let stored = self.keys.seal(version, random_nonce()?, &[version])?;
        self.inner
            .put(Column::Generic, &version_row().to_bytes(), &stored)
    }

    fn seal(&self, plain: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.keys.seal(self.key_version(), random_nonce()?, plain)
    }
}

fn random_nonce() -> Result<[u8; NONCE], StoreError> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|error| StoreError::Randomness(error.to_string()))?;
    Ok(nonce)
}

struct DecryptingCursor<'v> {
    inner: Box<dyn RowCursor + 'v>,
    keys: &'v Keys,
    column: Column,
    plain: Vec<u8>,
    /// Whether `plain` is the value of the row that `inner` stands on.
    standing: bool,
}

impl DecryptingCursor<'_> {
    fn moved(&mut self, found: bool) -> Result<bool, StoreError> {
        self.standing = false;
        if found && let Some(row) = self.inner.row() {
            self.keys.open(self.column, row.key, row.value, &mut self.plain)?;
            self.standing = true;
        }
        Ok(self.standing)
    }
}

impl RowCursor for DecryptingCursor<'_> {
    fn advance(&mut self) -> Result<bool, StoreError> {
        let found = self.inner.advance()?;
        self.moved(found)
    }

    fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        let found = self.inner.seek(target)?;
        self.moved(found)
    }

    fn row(&self) -> Option<Row<'_>> {
        let row = self.inner.row().filter(|_| self.standing)?;
        Some(Row {
            key: row.key,
            value: &self.plain,
        })
    }
}

fn get(
    view: &(impl ReadView + ?Sized),
    keys: &Keys,
    column: Column,
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(stored) = view.get(column, key)? else {
        return Ok(None);
    };
    let mut plain = Vec::new();
    keys.open(column, key, &stored, &mut plain)?;
    Ok(Some(plain))
}

fn cursor<'v>(inner: Box<dyn RowCursor + 'v>, keys: &'v Keys, column: Column) -> Box<dyn RowCursor + 'v> {
    Box::new(DecryptingCursor {
        inner,
        keys,
        column,
        plain: Vec::new(),
        standing: false,
    })
}

struct DecryptingView<'v> {
    inner: Box<dyn ReadView + 'v>,
    keys: &'v Keys,
}

impl ReadView for DecryptingView<'_> {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.inner.has(column, key)
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        get(self.inner.as_ref(), self.keys, column, key)
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        Ok(cursor(
            self.inner.cursor(column, range, direction)?,
            self.keys,
            column,
        ))
    }
}

impl<D: Database> ReadView for Encrypted<D> {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.inner.has(column, key)
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        get(&self.inner, &self.keys, column, key)
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        Ok(cursor(
            self.inner.cursor(column, range, direction)?,
            &self.keys,
            column,
        ))
    }
}

impl<D: Database> Database for Encrypted<D> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn columns(&self) -> ColumnSet {
        self.inner.columns()
    }

    fn unknown_columns(&self) -> &[String] {
        self.inner.unknown_columns()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn put(&self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.inner.put(column, key, &self.seal(value)?)
    }

    fn delete(&self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        self.inner.delete(column, key)
    }

    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError> {
        let mut sealed = Transaction::new();
        for (column, key, op) in transaction.iter() {
            match op {
                Op::Put(value) => sealed.put(column, key, self.seal(value)?),
                Op::Delete => sealed.delete(column, key),
            }
        }
        self.inner.apply(&sealed)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.inner.flush()
    }

    fn snapshot(&self) -> Result<Box<dyn ReadView + '_>, StoreError> {
        Ok(Box::new(DecryptingView {
            inner: self.inner.snapshot()?,
            keys: &self.keys,
        }))
    }

    fn last_in_range(&self, column: Column, range: &KeyRange) -> Result<Option<OwnedRow>, StoreError> {
        let Some((key, stored)) = self.inner.last_in_range(column, range)? else {
            return Ok(None);
        };
        let mut plain = Vec::new();
        self.keys.open(column, &key, &stored, &mut plain)?;
        Ok(Some((key, plain)))
    }

    fn delete_range(&self, column: Column, range: &KeyRange) -> Result<(), StoreError> {
        self.inner.delete_range(column, range)
    }

    /// Of what is stored, 29 bytes a row more than the plain values.
    fn approximate_size(&self, column: Column, range: &KeyRange) -> Result<u64, StoreError> {
        self.inner.approximate_size(column, range)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::memory::MemoryBackend;

    fn master(byte: u8) -> MasterKey {
        MasterKey::new(vec![byte; 48]).unwrap()
    }

    #[test]
    fn node_17_the_rotated_version_survives_a_restart_and_old_values_open() {
        let disk = Arc::new(MemoryBackend::new());
        let store = Encrypted::new(disk.clone(), master(1)).unwrap();
        store.put(Column::State, b"a", b"one").unwrap();
        assert_eq!(store.rotate().unwrap(), 2);
        store.put(Column::State, b"b", b"two").unwrap();
        drop(store);
        assert_eq!(disk.get(Column::State, b"a").unwrap().unwrap()[0], 1);
        assert_eq!(disk.get(Column::State, b"b").unwrap().unwrap()[0], 2);

        let store = Encrypted::new(disk.clone(), master(1)).unwrap();
        assert_eq!(store.key_version(), 2);
        store.put(Column::State, b"c", b"three").unwrap();
        assert_eq!(disk.get(Column::State, b"c").unwrap().unwrap()[0], 2);
        assert_eq!(store.get(Column::State, b"a").unwrap().unwrap(), b"one");
        assert_eq!(store.get(Column::State, b"b").unwrap().unwrap(), b"two");

        let error = Encrypted::new(disk, master(2))
            .err()
            .expect("a wrong master key is found at once");
        assert!(
            error.to_string().ends_with("does not open with key version 2"),
            "{error}"
        );
    }

    #[test]
    fn node_17_versions_end_at_255() {
        let store = Encrypted::new(MemoryBackend::new(), master(1)).unwrap();
        for version in 2..=255 {
            assert_eq!(store.rotate().unwrap(), version);
        }
        assert!(matches!(store.rotate(), Err(StoreError::KeyVersionsExhausted)));
        assert_eq!(store.key_version(), 255);
    }

    #[test]
    fn node_17_every_bit_is_authenticated() {
        let disk = Arc::new(MemoryBackend::new());
        let store = Encrypted::new(disk.clone(), master(1)).unwrap();
        store.put(Column::State, b"a", b"one").unwrap();
        let sealed = disk.get(Column::State, b"a").unwrap().unwrap();
        assert_eq!(sealed.len(), 29 + 3);
        for bit in 0..sealed.len() * 8 {
            let mut broken = sealed.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            disk.put(Column::State, b"a", &broken).unwrap();
            assert!(
                matches!(store.get(Column::State, b"a"), Err(StoreError::Ciphertext { .. })),
                "bit {bit}"
            );
        }
        for length in 0..29 {
            disk.put(Column::State, b"a", &sealed[..length]).unwrap();
            assert!(store.get(Column::State, b"a").is_err(), "{length} bytes");
        }
    }
}
