//! Schemas as values with an identity (TRV-101…107): [`Schema`] is a shared handle, [`SchemaPool`] gives equal
//! content one handle and remembers the results of the pure functions of this module. Everything in `traverse`
//! works on these; callers outside make a [`Schema`] from a value and keep it.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use rustc_hash::{FxHashMap, FxHasher};

use super::combine::Form;
use super::embedded;
use super::narrow::Marking;
use super::type_check::{TypeName, Verdict};
use crate::hash::{self, Digest};
use crate::js_string::JsString;
use crate::value::{Object, SlotRef, Value};

/// A JSON Schema: a boolean or an object (TRV-101). An *absent* schema is `Option::None` of it. Cloning is O(1);
/// equality and hash are those of the content, by schema hash (WIRE-403), so key order is irrelevant (TRV-102).
#[derive(Clone)]
pub struct Schema(Arc<Node>);

struct Node {
    value: Value,
    true_like: bool,
    false_like: bool,
    handle: bool,
    digest: OnceLock<Digest>,
    /// Hashes of the external schema documents named anywhere inside (TRV-905).
    external: OnceLock<Arc<[JsString]>>,
}

impl Schema {
    /// The schema that a value in a schema position denotes. A string, a number or `null` there is `false`; an
    /// array is an untyped schema of unknown keys (TRV §16).
    pub fn of(value: &Value) -> Schema {
        let value = match value {
            Value::Bool(_) | Value::Object(_) | Value::Array(_) => value.clone(),
            _ => Value::Bool(false),
        };
        Schema(Arc::new(Node {
            true_like: is_true_like(&value),
            false_like: is_false_like(&value),
            handle: is_handle(&value),
            value,
            digest: OnceLock::new(),
            external: OnceLock::new(),
        }))
    }

    /// `true`: everything.
    pub fn everything() -> Schema {
        static TRUE: OnceLock<Schema> = OnceLock::new();
        TRUE.get_or_init(|| Schema::of(&Value::Bool(true))).clone()
    }

    /// `false`: nothing.
    pub fn nothing() -> Schema {
        static FALSE: OnceLock<Schema> = OnceLock::new();
        FALSE.get_or_init(|| Schema::of(&Value::Bool(false))).clone()
    }

    /// The schema as a value.
    pub fn value(&self) -> &Value {
        &self.0.value
    }

    /// The keyword `key`, when the schema is an object that has it with a defined value.
    pub fn keyword(&self, key: &str) -> Option<&Value> {
        self.0.value.member(key)
    }

    /// TRV-103: `true`, or an object that constrains nothing.
    pub fn is_true_like(&self) -> bool {
        self.0.true_like
    }

    /// TRV-103: `false`, or an object whose `not` is true-like.
    pub fn is_false_like(&self) -> bool {
        self.0.false_like
    }

    /// True for the literal `false` (TRV-1101 tells it from other false-like schemas).
    pub fn is_literal_false(&self) -> bool {
        matches!(self.0.value, Value::Bool(false))
    }

    /// TRV-107: a position under this schema is a handle.
    pub fn is_handle(&self) -> bool {
        self.0.handle
    }

    /// The schema hash (WIRE-403).
    pub fn digest(&self) -> &Digest {
        self.0.digest.get_or_init(|| hash::hash_value(&self.0.value))
    }

    /// The hashes of the external schema documents named anywhere in this schema, ignored keywords and `$defs`
    /// bodies included (TRV-905).
    pub fn external_references(&self) -> &[JsString] {
        self.0
            .external
            .get_or_init(|| super::refs::external_references(&self.0.value).into())
    }

    /// True when both are one allocation.
    pub fn ptr_eq(&self, other: &Schema) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Schema) -> bool {
        self.ptr_eq(other) || self.digest() == other.digest()
    }
}

impl Eq for Schema {}

impl Hash for Schema {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest().hash(state);
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

impl From<&Value> for Schema {
    fn from(value: &Value) -> Schema {
        Schema::of(value)
    }
}

/// The keywords that leave a schema true-like (TRV-103).
const UNCONSTRAINING: [&str; 6] = ["ifc", "asCell", "asStream", "scope", "default", "$defs"];

pub(super) fn is_true_like(schema: &Value) -> bool {
    match schema {
        Value::Bool(everything) => *everything,
        Value::Object(object) => object
            .iter()
            .all(|(key, _)| UNCONSTRAINING.iter().any(|name| key == name)),
        _ => false,
    }
}

pub(super) fn is_false_like(schema: &Value) -> bool {
    match schema {
        Value::Bool(everything) => !everything,
        Value::Object(object) => object.get("not").is_some_and(is_true_like),
        Value::Array(_) => false,
        _ => true,
    }
}

/// TRV-107. Recursion follows the nesting of the schema text, which WIRE-312 bounds.
pub(super) fn is_handle(schema: &Value) -> bool {
    entries_of_as_cell(schema).is_some()
        || ["anyOf", "oneOf"].into_iter().any(|union| {
            let options = schema.member(union).and_then(Value::as_array);
            options.is_some_and(|options| options.elements().all(|(_, option)| is_handle(option)))
        })
}

/// The entries of a non-empty `asCell` array.
pub(super) fn entries_of_as_cell(schema: &Value) -> Option<&crate::value::Array> {
    schema
        .member("asCell")
        .and_then(Value::as_array)
        .filter(|entries| !entries.is_empty())
}

/// The kind of the first `asCell` entry: the entry itself when it is a string, else its `kind`.
pub(super) fn first_kind(schema: &Value) -> Option<&JsString> {
    let first = entries_of_as_cell(schema)?.get(0)?;
    match first {
        Value::String(kind) => Some(kind),
        _ => match first.member("kind") {
            Some(Value::String(kind)) => Some(kind),
            _ => None,
        },
    }
}

/// A schema hashed and compared as an allocation. Holding it keeps the allocation, so a cache keyed by it never
/// meets a reused address.
#[derive(Clone)]
pub(super) struct ByAddress(pub(super) Schema);

impl PartialEq for ByAddress {
    fn eq(&self, other: &ByAddress) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for ByAddress {}

impl Hash for ByAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.0.0) as usize).hash(state);
    }
}

/// Which list of options is meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Combinator {
    /// `anyOf`
    Any,
    /// `oneOf`
    One,
    /// `allOf`
    All,
}

/// Entries a cache of pure results may hold before it is dropped whole (TRV-1503).
const CACHE_LIMIT: usize = 10_000;

/// Parts of schemas that one pure step may look at or write anew before the rest counts as excluded (TRV-1503): options
/// merged over what stands beside them, ways to narrow through nested unions. Only a hostile schema gets here.
pub(super) const STEP_LIMIT: usize = 1 << 20;

/// Parts of a schema that its fingerprint looks at.
const FINGERPRINT_PARTS: usize = 256;

/// What the pure functions have done so far, in parts of schemas. It only grows; a walk compares two of them.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Effort {
    /// Parts written into new schemas: what they cost in memory.
    pub(super) made: u64,
    /// Parts looked at: what they cost in time.
    pub(super) looked: u64,
}

/// Interned schemas, remembered results and the verified external schema documents (TRV-313, 904). A pool may be
/// kept as long as its owner likes: results that met a missing external document are not remembered, and external
/// documents are known by their content's hash.
#[derive(Clone, Default)]
pub struct SchemaPool {
    by_address: FxHashMap<usize, Schema>,
    by_content: FxHashMap<u64, Vec<Schema>>,
    interned: usize,
    pub(super) effort: Effort,
    pub(super) narrowed: FxHashMap<(ByAddress, Marking, JsString), Schema>,
    pub(super) items: FxHashMap<(ByAddress, u32), Schema>,
    pub(super) combined: FxHashMap<(ByAddress, ByAddress, Form), Schema>,
    pub(super) resolved: FxHashMap<ByAddress, Option<Schema>>,
    pub(super) options: FxHashMap<(ByAddress, Combinator), Option<Arc<[Schema]>>>,
    pub(super) checked: FxHashMap<(ByAddress, TypeName), Verdict>,
    pub(super) defaults: FxHashMap<ByAddress, Arc<[(JsString, Schema)]>>,
    pub(super) external: FxHashMap<JsString, Schema>,
    /// Counts lookups of external documents that were not there; a result computed across such a lookup is not kept.
    pub(super) misses: u64,
}

impl SchemaPool {
    /// An empty pool.
    pub fn new() -> SchemaPool {
        SchemaPool::default()
    }

    /// The pool's handle for `schema`.
    pub fn adopt(&mut self, schema: &Schema) -> Schema {
        self.intern_with(schema.value(), || schema.clone())
    }

    /// The pool's handle for the schema that `value` denotes.
    pub fn intern(&mut self, value: &Value) -> Schema {
        self.intern_with(value, || Schema::of(value))
    }

    fn intern_with(&mut self, value: &Value, make: impl FnOnce() -> Schema) -> Schema {
        let object = match value {
            Value::Bool(true) => return Schema::everything(),
            Value::Object(object) => object,
            Value::Array(_) => return make(),
            _ => return Schema::nothing(),
        };
        // The schema holds the object, so its address stays taken while the entry exists.
        if let Some(known) = self.by_address.get(&object.address()) {
            return known.clone();
        }
        if self.interned >= CACHE_LIMIT {
            self.forget_results();
        }
        self.effort.looked += FINGERPRINT_PARTS.min(size(value, FINGERPRINT_PARTS)) as u64;
        let bucket = self.by_content.entry(fingerprint(value)).or_default();
        let mut known = bucket.iter();
        if let Some(known) = known.find(|known| same_content(known.value(), value, &mut self.effort)) {
            return known.clone();
        }
        self.effort.made += own_parts(object);
        let schema = make();
        bucket.push(schema.clone());
        self.interned += 1;
        self.by_address.insert(object.address(), schema.clone());
        schema
    }

    /// Drops every remembered result; external documents stay.
    fn forget_results(&mut self) {
        *self = SchemaPool {
            external: std::mem::take(&mut self.external),
            misses: self.misses,
            effort: self.effort,
            ..SchemaPool::default()
        };
    }

    /// Makes a verified external document resolvable. The caller has checked that `schema` hashes to `hash` and
    /// that everything it refers to is known as well (TRV-905).
    pub(super) fn admit_external(&mut self, hash: JsString, schema: Schema) {
        self.external.insert(hash, schema);
    }

    /// The schema of an external document or of one of the compiled-in references (TRV-901).
    pub(super) fn external(&mut self, reference: &JsString) -> Option<Schema> {
        if let Some(schema) = self.external.get(reference) {
            return Some(schema.clone());
        }
        self.misses += 1;
        None
    }

    /// The schema of a compiled-in reference (TRV-901).
    pub(super) fn embedded(&mut self, url: &str) -> Option<Schema> {
        embedded::schema(url).map(|schema| self.adopt(schema))
    }

    /// Remembers `value` in the cache that `cache` selects, unless an external document was missing since `misses`.
    pub(super) fn remember<K: Eq + Hash, V: Clone>(
        &mut self,
        misses: u64,
        cache: impl FnOnce(&mut SchemaPool) -> &mut FxHashMap<K, V>,
        key: K,
        value: &V,
    ) {
        if self.misses != misses {
            return;
        }
        let cache = cache(self);
        if cache.len() >= CACHE_LIMIT {
            cache.clear();
        }
        cache.insert(key, value.clone());
    }
}

impl fmt::Debug for SchemaPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchemaPool")
            .field("interned", &self.interned)
            .field("external", &self.external.len())
            .finish()
    }
}

/// Parts that a new schema holds itself or in the lists and maps right below its keywords; what lies deeper is shared
/// with the schemas it was made from.
fn own_parts(object: &Object) -> u64 {
    let held = |value: &Value| match value {
        Value::Object(object) => object.len(),
        Value::Array(array) => array.slots().count(),
        _ => 0,
    };
    object.len() as u64 + object.iter().map(|(_, value)| held(value) as u64).sum::<u64>()
}

/// Number of parts of a value, counted up to `limit`.
pub(super) fn size(value: &Value, limit: usize) -> usize {
    let mut pending = vec![value];
    let mut counted = 0usize;
    while let Some(value) = pending.pop() {
        counted += 1;
        if counted >= limit {
            break;
        }
        match value {
            Value::Object(object) => pending.extend(object.iter().map(|(_, member)| member).take(limit)),
            Value::Array(array) => pending.extend(array.elements().map(|(_, element)| element).take(limit)),
            _ => {}
        }
    }
    counted
}

/// A fast digest of the structure of a value's upper parts, for interning only.
fn fingerprint(value: &Value) -> u64 {
    let mut hasher = FxHasher::default();
    let mut pending = VecDeque::from([value]);
    let mut parts = 0usize;
    while let Some(value) = pending.pop_front() {
        parts += 1;
        if parts > FINGERPRINT_PARTS {
            break;
        }
        std::mem::discriminant(value).hash(&mut hasher);
        match value {
            Value::Undefined | Value::Null => {}
            Value::Bool(b) => b.hash(&mut hasher),
            Value::Number(n) => n.to_bits().hash(&mut hasher),
            Value::String(s) | Value::Symbol(s) => s.hash(&mut hasher),
            Value::BigInt(n) => n.hash(&mut hasher),
            Value::Bytes(bytes) => bytes.hash(&mut hasher),
            Value::Array(array) => {
                array.len().hash(&mut hasher);
                for slot in array.slots() {
                    match slot {
                        SlotRef::Value(v) if pending.len() < FINGERPRINT_PARTS => pending.push_back(v),
                        SlotRef::Value(_) => break,
                        SlotRef::Holes(n) => n.hash(&mut hasher),
                    }
                }
            }
            Value::Object(object) => {
                object.len().hash(&mut hasher);
                for (key, member) in object.iter().take(FINGERPRINT_PARTS) {
                    key.hash(&mut hasher);
                    pending.push_back(member);
                }
            }
            Value::Special(_) => hash::hash_value(value).hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Equality of structure, bit for bit.
fn same_content(a: &Value, b: &Value, effort: &mut Effort) -> bool {
    let mut pending = vec![(a, b)];
    while let Some((a, b)) = pending.pop() {
        effort.looked += 1;
        let same = match (a, b) {
            (Value::Undefined, Value::Undefined) | (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Number(a), Value::Number(b)) => a.to_bits() == b.to_bits(),
            (Value::String(a), Value::String(b)) | (Value::Symbol(a), Value::Symbol(b)) => a == b,
            (Value::BigInt(a), Value::BigInt(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Array(a), Value::Array(b)) if a.ptr_eq(b) => true,
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len()
                    && a.slots().count() == b.slots().count()
                    && a.slots().zip(b.slots()).all(|pair| match pair {
                        (SlotRef::Value(a), SlotRef::Value(b)) => {
                            pending.push((a, b));
                            true
                        }
                        (SlotRef::Holes(a), SlotRef::Holes(b)) => a == b,
                        (SlotRef::Value(_), SlotRef::Holes(_)) | (SlotRef::Holes(_), SlotRef::Value(_)) => {
                            false
                        }
                    })
            }
            (Value::Object(a), Value::Object(b)) if a.ptr_eq(b) => true,
            (Value::Object(a), Value::Object(b)) => {
                a.len() == b.len()
                    && a.iter()
                        .zip(b.iter())
                        .all(|((key_a, member_a), (key_b, member_b))| {
                            pending.push((member_a, member_b));
                            key_a == key_b
                        })
            }
            (Value::Special(_), Value::Special(_)) => hash::hash_value(a) == hash::hash_value(b),
            _ => false,
        };
        if !same {
            return false;
        }
    }
    true
}

/// The keys of `under`, then those of `over` on top.
pub(super) fn laid_over(under: &Object, over: &Object) -> Object {
    if over.is_empty() {
        return under.clone();
    }
    let both = under.iter().chain(over.iter());
    Object::from_entries(both.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// `object` with `key` set.
pub(super) fn with_key(object: &Object, key: &str, value: Value) -> Object {
    let mut object = object.clone();
    object.insert(key, value);
    object
}

/// `object` without `key`.
pub(super) fn without_key(object: &Object, key: &str) -> Object {
    let mut object = object.clone();
    if object.contains_key(key) {
        object.remove(key);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    #[test]
    fn trv_103_true_like_and_false_like() {
        for schema in [
            value!(true),
            value!({}),
            value!({ "default": 1, "asCell": ["cell"], "$defs": {} }),
        ] {
            assert!(Schema::of(&schema).is_true_like(), "{schema:?}");
        }
        for schema in [value!(false), value!({ "title": "t" }), value!({ "not": false })] {
            assert!(!Schema::of(&schema).is_true_like(), "{schema:?}");
        }
        assert!(Schema::of(&value!({ "not": { "default": 1 } })).is_false_like());
        assert!(!Schema::of(&value!({ "not": { "type": "string" } })).is_false_like());
    }

    #[test]
    fn trv_102_equal_content_gets_one_handle() {
        let mut pool = SchemaPool::new();
        let a = pool.intern(&value!({ "type": "object", "properties": { "a": true } }));
        let b = pool.intern(&value!({ "properties": { "a": true }, "type": "object" }));
        assert!(a.ptr_eq(&b));
        assert_eq!(
            a,
            Schema::of(&value!({ "properties": { "a": true }, "type": "object" }))
        );
        assert_ne!(Schema::of(&value!({})), Schema::everything());
    }
}
