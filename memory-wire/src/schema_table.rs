//! The sync schema table (WIRE-770) and the reserved references it uses (WIRE-771): link schemas inside a frame's
//! documents are replaced by hashes, and the schemas travel once beside them. Used by the server when it encodes
//! documents, by the client when it reads frames, by admission to keep references out of storage.
//!
//! A link's `schema` that is a boolean or an object, other than exactly `{"$ref": "cid:…"}`, becomes the string
//! `schema-ref@2:` and its tagged hash; the frame's `schemaTable` has each schema once. [`compress`] and [`expand`] are inverse.
//! A reference without an entry, an entry that does not hash to its name, and a reference left over are failures of the frame.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::hash::tagged_hash;
use crate::link::{LinkRef, Regime, link_payload, link_value};
use crate::message::{SessionSync, UpsertContent};
use crate::value::{Array, Object, Slot, SlotRef, Slots, Value};

/// Prefix of a reference into a frame's own table.
pub const SCHEMA_REF_PREFIX: &str = "schema-ref@2:";
/// Prefix reserved for references into a schema store.
pub const SCHEMA_CAS_PREFIX: &str = "schema-cas@1:";

/// Schemas interned so far, by tagged hash.
#[derive(Clone, Debug, Default)]
pub struct SchemaTable(BTreeMap<SmolStr, Value>);

impl SchemaTable {
    /// The schemas in ascending order of their hashes.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(hash, schema)| (hash.as_str(), schema))
    }

    /// True when nothing was interned.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The frame's `schemaTable` member.
    pub fn to_object(&self) -> Object {
        self.0
            .iter()
            .map(|(hash, schema)| (hash.clone(), schema.clone()))
            .collect()
    }

    fn intern(&mut self, schema: &Value) -> Value {
        let hash = SmolStr::from(tagged_hash(schema));
        let reference = format!("{SCHEMA_REF_PREFIX}{hash}");
        self.0.entry(hash).or_insert_with(|| schema.clone());
        Value::from(reference)
    }
}

/// Why a frame could not be expanded: a protocol failure of the server that sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaTableError {
    /// A reference without an entry.
    #[error("sync frame refers to schema {0}, which its table does not hold")]
    MissingEntry(String),
    /// An entry whose schema does not hash to its key.
    #[error("sync frame's schema table entry {0} does not verify")]
    HashMismatch(String),
    /// A reserved reference where the table does not reach.
    #[error("sync frame leaves the reserved schema reference {0} unresolved")]
    Unresolved(String),
}

/// Interns the link schemas of every document of a frame. A frame that already has a table is left as it is.
pub fn compress(sync: &SessionSync, regime: Regime) -> SessionSync {
    let mut compressed = sync.clone();
    if compressed.schema_table.is_some() {
        return compressed;
    }
    let mut table = SchemaTable::default();
    for upsert in &mut compressed.upserts {
        if let UpsertContent::Doc(document) = &mut upsert.content {
            *document = compress_document(document, regime, &mut table);
        }
    }
    compressed.schema_table = (!table.is_empty()).then(|| table.to_object());
    compressed
}

/// The inverse of [`compress`]; every reference has to resolve and every used entry to verify.
pub fn expand(mut sync: SessionSync, regime: Regime) -> Result<SessionSync, SchemaTableError> {
    let table = sync.schema_table.take().unwrap_or_default();
    let mut verified: BTreeMap<SmolStr, Value> = BTreeMap::new();
    for upsert in &mut sync.upserts {
        let UpsertContent::Doc(document) = &mut upsert.content else {
            continue;
        };
        let expanded = rewrite_links(document, regime, &mut |schema| {
            let Some(hash) = schema
                .as_str()
                .and_then(|text| text.strip_prefix(SCHEMA_REF_PREFIX))
            else {
                return Ok(None);
            };
            if let Some(schema) = verified.get(hash) {
                return Ok(Some(schema.clone()));
            }
            let schema = table
                .get(hash)
                .ok_or_else(|| SchemaTableError::MissingEntry(hash.to_owned()))?;
            if tagged_hash(schema) != hash {
                return Err(SchemaTableError::HashMismatch(hash.to_owned()));
            }
            verified.insert(SmolStr::new(hash), schema.clone());
            Ok(Some(schema.clone()))
        })?;
        if let Some(expanded) = expanded {
            *document = expanded;
        }
        if let Some(reference) = find_reserved_reference(document, regime) {
            return Err(SchemaTableError::Unresolved(reference));
        }
    }
    Ok(sync)
}

/// One document with its link schemas interned into `table`; the very same value when it has none.
pub fn compress_document(document: &Value, regime: Regime, table: &mut SchemaTable) -> Value {
    let rewritten = rewrite_links(document, regime, &mut |schema| {
        let interned = match schema {
            Value::Bool(_) => true,
            Value::Object(object) => !is_schema_document_ref(object),
            _ => false,
        };
        Ok::<_, std::convert::Infallible>(interned.then(|| table.intern(schema)))
    });
    let Ok(rewritten) = rewritten;
    rewritten.unwrap_or_else(|| document.clone())
}

/// Exactly `{"$ref": "cid:…"}`: already as small as a reference.
fn is_schema_document_ref(schema: &Object) -> bool {
    match schema.entries() {
        [(key, Value::String(target))] => *key == "$ref" && target.as_bytes().starts_with(b"cid:"),
        _ => false,
    }
}

/// Rewrites the `schema` of every link of a document; `None` when nothing changed, so that untouched parts stay
/// shared. Arrays, plain objects and link payloads are walked; a link's schema and the inside of tagged values are
/// not. Keeps its own stack: documents nest deeper than a thread's can follow.
fn rewrite_links<E>(
    document: &Value,
    regime: Regime,
    rewrite: &mut impl FnMut(&Value) -> Result<Option<Value>, E>,
) -> Result<Option<Value>, E> {
    let Some(root) = Walk::of(document, regime) else {
        return Ok(None);
    };
    let mut open = vec![root];
    while let Some(walk) = open.last_mut() {
        match walk.next() {
            Some(Child::Schema(schema)) => {
                let rewritten = rewrite(schema)?;
                walk.record(rewritten);
            }
            Some(Child::Data(child)) => open.extend(Walk::of(child, regime)),
            None => {
                let rewritten = open.pop().and_then(|walk| walk.finish(regime));
                match open.last_mut() {
                    Some(parent) => parent.record(rewritten),
                    None => return Ok(rewritten),
                }
            }
        }
    }
    Ok(None)
}

/// A container under way: which child comes next, and which were rewritten.
struct Walk<'a> {
    container: Container<'a>,
    /// Position of the next child: entry of an object, slot index of an array.
    next: usize,
    /// Rewritten children by position, ascending.
    rewritten: Vec<(usize, Value)>,
}

enum Container<'a> {
    /// The payload of a link; its `schema` is not data.
    Payload(&'a Object),
    Object(&'a Object),
    Array(&'a Array, Slots<'a>),
}

enum Child<'a> {
    Schema(&'a Value),
    Data(&'a Value),
}

impl<'a> Walk<'a> {
    /// The walk of a value that has children.
    fn of(value: &'a Value, regime: Regime) -> Option<Walk<'a>> {
        let container = match (link_payload(value, regime).and_then(LinkRef::as_object), value) {
            (Some(payload), _) => Container::Payload(payload),
            (None, Value::Object(object)) => Container::Object(object),
            (None, Value::Array(array)) => Container::Array(array, array.slots()),
            (None, _) => return None,
        };
        Some(Walk {
            container,
            next: 0,
            rewritten: Vec::new(),
        })
    }

    fn next(&mut self) -> Option<Child<'a>> {
        match &mut self.container {
            Container::Payload(object) => {
                let (key, member) = object.entries().get(self.next)?;
                self.next += 1;
                Some(if *key == "schema" {
                    Child::Schema(member)
                } else {
                    Child::Data(member)
                })
            }
            Container::Object(object) => {
                let (_, member) = object.entries().get(self.next)?;
                self.next += 1;
                Some(Child::Data(member))
            }
            Container::Array(_, slots) => loop {
                match slots.next()? {
                    SlotRef::Holes(n) => self.next += n as usize,
                    SlotRef::Value(element) => {
                        self.next += 1;
                        return Some(Child::Data(element));
                    }
                }
            },
        }
    }

    /// Takes what became of the child that came last.
    fn record(&mut self, rewritten: Option<Value>) {
        if let Some(value) = rewritten {
            self.rewritten.push((self.next - 1, value));
        }
    }

    /// The container with its rewritten children, if there are any.
    fn finish(self, regime: Regime) -> Option<Value> {
        if self.rewritten.is_empty() {
            return None;
        }
        Some(match self.container {
            // A rewritten link loses the siblings of `link@1` in its envelope, as in the reference.
            Container::Payload(payload) => link_value(with_entries(payload, self.rewritten), regime),
            Container::Object(object) => Value::Object(with_entries(object, self.rewritten)),
            Container::Array(array, _) => Value::Array(with_elements(array, self.rewritten)),
        })
    }
}

/// The object with some entries, by position, replaced.
fn with_entries(object: &Object, replaced: Vec<(usize, Value)>) -> Object {
    let mut entries = object.entries().to_vec();
    for (at, value) in replaced {
        entries[at].1 = value;
    }
    Object::from_entries(entries)
}

/// The array with some present elements, ascending by index, replaced.
fn with_elements(array: &Array, replaced: Vec<(usize, Value)>) -> Array {
    let mut replaced = replaced.into_iter().peekable();
    let mut at = 0usize;
    let slots = array
        .slots()
        .map(|slot| match slot {
            SlotRef::Holes(n) => {
                at += n as usize;
                Slot::Holes(n)
            }
            SlotRef::Value(old) => {
                let new = replaced.next_if(|(index, _)| *index == at).map(|(_, new)| new);
                at += 1;
                Slot::Value(new.unwrap_or_else(|| old.clone()))
            }
        })
        .collect();
    Array::from_slots(slots).expect("replacing elements keeps the length")
}

/// The first reserved reference at a position where none may be stored (WIRE-771): a link's `schema`, or an
/// `$alias` record's `schema`, which is also searched as data.
pub fn find_reserved_reference(value: &Value, regime: Regime) -> Option<String> {
    let reserved = |schema: &Value| {
        let text = schema.as_str()?;
        (text.starts_with(SCHEMA_REF_PREFIX) || text.starts_with(SCHEMA_CAS_PREFIX)).then(|| text.to_owned())
    };
    let mut open = vec![Walk::of(value, regime)?];
    if let Some(found) = alias_schema(value).and_then(reserved) {
        return Some(found);
    }
    while let Some(walk) = open.last_mut() {
        match walk.next() {
            Some(Child::Schema(schema)) => {
                if let Some(found) = reserved(schema) {
                    return Some(found);
                }
            }
            Some(Child::Data(child)) => {
                if let Some(found) = alias_schema(child).and_then(reserved) {
                    return Some(found);
                }
                open.extend(Walk::of(child, regime));
            }
            None => {
                open.pop();
            }
        }
    }
    None
}

/// The schema of a legacy alias record.
fn alias_schema(value: &Value) -> Option<&Value> {
    value.member("$alias")?.member("schema")
}
