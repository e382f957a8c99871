//! References between schemas: resolving `$ref` with its definitions in force (TRV-901…903), listing what a
//! schema refers to (TRV-905), and cutting `$defs` down to what is used (TRV-706). Pure; stored schema documents
//! come in through the pool, admitted by `closure`.

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use super::deep::{self, Deep};
use super::schema::{ByAddress, Effort, Schema, SchemaPool, laid_over, with_key, without_key};
use crate::js_string::JsString;
use crate::value::{Array, Object, Slot, SlotRef, Value};

/// What a reference names (TRV-901).
enum Reference {
    /// `#/$defs/<name>` in the root in force.
    Local(JsString),
    /// A schema document, or one of its definitions.
    Document {
        hash: JsString,
        definition: Option<JsString>,
    },
    /// Perhaps a compiled-in schema.
    Url,
}

impl Reference {
    /// `None`: a form that never resolves.
    fn parse(text: &str) -> Option<Reference> {
        if let Some(name) = text.strip_prefix("#/$defs/") {
            return definition_name(name).map(Reference::Local);
        }
        if text.starts_with('#') {
            return None;
        }
        let Some(rest) = text.strip_prefix("cid:") else {
            return Some(Reference::Url);
        };
        let (hash, definition) = match rest.split_once('#') {
            None => (rest, None),
            Some((hash, fragment)) => (hash, Some(definition_name(fragment.strip_prefix("/$defs/")?)?)),
        };
        Some(Reference::Document {
            hash: hash.into(),
            definition,
        })
    }
}

/// One pointer segment with its escapes undone; no percent-decoding.
fn definition_name(segment: &str) -> Option<JsString> {
    if segment.contains('/') {
        return None;
    }
    Some(segment.replace("~1", "/").replace("~0", "~").into())
}

/// The `$ref` text of a schema, when it has one.
fn reference_text(schema: &Value) -> Option<&JsString> {
    match schema.member("$ref") {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// TRV-902: the schema with its top-level reference followed; itself when it has none; `None` when the chain does
/// not end in a schema.
pub fn resolve_ref(pool: &mut SchemaPool, schema: &Schema) -> Option<Schema> {
    if schema.keyword("$ref").is_none() {
        return Some(schema.clone());
    }
    let schema = pool.adopt(schema);
    let key = ByAddress(schema.clone());
    if let Some(known) = pool.resolved.get(&key) {
        return known.clone();
    }
    let misses = pool.misses;
    let resolved = schema
        .value()
        .as_object()
        .and_then(|object| follow(pool, object))
        .map(|value| pool.intern(&value));
    pool.remember(misses, |pool| &mut pool.resolved, key, &resolved);
    resolved
}

/// A schema object apart from the definitions it was found under.
struct Site {
    /// Without `$ref` and `$defs`.
    keys: Object,
    /// The definitions in force here.
    definitions: Option<Object>,
}

/// The target of a reference chain so far.
struct Target {
    /// Without `$defs`.
    value: Value,
    definitions: Option<Object>,
}

fn follow(pool: &mut SchemaPool, schema: &Object) -> Option<Value> {
    let mut sites: Vec<Site> = Vec::new();
    let mut seen: FxHashSet<(usize, JsString)> = FxHashSet::default();
    let mut site = schema.clone();
    let mut root = own_definitions(schema);
    let target = loop {
        let text = reference_text(&Value::Object(site.clone()))?.clone();
        let scope = root.as_ref().map_or(0, Object::address);
        if !seen.insert((scope, text.clone())) {
            return None;
        }
        sites.push(Site {
            keys: without_key(&without_key(&site, "$ref"), "$defs"),
            definitions: root.clone(),
        });
        let (found, found_root) = look_up(pool, text.as_str()?, root.as_ref())?;
        match found {
            Value::Bool(_) => {
                break Target {
                    value: found,
                    definitions: found_root,
                };
            }
            Value::Object(object) => {
                let definitions = own_definitions(&object).or(found_root);
                if reference_text(&Value::Object(object.clone())).is_none() {
                    break Target {
                        value: without_key(&object, "$defs").into(),
                        definitions,
                    };
                }
                site = object;
                root = definitions;
            }
            _ => return None,
        }
    };
    Some(sites.into_iter().rev().fold(target, lay_over).close())
}

fn own_definitions(schema: &Object) -> Option<Object> {
    schema.get("$defs").and_then(Value::as_object).cloned()
}

/// The referenced value and the definitions in force around it.
fn look_up(pool: &mut SchemaPool, text: &str, root: Option<&Object>) -> Option<(Value, Option<Object>)> {
    match Reference::parse(text)? {
        Reference::Local(name) => Some((root?.get_key(&name)?.clone(), root.cloned())),
        Reference::Document { hash, definition } => {
            let document = pool.external(&hash)?;
            let definitions = document.value().as_object().and_then(own_definitions);
            match definition {
                None => Some((document.value().clone(), definitions)),
                Some(name) => Some((definitions.as_ref()?.get_key(&name)?.clone(), definitions)),
            }
        }
        Reference::Url => pool.embedded(text).map(|schema| (schema.value().clone(), None)),
    }
}

/// Lays a site's keys over its target: the site wins (TRV-902). Definitions of different scopes are kept apart by
/// renaming the site's (TRV-903).
fn lay_over(target: Target, site: Site) -> Target {
    let base = match target.value {
        Value::Object(object) => object,
        Value::Bool(false) => Object::from_entries(vec![("not".into(), Value::Bool(true))]),
        _ => Object::new(),
    };
    let (keys, definitions) = match (site.definitions, target.definitions) {
        (None, theirs) => (site.keys, theirs),
        (Some(ours), None) => (site.keys, Some(ours)),
        (Some(ours), Some(theirs)) if ours.ptr_eq(&theirs) => (site.keys, Some(ours)),
        (Some(ours), Some(theirs)) => {
            let renames = rename_apart(&ours, &theirs);
            let renamed = ours
                .iter()
                .map(|(name, definition)| (renames.new_name(name), renames.apply(definition)))
                .collect();
            let united = laid_over(&theirs, &renamed);
            let Value::Object(keys) = renames.apply(&Value::Object(site.keys)) else {
                unreachable!("renaming references keeps an object an object")
            };
            (keys, Some(united))
        }
    };
    Target {
        value: laid_over(&base, &keys).into(),
        definitions,
    }
}

impl Target {
    fn close(self) -> Value {
        match (self.value, self.definitions) {
            (Value::Object(object), Some(definitions)) => {
                with_key(&object, "$defs", definitions.into()).into()
            }
            (value, _) => value,
        }
    }
}

/// New names for every definition of a site.
struct Renames(Vec<(JsString, JsString)>);

fn rename_apart(site: &Object, target: &Object) -> Renames {
    let mut names: Vec<&JsString> = site.iter().map(|(name, _)| name).collect();
    names.sort();
    let mut n = 0u64;
    let mut fresh = |name: &JsString| loop {
        let candidate: JsString = format!("__cfc_ref_site_{n}_{name}").into();
        n += 1;
        if target.get_key(&candidate).is_none() && site.get_key(&candidate).is_none() {
            return candidate;
        }
    };
    Renames(
        names
            .into_iter()
            .map(|name| (name.clone(), fresh(name)))
            .collect(),
    )
}

impl Renames {
    fn new_name(&self, name: &JsString) -> JsString {
        // The list is sorted by old name.
        match self.0.binary_search_by(|(old, _)| old.cmp(name)) {
            Ok(at) => self.0[at].1.clone(),
            Err(_) => name.clone(),
        }
    }

    /// The schema with its local references renamed; subtrees with definitions of their own keep theirs.
    fn apply(&self, schema: &Value) -> Value {
        // Schemas are at most 2,048 levels deep (WIRE-312), so this limit is never met.
        deep::run(usize::MAX, |deep| self.rewrite(deep, schema.clone())).unwrap_or_else(|_| schema.clone())
    }

    async fn rewrite<'f>(&'f self, deep: Deep<'f>, schema: Value) -> Value {
        let Value::Object(object) = &schema else {
            return schema;
        };
        if object.contains_key("$defs") {
            return schema;
        }
        let mut rewritten = object.clone();
        if let Some(Reference::Local(name)) = reference_text(&schema)
            .and_then(|t| t.as_str())
            .and_then(Reference::parse)
        {
            let renamed = self
                .new_name(&name)
                .to_string_lossy()
                .replace('~', "~0")
                .replace('/', "~1");
            rewritten.insert("$ref", format!("#/$defs/{renamed}"));
        }
        for (keyword, shape) in SUBSCHEMA_KEYWORDS {
            let Some(held) = object.get(keyword) else { continue };
            let held = match (shape, held) {
                (Shape::One | Shape::OneOrList, Value::Object(_)) => {
                    deep.call(self.rewrite(deep.clone(), held.clone())).await
                }
                (Shape::List | Shape::OneOrList, Value::Array(list)) => {
                    let mut slots = Vec::with_capacity(list.len());
                    for slot in list.slots() {
                        slots.push(match slot {
                            SlotRef::Value(v) => {
                                Slot::Value(deep.call(self.rewrite(deep.clone(), v.clone())).await)
                            }
                            SlotRef::Holes(n) => Slot::Holes(n),
                        });
                    }
                    Array::from_slots(slots).map_or_else(|| held.clone(), Value::Array)
                }
                (Shape::Map, Value::Object(map)) => {
                    let mut entries = Vec::with_capacity(map.len());
                    for (name, member) in map.iter() {
                        entries.push((
                            name.clone(),
                            deep.call(self.rewrite(deep.clone(), member.clone())).await,
                        ));
                    }
                    Object::from_entries(entries).into()
                }
                _ => continue,
            };
            rewritten.insert(keyword, held);
        }
        rewritten.into()
    }
}

/// How a keyword holds subschemas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    List,
    OneOrList,
    Map,
}

/// Every keyword that holds schemas, those without meaning here included (TRV-905).
const SUBSCHEMA_KEYWORDS: [(&str, Shape); 23] = [
    ("properties", Shape::Map),
    ("patternProperties", Shape::Map),
    ("dependentSchemas", Shape::Map),
    ("$defs", Shape::Map),
    ("definitions", Shape::Map),
    ("additionalProperties", Shape::One),
    ("unevaluatedProperties", Shape::One),
    ("propertyNames", Shape::One),
    ("items", Shape::OneOrList),
    ("additionalItems", Shape::One),
    ("unevaluatedItems", Shape::One),
    ("prefixItems", Shape::List),
    ("contains", Shape::One),
    ("contentSchema", Shape::One),
    ("anyOf", Shape::List),
    ("oneOf", Shape::List),
    ("allOf", Shape::List),
    ("not", Shape::One),
    ("if", Shape::One),
    ("then", Shape::One),
    ("else", Shape::One),
    ("dependencies", Shape::Map),
    ("extends", Shape::OneOrList),
];

/// Calls `visit` for the schema and all its subschemas; a `false` answer keeps away from those below. Returns how many
/// values it looked at.
fn scan<'v>(schema: &'v Value, mut visit: impl FnMut(&'v Object, usize) -> bool) -> u64 {
    let mut pending = vec![(schema, 0usize)];
    let mut looked = 0;
    while let Some((schema, depth)) = pending.pop() {
        looked += 1;
        let Value::Object(object) = schema else { continue };
        if !visit(object, depth) {
            continue;
        }
        for (keyword, shape) in SUBSCHEMA_KEYWORDS {
            match (shape, object.get(keyword)) {
                (Shape::One | Shape::OneOrList, Some(held @ Value::Object(_))) => {
                    pending.push((held, depth + 1))
                }
                (Shape::List | Shape::OneOrList, Some(Value::Array(list))) => {
                    pending.extend(list.elements().map(|(_, v)| (v, depth + 1)));
                }
                (Shape::Map, Some(Value::Object(map))) => {
                    pending.extend(map.iter().map(|(_, v)| (v, depth + 1)))
                }
                _ => {}
            }
        }
    }
    looked
}

/// The hashes of all schema documents named anywhere in a schema, each once, in order.
pub(super) fn external_references(schema: &Value) -> Vec<JsString> {
    let mut hashes = BTreeSet::new();
    scan(schema, |object, _| {
        if let Some(Value::String(text)) = object.get("$ref")
            && let Some(Reference::Document { hash, .. }) = text.as_str().and_then(Reference::parse)
        {
            hashes.insert(hash);
        }
        true
    });
    hashes.into_iter().collect()
}

/// The names of the definitions that a subtree uses from the scope around it.
fn local_references(schema: &Value, own_scope_at_top: bool, found: &mut Vec<JsString>) -> u64 {
    scan(schema, |object, depth| {
        if object.contains_key("$defs") && (depth > 0 || own_scope_at_top) {
            return false;
        }
        if let Some(Value::String(text)) = object.get("$ref")
            && let Some(Reference::Local(name)) = text.as_str().and_then(Reference::parse)
        {
            found.push(name);
        }
        true
    })
}

/// TRV-706: `schema` (without `$defs`) together with those of the definitions in force that its local references
/// reach.
pub(super) fn with_used_definitions(
    schema: &Object,
    in_force: Option<&Object>,
    effort: &mut Effort,
) -> Object {
    let bare = without_key(schema, "$defs");
    let Some(in_force) = in_force else { return bare };
    let mut pending = Vec::new();
    effort.looked += local_references(&Value::Object(bare.clone()), false, &mut pending);
    let mut used: BTreeSet<JsString> = BTreeSet::new();
    while let Some(name) = pending.pop() {
        if let Some(definition) = in_force.get_key(&name)
            && used.insert(name)
        {
            effort.looked += local_references(definition, true, &mut pending);
        }
    }
    if used.is_empty() {
        return bare;
    }
    if used.len() == in_force.len() {
        return with_key(&bare, "$defs", in_force.clone().into());
    }
    let kept: Object = in_force
        .iter()
        .filter(|(name, _)| used.contains(*name))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    with_key(&bare, "$defs", kept.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    #[test]
    fn trv_902_a_cycle_of_references_is_unresolvable() {
        let mut pool = SchemaPool::new();
        let schema = Schema::of(
            &value!({ "$ref": "#/$defs/A", "$defs": { "A": { "$ref": "#/$defs/B" }, "B": { "$ref": "#/$defs/A" } } }),
        );
        assert!(resolve_ref(&mut pool, &schema).is_none());
    }

    #[test]
    fn trv_905_every_subschema_is_searched_but_no_data() {
        let schema = value!({
            "properties": { "a": { "if": { "$ref": "cid:fid1:one" } } },
            "$defs": { "X": { "items": [{ "$ref": "cid:fid1:two#/$defs/Y" }] } },
            "default": { "$ref": "cid:fid1:three" }
        });
        let found = external_references(&schema);
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["fid1:one", "fid1:two"]
        );
    }
}
