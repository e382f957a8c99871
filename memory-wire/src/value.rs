//! The value model (WIRE-301): immutable values that clone in O(1) and share structure.
//!
//! A [`Value`] is what documents, patches and message bodies are made of. Containers are reference-counted;
//! changing one copies only the containers on the way to the change (`Object::insert` and friends mutate in
//! place when nobody else holds the container). Equality here is [`crate::equality`]'s business, not `PartialEq`'s:
//! the model compares by canonical hash (WIRE-313).

use std::sync::Arc;

use num_bigint::BigInt;
use smol_str::SmolStr;

use crate::js_string::JsString;

/// One value of the model. The variants mirror WIRE-301; there are no dates and no typed arrays.
#[derive(Clone, Debug)]
pub enum Value {
    /// `undefined`, which is a value and differs from an absent key.
    Undefined,
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An IEEE-754 double, NaN, infinities and −0 included.
    Number(f64),
    /// A string, possibly with unpaired surrogates.
    String(JsString),
    /// An arbitrary-precision integer.
    BigInt(Arc<BigInt>),
    /// A registry-interned symbol; its identity is its key.
    Symbol(JsString),
    /// An array, possibly with holes.
    Array(Array),
    /// A plain object.
    Object(Object),
    /// A byte string.
    Bytes(Arc<[u8]>),
    /// Everything rarer than the above, boxed so that `Value` stays small.
    Special(Arc<Special>),
}

/// The rare kinds of WIRE-301.
#[derive(Clone, Debug)]
pub enum Special {
    /// Nanoseconds since 1970-01-01.
    EpochNsec(BigInt),
    /// Days since 1970-01-01.
    EpochDay(BigInt),
    /// A tagged hash.
    Hash {
        /// The algorithm tag, e.g. `fid1`.
        tag: JsString,
        /// The digest.
        bytes: Vec<u8>,
    },
    /// A regular expression.
    RegExp {
        /// Pattern source.
        source: JsString,
        /// Flags.
        flags: JsString,
        /// Dialect, by default `es2025`.
        flavor: JsString,
    },
    /// A key pair.
    KeyPair {
        /// Algorithm name, never empty.
        algorithm: JsString,
        /// Public key bytes.
        public: Vec<u8>,
        /// Private key bytes.
        private: Vec<u8>,
    },
    /// An error object. Its five well-known slots are kept as values because the reference does not check
    /// their types (WIRE-306).
    Error(ErrorValue),
    /// A link of the modern regime (WIRE-501); the payload.
    Link(Object),
    /// A well-formed but unrecognised tag with its decoded state.
    Unknown {
        /// Tag text such as `Foo@1`.
        tag: SmolStr,
        /// Decoded state.
        state: Value,
    },
    /// A value its producer could not represent.
    Problematic {
        /// Tag the producer wanted.
        tag: JsString,
        /// State as received.
        state: Value,
        /// Why it failed.
        error: JsString,
    },
}

/// An error in the value model (WIRE-306).
#[derive(Clone, Debug)]
pub struct ErrorValue {
    /// Constructor name; normally a string.
    pub kind: Value,
    /// `name` slot; normally a string equal to `kind`.
    pub name: Value,
    /// `message` slot; normally a string.
    pub message: Value,
    /// `stack`, or `Undefined`.
    pub stack: Value,
    /// `cause`, or `Undefined`.
    pub cause: Value,
    /// Any other own property.
    pub extras: Object,
}

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

/// One run of an array: a value, or consecutive holes.
#[derive(Clone, Debug)]
pub enum Slot {
    /// An element (which may be `undefined`).
    Value(Value),
    /// `n ≥ 1` consecutive holes; neighbouring runs are always merged.
    Holes(u32),
}

/// An array. Dense in nearly every case; holes are kept as runs, so that a claim of four billion holes costs
/// one slot (WIRE-314).
#[derive(Clone, Debug)]
pub struct Array(ArrayRepr);

/// Invariant: `Sparse` holds at least one hole run, adjacent runs are merged, and the total length is in the first field.
#[derive(Clone, Debug)]
enum ArrayRepr {
    Dense(Arc<Vec<Value>>),
    Sparse(u32, Arc<Vec<Slot>>),
}

/// Longest array of the model.
pub const MAX_ARRAY_LEN: u64 = u32::MAX as u64;

impl Array {
    /// An empty array.
    pub fn new() -> Array {
        Array::from(Vec::new())
    }

    /// Builds an array from slots, merging neighbouring hole runs. `None` when the length passes 2³²−1.
    pub fn from_slots(slots: Vec<Slot>) -> Option<Array> {
        if slots.iter().all(|s| matches!(s, Slot::Value(_))) {
            let dense: Vec<Value> = slots
                .into_iter()
                .filter_map(|s| match s {
                    Slot::Value(v) => Some(v),
                    Slot::Holes(_) => None,
                })
                .collect();
            return (dense.len() as u64 <= MAX_ARRAY_LEN).then(|| Array::from(dense));
        }
        let mut merged: Vec<Slot> = Vec::with_capacity(slots.len());
        let mut length: u64 = 0;
        for slot in slots {
            length += match &slot {
                Slot::Value(_) => 1,
                Slot::Holes(n) => u64::from(*n),
            };
            if length > MAX_ARRAY_LEN {
                return None;
            }
            match (merged.last_mut(), slot) {
                (_, Slot::Holes(0)) => {}
                (Some(Slot::Holes(run)), Slot::Holes(n)) => *run += n,
                (_, slot) => merged.push(slot),
            }
        }
        Some(Array(ArrayRepr::Sparse(length as u32, Arc::new(merged))))
    }

    /// Length in slots, holes included.
    pub fn len(&self) -> usize {
        match &self.0 {
            ArrayRepr::Dense(items) => items.len(),
            ArrayRepr::Sparse(length, _) => *length as usize,
        }
    }

    /// True when the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, when the array has no holes.
    pub fn as_dense(&self) -> Option<&[Value]> {
        match &self.0 {
            ArrayRepr::Dense(items) => Some(items),
            ArrayRepr::Sparse(..) => None,
        }
    }

    /// The element at `index`; `None` for a hole and past the end.
    pub fn get(&self, index: usize) -> Option<&Value> {
        match &self.0 {
            ArrayRepr::Dense(items) => items.get(index),
            ArrayRepr::Sparse(_, slots) => {
                let mut at = 0usize;
                for slot in slots.iter() {
                    match slot {
                        Slot::Value(v) if at == index => return Some(v),
                        Slot::Value(_) => at += 1,
                        Slot::Holes(n) => at += *n as usize,
                    }
                    if at > index {
                        return None;
                    }
                }
                None
            }
        }
    }

    /// The runs, in order. For a dense array every run is one value.
    pub fn slots(&self) -> Slots<'_> {
        match &self.0 {
            ArrayRepr::Dense(items) => Slots::Dense(items.iter()),
            ArrayRepr::Sparse(_, slots) => Slots::Sparse(slots.iter()),
        }
    }

    /// The present elements with their indexes; holes are skipped.
    pub fn elements(&self) -> impl Iterator<Item = (usize, &Value)> + '_ {
        let mut at = 0usize;
        self.slots().filter_map(move |slot| match slot {
            SlotRef::Value(v) => {
                at += 1;
                Some((at - 1, v))
            }
            SlotRef::Holes(n) => {
                at += n as usize;
                None
            }
        })
    }

    /// Mutable access to a present element, un-sharing this array first. `None` for holes and past the end.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Value> {
        match &mut self.0 {
            ArrayRepr::Dense(items) => Arc::make_mut(items).get_mut(index),
            ArrayRepr::Sparse(_, slots) => {
                let mut at = 0usize;
                for slot in Arc::make_mut(slots).iter_mut() {
                    match slot {
                        Slot::Value(v) if at == index => return Some(v),
                        Slot::Value(_) => at += 1,
                        Slot::Holes(n) => at += *n as usize,
                    }
                    if at > index {
                        return None;
                    }
                }
                None
            }
        }
    }

    /// Mutable element list of a dense array, un-shared first; `None` when there are holes.
    pub fn as_dense_mut(&mut self) -> Option<&mut Vec<Value>> {
        match &mut self.0 {
            ArrayRepr::Dense(items) => Some(Arc::make_mut(items)),
            ArrayRepr::Sparse(..) => None,
        }
    }

    /// The runs as an owned list (for edits of arrays with holes; rebuild with [`Array::from_slots`]).
    pub fn to_slots(&self) -> Vec<Slot> {
        self.slots()
            .map(|slot| match slot {
                SlotRef::Value(v) => Slot::Value(v.clone()),
                SlotRef::Holes(n) => Slot::Holes(n),
            })
            .collect()
    }

    /// True when both handles share one allocation.
    pub fn ptr_eq(&self, other: &Array) -> bool {
        match (&self.0, &other.0) {
            (ArrayRepr::Dense(a), ArrayRepr::Dense(b)) => Arc::ptr_eq(a, b),
            (ArrayRepr::Sparse(_, a), ArrayRepr::Sparse(_, b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Default for Array {
    fn default() -> Self {
        Array::new()
    }
}

impl From<Vec<Value>> for Array {
    fn from(items: Vec<Value>) -> Self {
        Array(ArrayRepr::Dense(Arc::new(items)))
    }
}

impl FromIterator<Value> for Array {
    fn from_iter<I: IntoIterator<Item = Value>>(iter: I) -> Self {
        Array::from(iter.into_iter().collect::<Vec<_>>())
    }
}

/// A borrowed [`Slot`].
#[derive(Clone, Copy, Debug)]
pub enum SlotRef<'a> {
    /// An element.
    Value(&'a Value),
    /// Consecutive holes.
    Holes(u32),
}

/// Iterator over the runs of an array.
#[derive(Clone, Debug)]
pub enum Slots<'a> {
    /// Runs of a dense array.
    Dense(std::slice::Iter<'a, Value>),
    /// Runs of an array with holes.
    Sparse(std::slice::Iter<'a, Slot>),
}

impl<'a> Iterator for Slots<'a> {
    type Item = SlotRef<'a>;

    fn next(&mut self) -> Option<SlotRef<'a>> {
        match self {
            Slots::Dense(items) => items.next().map(SlotRef::Value),
            Slots::Sparse(slots) => slots.next().map(|slot| match slot {
                Slot::Value(v) => SlotRef::Value(v),
                Slot::Holes(n) => SlotRef::Holes(*n),
            }),
        }
    }
}

impl Value {
    /// A string value.
    pub fn string(text: impl Into<JsString>) -> Value {
        Value::String(text.into())
    }

    /// The object, if this is a plain object.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The array, if this is one.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The text, if this is a well-formed string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => text.as_str(),
            _ => None,
        }
    }

    /// The number, if this is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Number(n) => Some(*n),
            _ => None,
        }
    }

    /// The number as a sequence number or counter: a non-negative integer ≤ 2⁵³−1 (WIRE-002).
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Number(n) if *n >= 0.0 && *n <= 9_007_199_254_740_991.0 && n.fract() == 0.0 => {
                Some(*n as u64)
            }
            _ => None,
        }
    }

    /// The boolean, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// True for `undefined`.
    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined)
    }

    /// The member `key` of a plain object; `None` when absent, present-undefined or not an object. This is the
    /// reading rule of protocol messages (WIRE-003).
    pub fn member(&self, key: &str) -> Option<&Value> {
        self.as_object()?.get(key).filter(|v| !v.is_undefined())
    }

    /// The value at a document path (object keys and canonical array indexes), or `None` when something on the
    /// way is missing or is a leaf.
    pub fn at_path<S: AsRef<str>>(&self, path: &[S]) -> Option<&Value> {
        path.iter().try_fold(self, |node, segment| match node {
            Value::Object(object) => object.get(segment.as_ref()),
            Value::Array(array) => array.get(index_rank(segment.as_ref().as_bytes())? as usize),
            _ => None,
        })
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Self {
        Value::Bool(b)
    }
}

impl From<f64> for Value {
    fn from(n: f64) -> Self {
        Value::Number(n)
    }
}

impl From<u64> for Value {
    /// Invariant of the caller: at most 2⁵³−1, as all sequence numbers are (WIRE-002).
    fn from(n: u64) -> Self {
        Value::Number(n as f64)
    }
}

impl From<i32> for Value {
    fn from(n: i32) -> Self {
        Value::Number(f64::from(n))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(text.into())
    }
}

impl From<JsString> for Value {
    fn from(text: JsString) -> Self {
        Value::String(text)
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Value::Object(object)
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Value::Array(array)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Self {
        Value::Array(items.into())
    }
}

/// Builds a [`Value`] from JSON-like syntax: `value!({ "a": 1, "b": [true, null] })`. Any expression that
/// converts into a `Value` may stand for an element.
#[macro_export]
macro_rules! value {
    (null) => { $crate::value::Value::Null };
    ([ $($item:tt),* $(,)? ]) => { $crate::value::Value::Array(vec![$($crate::value!($item)),*].into()) };
    ({ $($key:literal : $item:tt),* $(,)? }) => {
        $crate::value::Value::Object($crate::value::Object::from_entries(vec![$(($key.into(), $crate::value!($item))),*]))
    };
    ($other:expr) => { $crate::value::Value::from($other) };
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

    #[test]
    fn wire_308_hole_runs_merge() {
        let array = Array::from_slots(vec![Slot::Holes(2), Slot::Holes(3), Slot::Value(1.into())]).unwrap();
        assert_eq!(array.len(), 6);
        assert_eq!(array.slots().count(), 2);
        assert!(array.get(4).is_none());
        assert!(array.get(5).is_some());
        assert!(Array::from_slots(vec![Slot::Holes(u32::MAX), Slot::Holes(1)]).is_none());
    }

    #[test]
    fn shared_containers_copy_on_write() {
        let a = value!({ "x": { "y": 1 }, "z": [1, 2] });
        let mut b = a.clone();
        if let Value::Object(object) = &mut b {
            object.insert("q", 1);
        }
        assert!(a.member("q").is_none() && b.member("q").is_some());
        let (Some(Value::Object(xa)), Some(Value::Object(xb))) = (a.member("x"), b.member("x")) else {
            panic!()
        };
        assert!(xa.ptr_eq(xb));
    }
}
