//! Plain objects (WIRE-301): entries in the one canonical order of keys (WIRE-303), shared until changed.

use std::sync::Arc;

use super::Value;
use crate::js_string::JsString;

/// An object key or property name.
pub type Key = JsString;

/// A plain object: entries in canonical key order (WIRE-303: array-index keys first, numerically, then the
/// rest in WTF-8 byte order), each key at most once.
#[derive(Clone, Debug, Default)]
pub struct Object(Arc<Vec<(Key, Value)>>);

impl Object {
    /// An object without keys.
    pub fn new() -> Object {
        Object::default()
    }

    /// Builds an object from entries in any order; of equal keys the last wins (WIRE-304).
    pub fn from_entries(mut entries: Vec<(Key, Value)>) -> Object {
        if !entries.windows(2).all(|w| key_order(&w[0].0, &w[1].0).is_lt()) {
            // Stable sort keeps arrival order among equal keys, so the last of a run is the winner.
            entries.sort_by(|a, b| key_order(&a.0, &b.0));
            let mut unique: Vec<(Key, Value)> = Vec::with_capacity(entries.len());
            for entry in entries {
                match unique.last_mut() {
                    Some(last) if last.0 == entry.0 => *last = entry,
                    _ => unique.push(entry),
                }
            }
            entries = unique;
        }
        Object(Arc::new(entries))
    }

    /// Entries in canonical order.
    pub fn entries(&self) -> &[(Key, Value)] {
        &self.0
    }

    /// Entries in canonical order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Key, &Value)> + '_ {
        self.0.iter().map(|(k, v)| (k, v))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value under `key`; a key holding `undefined` is `Some(&Value::Undefined)`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.position(key.as_bytes()).ok().map(|i| &self.0[i].1)
    }

    /// [`Object::get`] for a key that may hold unpaired surrogates.
    pub fn get_key(&self, key: &Key) -> Option<&Value> {
        self.position(key.as_bytes()).ok().map(|i| &self.0[i].1)
    }

    /// True when the key is present, whatever it holds.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets a key, copying the entry list only when it is shared. Returns the previous value.
    pub fn insert(&mut self, key: impl Into<Key>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        let at = self.position(key.as_bytes());
        let entries = Arc::make_mut(&mut self.0);
        match at {
            Ok(i) => Some(std::mem::replace(&mut entries[i].1, value)),
            Err(i) => {
                entries.insert(i, (key, value));
                None
            }
        }
    }

    /// Removes a key. Returns what it held.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.position(key.as_bytes()).ok()?;
        Some(Arc::make_mut(&mut self.0).remove(at).1)
    }

    /// Mutable access to the value under `key`, un-sharing this object first.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        let at = self.position(key.as_bytes()).ok()?;
        Some(&mut Arc::make_mut(&mut self.0)[at].1)
    }

    /// Where the entries live: equal for two handles exactly when [`Object::ptr_eq`], as long as one of them is
    /// kept. A key for caches that hold the object they are keyed by, and for nothing else.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// True when both handles share one allocation (so they are equal without looking).
    pub fn ptr_eq(&self, other: &Object) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn position(&self, key: &[u8]) -> Result<usize, usize> {
        let rank = index_rank(key);
        self.0
            .binary_search_by(|(k, _)| ranked_order(index_rank(k.as_bytes()), k.as_bytes(), rank, key))
    }
}

impl<K: Into<Key>, V: Into<Value>> FromIterator<(K, V)> for Object {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        Object::from_entries(iter.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

/// Canonical order of object keys (WIRE-303).
pub fn key_order(a: &Key, b: &Key) -> std::cmp::Ordering {
    ranked_order(
        index_rank(a.as_bytes()),
        a.as_bytes(),
        index_rank(b.as_bytes()),
        b.as_bytes(),
    )
}

fn ranked_order(ra: Option<u32>, a: &[u8], rb: Option<u32>, b: &[u8]) -> std::cmp::Ordering {
    match (ra, rb) {
        (Some(x), Some(y)) => x.cmp(&y),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// The number a key denotes when it is a canonical array index (0 … 2³²−2 without leading zeros).
pub fn index_rank(key: &[u8]) -> Option<u32> {
    match key {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] if key.len() <= 10 => {
            let mut n: u64 = 0;
            for &digit in key {
                if !digit.is_ascii_digit() {
                    return None;
                }
                n = n * 10 + u64::from(digit - b'0');
            }
            u32::try_from(n).ok().filter(|&n| n < u32::MAX)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_303_index_keys_come_first() {
        let keys = ["4294967295", "a", "01", "-1", "10", "9", "4294967294", "0"];
        let object: Object = keys.iter().map(|k| (*k, 1)).collect();
        let order: Vec<String> = object.iter().map(|(k, _)| k.to_string()).collect();
        assert_eq!(
            order,
            ["0", "9", "10", "4294967294", "-1", "01", "4294967295", "a"]
        );
        assert!(keys.iter().all(|k| object.contains_key(k)));
    }

    #[test]
    fn wire_304_last_duplicate_wins() {
        let object = Object::from_entries(vec![
            ("b".into(), 1.into()),
            ("a".into(), 2.into()),
            ("b".into(), 3.into()),
        ]);
        assert_eq!(object.get("b").and_then(Value::as_f64), Some(3.0));
        assert_eq!(object.len(), 2);
    }
}
