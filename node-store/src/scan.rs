//! Typed scans: the rows of one family out of a cursor. Rules: NODE-6, NODE-7, NODE-24.

use std::marker::PhantomData;

use crate::cursor::Cursor;
use crate::error::StoreError;
use crate::handle::{Read, decode};
use crate::key::{Key, looks_like};

/// The rows of a family. Rows of another width that share the column are passed over.
///
/// As an iterator it decodes: a row that does not decode yields its error and the scan goes on; a read error of the
/// backend yields once and ends it. [`next_raw`](Scan::next_raw) borrows instead and allocates nothing a row.
pub struct Scan<'a, K> {
    cursor: Cursor<'a>,
    ended: bool,
    family: PhantomData<fn() -> K>,
}

impl<'a, K: Key> Scan<'a, K> {
    pub(crate) fn new(cursor: Cursor<'a>) -> Self {
        Scan {
            cursor,
            ended: false,
            family: PhantomData,
        }
    }

    /// The next row's key and the bytes of its value, borrowed until the next call.
    pub fn next_raw(&mut self) -> Result<Option<(K, &[u8])>, StoreError> {
        loop {
            match self.cursor.next() {
                Ok(Some(row)) if looks_like::<K>(row.key) => break,
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.ended = true;
                    return Ok(None);
                }
                Err(error) => {
                    self.ended = true;
                    return Err(error);
                }
            }
        }
        // Asked for again because a borrow may not leave the loop that took it.
        match self.cursor.row() {
            Some(row) => Ok(Some((K::parse(row.key)?, row.value))),
            None => Ok(None),
        }
    }

    /// Jumps to the first row at or beyond a key, in the scan's direction, and goes on after it.
    pub fn seek(&mut self, key: &K) -> Result<Option<(K, Read<K>)>, StoreError> {
        let found = match self.cursor.seek(&key.to_bytes())? {
            Some(row) if looks_like::<K>(row.key) => {
                Some((K::parse(row.key)?, decode::<K>(row.key, row.value)?))
            }
            Some(_) => None,
            None => return Ok(None),
        };
        self.ended = false;
        match found {
            Some(row) => Ok(Some(row)),
            None => self.next().transpose(),
        }
    }
}

impl<K: Key> Iterator for Scan<'_, K> {
    type Item = Result<(K, Read<K>), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        self.next_raw()
            .and_then(|row| {
                row.map(|(key, value)| Ok((key.clone(), decode::<K>(&key.to_bytes(), value)?)))
                    .transpose()
            })
            .transpose()
    }
}
