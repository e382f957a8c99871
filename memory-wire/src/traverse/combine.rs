//! Combining what a reader asks for with what a link says about its target (TRV §8). Pure; neither commutative nor
//! idempotent, and references are not resolved.

use super::deep::{self, Deep};
use super::distinct::Distinct;
use super::schema::{
    ByAddress, Schema, SchemaPool, is_false_like, is_true_like, laid_over, with_key, without_key,
};
use crate::js_string::JsString;
use crate::value::{Object, Value};

/// The two forms of row 6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Form {
    /// A true-like link contributes its `asCell`.
    Plain,
    /// A true-like link contributes nothing (link hops).
    Optional,
}

/// The plain form: members, handles, the entry of a read. `None` is an absent schema.
pub fn combine(pool: &mut SchemaPool, parent: Option<&Schema>, link: Option<&Schema>) -> Option<Schema> {
    combine_form(pool, parent, link, Form::Plain)
}

/// The form of link hops (TRV-406).
pub fn combine_optional(
    pool: &mut SchemaPool,
    parent: Option<&Schema>,
    link: Option<&Schema>,
) -> Option<Schema> {
    combine_form(pool, parent, link, Form::Optional)
}

fn combine_form(
    pool: &mut SchemaPool,
    parent: Option<&Schema>,
    link: Option<&Schema>,
    form: Form,
) -> Option<Schema> {
    let (parent, link) = match (parent, link) {
        (None, other) | (other, None) => return other.cloned(),
        (Some(parent), Some(link)) => (pool.adopt(parent), pool.adopt(link)),
    };
    let key = (ByAddress(parent.clone()), ByAddress(link.clone()), form);
    if let Some(known) = pool.combined.get(&key) {
        return Some(known.clone());
    }
    let misses = pool.misses;
    let (parent_value, link_value) = (parent.value().clone(), link.value().clone());
    // The recursion follows the nesting of schema texts, at most 2,048 levels (WIRE-312).
    let combined = deep::run(usize::MAX, |deep| values(deep, parent_value, link_value, form));
    let combined = pool.intern(&combined.unwrap_or(Value::Bool(false)));
    pool.remember(misses, |pool| &mut pool.combined, key, &combined);
    Some(combined)
}

async fn values(deep: Deep<'_>, parent: Value, link: Value, form: Form) -> Value {
    if is_false_like(&parent) {
        return parent;
    }
    if is_false_like(&link) {
        return link;
    }
    if is_true_like(&parent) {
        return lay_as_cell(Some(&parent), link);
    }
    if is_true_like(&link) {
        return match form {
            Form::Optional => parent,
            Form::Plain => lay_as_cell(Some(&link), parent),
        };
    }
    let (Value::Object(p), Value::Object(l)) = (&parent, &link) else {
        return parent;
    };
    let (parent_type, link_type) = (keyword(p, "type"), keyword(l, "type"));
    if let (Some(a), Some(b)) = (parent_type, link_type)
        && disjoint(a, b)
    {
        return Value::Bool(false);
    }
    let both = |name: &str| {
        parent_type.and_then(Value::as_str) == Some(name) && link_type.and_then(Value::as_str) == Some(name)
    };
    if both("object") {
        if is_open(p) {
            return lay_as_cell(Some(&parent), open_parent(p, l).into());
        }
        if is_open(l) {
            return open_link(p, l).into();
        }
        return records(&deep, p, l).await.into();
    }
    if both("array") {
        return arrays(&deep, p, l).await.into();
    }
    lay_as_cell(Some(&link), others(p, l).into())
}

fn keyword<'o>(object: &'o Object, name: &str) -> Option<&'o Value> {
    object.get(name).filter(|value| !value.is_undefined())
}

/// Lays the `asCell` of `from` over `onto`, whatever its value.
fn lay_as_cell(from: Option<&Value>, onto: Value) -> Value {
    let Some(entries) = from
        .and_then(Value::as_object)
        .and_then(|object| object.get("asCell"))
    else {
        return onto;
    };
    match onto {
        Value::Object(object) => with_key(&object, "asCell", entries.clone()).into(),
        Value::Bool(true) => Object::from_entries(vec![("asCell".into(), entries.clone())]).into(),
        onto => onto,
    }
}

/// No declared properties and everything allowed.
fn is_open(object: &Object) -> bool {
    keyword(object, "properties").is_none()
        && keyword(object, "additionalProperties").is_none_or(is_true_like)
}

/// Row 8: the result is explicitly open.
fn open_parent(p: &Object, l: &Object) -> Object {
    let additional = match (
        keyword(l, "additionalProperties"),
        keyword(p, "additionalProperties"),
    ) {
        (Some(theirs), ours) => lay_as_cell(ours, theirs.clone()),
        (None, Some(ours)) => ours.clone(),
        (None, None) => Value::Bool(true),
    };
    let base = with_key(
        &without_key(&without_key(l, "required"), "$defs"),
        "additionalProperties",
        additional,
    );
    unite_lists(base, p, l)
}

/// Row 9: the parent stays closed.
fn open_link(p: &Object, l: &Object) -> Object {
    let base = match keyword(p, "additionalProperties") {
        Some(ours) => with_key(
            p,
            "additionalProperties",
            lay_as_cell(keyword(l, "additionalProperties"), ours.clone()),
        ),
        None => p.clone(),
    };
    unite_lists(base, p, l)
}

/// Row 10.
async fn records(deep: &Deep<'_>, p: &Object, l: &Object) -> Object {
    let mut base = laid_over(l, p);
    let none = Object::new();
    let properties = |object: &Object| keyword(object, "properties").and_then(Value::as_object).cloned();
    let (ours, theirs) = (properties(p), properties(l));
    if ours.is_some() || theirs.is_some() {
        let mut united: Vec<(JsString, Value)> = Vec::new();
        for (name, theirs) in theirs.as_ref().unwrap_or(&none).iter() {
            let ours = match ours.as_ref().and_then(|ours| ours.get_key(name)) {
                Some(ours) => Some(ours.clone()),
                None => additional(p),
            };
            united.push((name.clone(), both_or_one(deep, ours, Some(theirs.clone())).await));
        }
        for (name, ours) in ours.as_ref().unwrap_or(&none).iter() {
            if theirs
                .as_ref()
                .is_none_or(|theirs| theirs.get_key(name).is_none())
            {
                united.push((
                    name.clone(),
                    both_or_one(deep, Some(ours.clone()), additional(l)).await,
                ));
            }
        }
        base.insert("properties", Object::from_entries(united));
    }
    unite_lists(base, p, l)
}

/// What a side says about a name it does not declare: `None` when it leaves it to the other (TRV-801).
fn additional(object: &Object) -> Option<Value> {
    keyword(object, "additionalProperties").cloned()
}

/// Row 11.
async fn arrays(deep: &Deep<'_>, p: &Object, l: &Object) -> Object {
    let mut base = laid_over(l, p);
    let (our_items, their_items) = (keyword(p, "items"), keyword(l, "items"));
    if our_items.is_some() || their_items.is_some() {
        base.insert(
            "items",
            both_or_one(deep, our_items.cloned(), their_items.cloned()).await,
        );
    }
    let slots = |object: &Object| keyword(object, "prefixItems").and_then(Value::as_array).cloned();
    let (ours, theirs) = (slots(p), slots(l));
    if ours.is_some() || theirs.is_some() {
        let length = ours
            .as_ref()
            .map_or(0, |s| s.len())
            .max(theirs.as_ref().map_or(0, |s| s.len()));
        let mut united = Vec::with_capacity(length.min(1024));
        for i in 0..length {
            let ours = ours.as_ref().and_then(|s| s.get(i)).or(our_items).cloned();
            let theirs = theirs.as_ref().and_then(|s| s.get(i)).or(their_items).cloned();
            united.push(both_or_one(deep, ours, theirs).await);
        }
        base.insert("prefixItems", united);
    }
    unite_definitions(base, p, l)
}

async fn both_or_one(deep: &Deep<'_>, ours: Option<Value>, theirs: Option<Value>) -> Value {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => deep.call(values(deep.clone(), ours, theirs, Form::Plain)).await,
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => Value::Bool(true),
    }
}

/// Row 12: the parent with the narrower type.
fn others(p: &Object, l: &Object) -> Object {
    let base = match (keyword(p, "type"), keyword(l, "type")) {
        (Some(ours), Some(theirs)) => match narrower_type(ours, theirs) {
            Some(narrowed) => with_key(p, "type", narrowed),
            None => p.clone(),
        },
        _ => p.clone(),
    };
    unite_definitions(base, p, l)
}

/// TRV-803, both unions.
fn unite_lists(base: Object, p: &Object, l: &Object) -> Object {
    let base = unite_definitions(base, p, l);
    let names = |object: &Object| keyword(object, "required").and_then(Value::as_array).cloned();
    let (ours, theirs) = (names(p), names(l));
    if ours.is_none() && theirs.is_none() {
        return base;
    }
    let mut united = Distinct::new();
    for list in [ours, theirs].into_iter().flatten() {
        list.elements().for_each(|(_, name)| united.add(name));
    }
    with_key(&base, "required", united.into_values().into())
}

/// TRV-803: the parent wins a name. Definitions of the link under the same name are then bound to the parent's:
/// kept as the reference has it (decision 25).
fn unite_definitions(base: Object, p: &Object, l: &Object) -> Object {
    let definitions = |object: &Object| keyword(object, "$defs").and_then(Value::as_object).cloned();
    let united = match (definitions(p), definitions(l)) {
        (Some(ours), Some(theirs)) if !ours.ptr_eq(&theirs) => laid_over(&theirs, &ours),
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => Object::new(),
    };
    if united.is_empty() {
        without_key(&base, "$defs")
    } else {
        with_key(&base, "$defs", united.into())
    }
}

fn type_names(keyword: &Value) -> Vec<&JsString> {
    match keyword {
        Value::String(name) => vec![name],
        Value::Array(names) => names
            .elements()
            .filter_map(|(_, name)| match name {
                Value::String(name) => Some(name),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// `None` when no value has both types.
fn intersection<'n>(a: &'n JsString, b: &'n JsString) -> Option<&'n JsString> {
    let fabric = |name: &JsString| name.as_bytes().starts_with(b"Fabric");
    match () {
        () if a == b => Some(a),
        () if *a == "number" && *b == "integer" => Some(b),
        () if *a == "integer" && *b == "number" => Some(a),
        () if *a == "object" && fabric(b) => Some(b),
        () if *b == "object" && fabric(a) => Some(a),
        () => None,
    }
}

/// Row 7.
fn disjoint(a: &Value, b: &Value) -> bool {
    let (a, b) = (type_names(a), type_names(b));
    let unknown = a.iter().chain(&b).any(|name| **name == "unknown");
    !unknown && !a.iter().any(|a| b.iter().any(|b| intersection(a, b).is_some()))
}

/// TRV-802: `None` unless some pair is a proper subtype pair.
fn narrower_type(a: &Value, b: &Value) -> Option<Value> {
    let (a, b) = (type_names(a), type_names(b));
    let pairs = || {
        a.iter()
            .flat_map(|a| b.iter().filter_map(move |b| Some((*a, *b, intersection(a, b)?))))
    };
    if !pairs().any(|(a, b, _)| a != b) {
        return None;
    }
    let mut names: Vec<&JsString> = pairs().map(|(_, _, common)| common).collect();
    names.sort();
    names.dedup();
    let mut names: Vec<Value> = names
        .into_iter()
        .map(|name| Value::String(name.clone()))
        .collect();
    Some(if names.len() == 1 {
        names.remove(0)
    } else {
        names.into()
    })
}
