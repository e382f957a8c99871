//! Narrowing: the schema that holds at a path below a schema (TRV §7). Pure. The walk narrows by one segment per
//! step and remembers the answers in the pool; link hops narrow by what is left of a selector's path.

use std::cell::{Cell, RefCell};

use super::deep::{self, Deep};
use super::distinct::Distinct;
use super::refs;
use super::schema::{ByAddress, STEP_LIMIT, Schema, SchemaPool, is_true_like, size, with_key};
use super::type_check::MAX_NESTED_OPTIONS;
use crate::js_string::JsString;
use crate::value::{Object, Value, index_rank};

/// Whether keys that a schema leaves open narrow to `true` or to a marker (TRV-702, 703).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Marking {
    /// `true`.
    Plain,
    /// A marker that the object walk recognises.
    Marked,
}

/// The marker's only key. A client schema spelled exactly like a marker is treated as one, as in the reference.
const MARKER_KEY: &str = "$comment";
const EMPTY_PROPERTIES: &str = "emptyProperties";
const MISSING_PROPERTY: &str = "missingProperty";

/// TRV-701: the schema at `path` below `schema`.
pub fn narrow(pool: &mut SchemaPool, schema: &Schema, path: &[JsString]) -> Schema {
    narrow_path(pool, schema, path, Marking::Plain)
}

/// TRV-703: as [`narrow`], with markers where `properties` leaves the key open.
pub fn narrow_marked(pool: &mut SchemaPool, schema: &Schema, path: &[JsString]) -> Schema {
    narrow_path(pool, schema, path, Marking::Marked)
}

/// TRV-703: the schema is one of the two markers, which mean "not descended".
pub fn is_marker(schema: &Schema) -> bool {
    match schema.value() {
        Value::Object(object) if object.len() == 1 => match object.get(MARKER_KEY) {
            Some(Value::String(text)) => text == EMPTY_PROPERTIES || text == MISSING_PROPERTY,
            _ => false,
        },
        _ => false,
    }
}

/// TRV-705: as [`narrow`], where `false` contributes nothing and `true` is spelled `{}`.
pub fn schema_at_path(pool: &mut SchemaPool, schema: &Schema, path: &[JsString]) -> Option<Schema> {
    let narrowed = narrow(pool, schema, path);
    match narrowed.value() {
        Value::Bool(false) => None,
        Value::Bool(true) => Some(pool.intern(&Value::Object(Object::new()))),
        _ => Some(narrowed),
    }
}

fn narrow_path(pool: &mut SchemaPool, schema: &Schema, path: &[JsString], marking: Marking) -> Schema {
    match path {
        [] if schema.keyword("$defs").is_none() => schema.clone(),
        [segment] => narrow_step(pool, schema, segment, marking),
        _ => compute(pool, schema, path, marking),
    }
}

/// One remembered step.
pub(super) fn narrow_step(
    pool: &mut SchemaPool,
    schema: &Schema,
    segment: &JsString,
    marking: Marking,
) -> Schema {
    if let Value::Bool(_) = schema.value() {
        return schema.clone();
    }
    let schema = pool.adopt(schema);
    let key = (ByAddress(schema.clone()), marking, segment.clone());
    if let Some(known) = pool.narrowed.get(&key) {
        return known.clone();
    }
    let misses = pool.misses;
    let narrowed = compute(pool, &schema, std::slice::from_ref(segment), marking);
    pool.remember(misses, |pool| &mut pool.narrowed, key, &narrowed);
    narrowed
}

/// The schema of the element at `index` (TRV-508). Elements past the tuple slots of a plain array schema share
/// one answer.
pub(super) fn narrow_item(pool: &mut SchemaPool, schema: &Schema, index: usize) -> Schema {
    let plain = schema.keyword("type").and_then(Value::as_str) == Some("array")
        && ["$ref", "anyOf", "oneOf"]
            .iter()
            .all(|keyword| schema.keyword(keyword).is_none());
    let segment = |index: usize| JsString::from(index.to_string());
    if !plain {
        return narrow_step(pool, schema, &segment(index), Marking::Plain);
    }
    let slots = schema
        .keyword("prefixItems")
        .and_then(Value::as_array)
        .map_or(0, |slots| slots.len());
    let class = index.min(slots);
    let schema = pool.adopt(schema);
    let key = (ByAddress(schema.clone()), class as u32);
    if let Some(known) = pool.items.get(&key) {
        return known.clone();
    }
    let misses = pool.misses;
    let narrowed = compute(pool, &schema, &[segment(class)], Marking::Plain);
    pool.remember(misses, |pool| &mut pool.items, key, &narrowed);
    narrowed
}

fn compute(pool: &mut SchemaPool, schema: &Schema, path: &[JsString], marking: Marking) -> Schema {
    let start = Narrowed {
        value: schema.value().clone(),
        definitions: None,
    };
    let narrowing = Narrowing {
        pool: RefCell::new(&mut *pool),
        path,
        marking,
        left: Cell::new(STEP_LIMIT),
    };
    let narrowed = deep::run(MAX_NESTED_OPTIONS, |deep| narrowing.from(deep, start, 0));
    let left = narrowing.left.get();
    pool.effort.looked += (STEP_LIMIT - left) as u64;
    match narrowed {
        Ok(narrowed) if left > 0 => {
            let closed = narrowed.close(pool);
            pool.intern(&closed)
        }
        Ok(_) | Err(deep::TooDeep) => Schema::nothing(),
    }
}

/// A result that does not yet carry the definitions it was found under.
struct Narrowed {
    value: Value,
    definitions: Option<Object>,
}

impl Narrowed {
    /// With the definitions that its local references reach (TRV-706).
    fn close(self, pool: &mut SchemaPool) -> Value {
        match self.value {
            Value::Object(object) => {
                refs::with_used_definitions(&object, self.definitions.as_ref(), &mut pool.effort).into()
            }
            value => value,
        }
    }
}

struct Narrowing<'p> {
    pool: RefCell<&'p mut SchemaPool>,
    path: &'p [JsString],
    marking: Marking,
    /// Steps and parts of answers before the rest counts as excluded: two definitions that offer each other at a name
    /// have 2^n ways down a path of n.
    left: Cell<usize>,
}

/// What one segment leads to.
enum Next {
    /// On with this schema.
    Into(Value),
    /// This is the answer for the whole rest of the path.
    Answer(Value),
    /// The answers of these options are united.
    Options(Vec<Value>),
}

impl<'p> Narrowing<'p> {
    /// False when nothing is left to spend.
    fn spend(&self, parts: usize) -> bool {
        self.left.set(self.left.get().saturating_sub(parts));
        self.left.get() > 0
    }

    async fn from<'f>(&'f self, deep: Deep<'f>, start: Narrowed, at: usize) -> Narrowed
    where
        'p: 'f,
    {
        let mut atoms = Distinct::new();
        let mut cursor = start;
        let mut at = at;
        loop {
            if !self.spend(1) {
                return Narrowed {
                    value: Value::Bool(false),
                    definitions: None,
                };
            }
            if let Value::Object(object) = &cursor.value
                && let Some(own) = object.get("$defs").and_then(Value::as_object)
            {
                cursor.definitions = Some(own.clone());
            }
            let Some(segment) = self.path.get(at) else { break };
            if cursor.value.member("$ref").is_some() {
                match self.resolve(&cursor) {
                    Some(resolved) => cursor = resolved,
                    None => {
                        return Narrowed {
                            value: Value::Bool(false),
                            definitions: None,
                        };
                    }
                }
            }
            match step(&cursor.value, segment, self.marking) {
                Next::Into(next) => {
                    if cursor.value.member("type").and_then(Value::as_str) == Some("object") {
                        collect_atoms(&cursor.value, &mut atoms);
                    }
                    cursor.value = next;
                    at += 1;
                }
                Next::Answer(answer) => {
                    cursor.value = answer;
                    break;
                }
                Next::Options(options) => {
                    cursor.value = self.unite(&deep, &cursor.definitions, options, at).await;
                    break;
                }
            }
        }
        cursor.value = with_atoms(cursor.value, atoms);
        cursor
    }

    fn resolve(&self, cursor: &Narrowed) -> Option<Narrowed> {
        let Value::Object(object) = &cursor.value else {
            return None;
        };
        let closed = match &cursor.definitions {
            Some(definitions) => with_key(object, "$defs", definitions.clone().into()),
            None => object.clone(),
        };
        let mut pool = self.pool.borrow_mut();
        let schema = pool.intern(&Value::Object(closed));
        let resolved = refs::resolve_ref(&mut pool, &schema)?;
        let definitions = resolved.keyword("$defs").and_then(Value::as_object).cloned();
        Some(Narrowed {
            value: resolved.value().clone(),
            definitions,
        })
    }

    /// The union of the options' answers: one true-like answer makes the whole `true`, `false` ones drop out.
    async fn unite<'f>(
        &'f self,
        deep: &Deep<'f>,
        in_force: &Option<Object>,
        options: Vec<Value>,
        at: usize,
    ) -> Value
    where
        'p: 'f,
    {
        let mut answers = Distinct::new();
        for option in options {
            let start = Narrowed {
                value: option,
                definitions: in_force.clone(),
            };
            let narrowed = deep.call(self.from(deep.clone(), start, at)).await;
            let same_scope = match (&narrowed.definitions, in_force) {
                (Some(a), Some(b)) => a.ptr_eq(b),
                (None, _) => true,
                (Some(_), None) => false,
            };
            let answer = match narrowed.value {
                Value::Object(object) if same_scope => super::schema::without_key(&object, "$defs").into(),
                value => Narrowed {
                    value,
                    definitions: narrowed.definitions,
                }
                .close(&mut self.pool.borrow_mut()),
            };
            if !self.spend(size(&answer, self.left.get())) {
                return Value::Bool(false);
            }
            if matches!(answer, Value::Bool(false)) {
                continue;
            }
            if is_true_like(&answer) {
                return Value::Bool(true);
            }
            answers.add(&answer);
        }
        let mut answers = answers.into_values();
        match answers.len() {
            0 => Value::Bool(false),
            1 => answers.remove(0),
            _ => Object::from_entries(vec![("anyOf".into(), answers.into())]).into(),
        }
    }
}

/// The table of TRV-701 for a cursor whose reference is resolved.
fn step(cursor: &Value, segment: &JsString, marking: Marking) -> Next {
    let object = match cursor {
        Value::Object(object) => object,
        Value::Bool(_) => return Next::Answer(cursor.clone()),
        _ => return Next::Answer(Value::Bool(false)),
    };
    let keyword = |name: &str| object.get(name).filter(|v| !v.is_undefined());
    if let Some(Value::Array(types)) = keyword("type") {
        let single = |ty: &Value| Value::Object(with_key(object, "type", ty.clone()));
        let mut distinct = Distinct::new();
        types.elements().for_each(|(_, ty)| distinct.add(ty));
        let types = distinct.into_values();
        if types.len().saturating_mul(object.len()) > STEP_LIMIT {
            return Next::Answer(Value::Bool(false));
        }
        return Next::Options(types.iter().map(single).collect());
    }
    if keyword("anyOf").is_some() || keyword("oneOf").is_some() {
        let unions = ["anyOf", "oneOf"]
            .into_iter()
            .filter_map(|name| keyword(name)?.as_array());
        return Next::Options(
            unions
                .flat_map(|union| union.elements().map(|(_, o)| as_schema(o)))
                .collect(),
        );
    }
    if is_true_like(cursor) {
        return Next::Answer(cursor.clone());
    }
    match keyword("type").and_then(Value::as_str) {
        Some("object") => {
            let properties = keyword("properties");
            if let Some(declared) = properties
                .and_then(Value::as_object)
                .and_then(|p| p.get_key(segment))
            {
                return Next::Into(as_schema(declared));
            }
            if let Some(additional) = keyword("additionalProperties") {
                return Next::Into(as_schema(additional));
            }
            let empty = match properties {
                None => return Next::Into(Value::Bool(true)),
                Some(Value::Object(properties)) => properties.is_empty(),
                Some(Value::Array(list)) => list.is_empty(),
                Some(_) => true,
            };
            Next::Into(match marking {
                Marking::Plain => Value::Bool(true),
                Marking::Marked => marker(if empty { EMPTY_PROPERTIES } else { MISSING_PROPERTY }),
            })
        }
        Some("array") => {
            let Some(index) = index_rank(segment.as_bytes()) else {
                return Next::Answer(Value::Bool(false));
            };
            let slot = keyword("prefixItems")
                .and_then(Value::as_array)
                .and_then(|slots| slots.get(index as usize));
            Next::Into(slot.or(keyword("items")).map_or(Value::Bool(true), as_schema))
        }
        Some("unknown") => {
            let mut entries = vec![("type".into(), Value::string("unknown"))];
            entries.extend(keyword("ifc").map(|ifc| ("ifc".into(), ifc.clone())));
            Next::Answer(Object::from_entries(entries).into())
        }
        Some(_) | None => Next::Answer(Value::Bool(false)),
    }
}

/// A value in a schema position as a schema (TRV §16).
fn as_schema(value: &Value) -> Value {
    match value {
        Value::Bool(_) | Value::Object(_) | Value::Array(_) => value.clone(),
        _ => Value::Bool(false),
    }
}

fn marker(text: &str) -> Value {
    Object::from_entries(vec![(MARKER_KEY.into(), Value::string(text))]).into()
}

/// Adds the schema's confidentiality atoms that are not there yet.
fn collect_atoms(schema: &Value, atoms: &mut Distinct) {
    let own = schema
        .member("ifc")
        .and_then(|ifc| ifc.member("confidentiality"))
        .and_then(Value::as_array);
    own.into_iter()
        .flat_map(|own| own.elements())
        .for_each(|(_, atom)| atoms.add(atom));
}

/// TRV-704: the result with the accumulated atoms before its own.
fn with_atoms(result: Value, mut atoms: Distinct) -> Value {
    if atoms.is_empty() || matches!(result, Value::Bool(false)) {
        return result;
    }
    let object = match &result {
        Value::Object(object) => object.clone(),
        _ => Object::new(),
    };
    collect_atoms(&result, &mut atoms);
    let ifc = object
        .get("ifc")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    with_key(
        &object,
        "ifc",
        with_key(&ifc, "confidentiality", atoms.into_values().into()).into(),
    )
    .into()
}
