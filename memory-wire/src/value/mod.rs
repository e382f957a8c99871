//! The value model (WIRE-301): immutable values that clone in O(1) and share structure.
//!
//! A [`Value`] is what documents, patches and message bodies are made of. Containers are reference-counted;
//! changing one copies only the containers on the way to the change (`Object::insert` and friends mutate in
//! place when nobody else holds the container). Equality here is [`crate::equality`]'s business, not `PartialEq`'s:
//! the model compares by canonical hash (WIRE-313).

mod array;
mod extent;
mod object;

use std::sync::Arc;

use num_bigint::BigInt;
use smol_str::SmolStr;
use zeroize::Zeroizing;

use crate::js_string::JsString;

pub use array::{Array, MAX_ARRAY_LEN, Slot, SlotRef, Slots};
pub use extent::Extent;
pub use object::{Key, Object, index_rank, key_order};

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
        private: SecretBytes,
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

/// Key material inside a value: wiped when dropped, and shown to nobody who prints a value.
#[derive(Clone)]
pub struct SecretBytes(Zeroizing<Vec<u8>>);

impl From<Vec<u8>> for SecretBytes {
    fn from(bytes: Vec<u8>) -> Self {
        SecretBytes(Zeroizing::new(bytes))
    }
}

impl std::ops::Deref for SecretBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes(…)")
    }
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
    fn printing_a_value_shows_no_key_material() {
        let pair = Value::Special(Arc::new(Special::KeyPair {
            algorithm: "Ed25519".into(),
            public: vec![1; 32],
            private: vec![0xAB; 32].into(),
        }));
        let shown = format!("{:?} {:#?}", value!({ "key": (pair.clone()) }), pair);
        assert!(shown.contains("Ed25519") && !shown.contains("171"), "{shown}");
    }

    #[test]
    fn wire_002_counters_are_safe_integers() {
        for (n, counter) in [
            (0.0, Some(0)),
            (-0.0, Some(0)),
            (9_007_199_254_740_991.0, Some(9_007_199_254_740_991)),
            (9_007_199_254_740_992.0, None),
            (0.5, None),
            (-1.0, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ] {
            assert_eq!(Value::Number(n).as_u64(), counter, "{n}");
        }
        assert_eq!(Value::from("1").as_u64(), None);
    }

    #[test]
    fn wire_003_a_message_reads_present_undefined_as_absent() {
        let message = value!({ "params": (Value::Undefined), "after": null });
        assert!(message.member("params").is_none() && message.member("after").is_some());
        assert!(
            message
                .as_object()
                .is_some_and(|object| object.contains_key("params"))
        );
        assert!(value!([]).member("length").is_none());
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
