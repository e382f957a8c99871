//! Choosing the handle option of a union for a known value (TRV-1214): here, and only here, `const` and `enum`
//! count.

use std::cell::{Cell, RefCell};

use super::combine::combine;
use super::deep::{self, Deep};
use super::narrow::narrow_item;
use super::schema::{STEP_LIMIT, Schema, SchemaPool, entries_of_as_cell, size, without_key};
use super::slot;
use super::type_check::{MAX_NESTED_OPTIONS, MAX_OPTIONS_TRIED, branch_may_match};
use super::{refs, walk};
use crate::equality::value_equal;
use crate::value::Value;

/// The first option with `asCell`, combined over the rest, that matches `value` concretely.
pub fn handle_branch(pool: &mut SchemaPool, schema: &Schema, value: &Value) -> Option<Schema> {
    if value.is_undefined() || slot::link_payload(value).is_some() {
        return None;
    }
    let object = schema.value().as_object()?;
    for union in ["anyOf", "oneOf"] {
        let Some(Value::Array(options)) = object.get(union) else {
            continue;
        };
        let rest = Schema::of(&without_key(object, union).into());
        for (_, option) in options.elements() {
            if entries_of_as_cell(option).is_none() {
                continue;
            }
            let option = combine(pool, Some(&rest), Some(&Schema::of(option)))?;
            if matches_concretely(pool, &option, value) {
                return Some(option);
            }
        }
    }
    None
}

/// The prefilter, `const`, `enum`, then declared properties, slots, items and nested unions.
pub(super) fn matches_concretely(pool: &mut SchemaPool, schema: &Schema, value: &Value) -> bool {
    // A value brings one step for each of its parts; unions may multiply them.
    let parts = size(value, STEP_LIMIT) as u64;
    let left = Cell::new(parts + MAX_OPTIONS_TRIED);
    let matching = Matching {
        pool: RefCell::new(pool),
        left: &left,
    };
    deep::run(MAX_NESTED_OPTIONS, |deep| {
        matches(&matching, deep, schema.clone(), value.clone())
    })
    .unwrap_or(false)
}

struct Matching<'p> {
    pool: RefCell<&'p mut SchemaPool>,
    /// Steps before the rest counts as excluded.
    left: &'p Cell<u64>,
}

async fn matches<'f>(matching: &'f Matching<'_>, deep: Deep<'f>, schema: Schema, value: Value) -> bool {
    let pool = &matching.pool;
    matching.left.set(matching.left.get().saturating_sub(1));
    if matching.left.get() == 0 {
        return false;
    }
    let Some(resolved) = refs::resolve_ref(&mut pool.borrow_mut(), &schema) else {
        return true;
    };
    let bare = match resolved.value() {
        Value::Bool(everything) => return *everything,
        Value::Object(object) => Schema::of(&without_key(object, "asCell").into()),
        _ => return true,
    };
    if slot::link_payload(&value).is_some() {
        return true;
    }
    if !branch_may_match(&mut pool.borrow_mut(), &bare, &value) {
        return false;
    }
    if bare
        .keyword("const")
        .is_some_and(|constant| !value_equal(constant, &value))
    {
        return false;
    }
    if let Some(Value::Array(allowed)) = bare.keyword("enum")
        && !allowed.elements().any(|(_, one)| value_equal(one, &value))
    {
        return false;
    }
    for combinator in [super::schema::Combinator::Any, super::schema::Combinator::One] {
        let keyword = if combinator == super::schema::Combinator::Any {
            "anyOf"
        } else {
            "oneOf"
        };
        if bare.keyword(keyword).is_none() {
            continue;
        }
        let options = walk::options(&mut pool.borrow_mut(), &bare, combinator);
        let mut any = false;
        for option in options.iter().flat_map(|options| options.iter()) {
            any = any
                || deep
                    .call(matches(matching, deep.clone(), option.clone(), value.clone()))
                    .await;
        }
        return any;
    }
    match &value {
        Value::Object(object) => {
            let Some(Value::Object(properties)) = bare.keyword("properties") else {
                return true;
            };
            for (name, property) in properties.iter() {
                let Some(member) = object.get_key(name) else {
                    continue;
                };
                let property = with_definitions(&bare, property);
                if !deep
                    .call(matches(matching, deep.clone(), property, member.clone()))
                    .await
                {
                    return false;
                }
            }
            true
        }
        Value::Array(array) if bare.keyword("items").is_some() || bare.keyword("prefixItems").is_some() => {
            for (index, element) in array.elements() {
                let item = narrow_item(&mut pool.borrow_mut(), &bare, index);
                if !deep
                    .call(matches(matching, deep.clone(), item, element.clone()))
                    .await
                {
                    return false;
                }
            }
            true
        }
        _ => true,
    }
}

/// A subschema with the definitions that are in force where it stands.
pub(super) fn with_definitions(around: &Schema, inner: &Value) -> Schema {
    match (inner, around.keyword("$defs")) {
        (Value::Object(object), Some(definitions)) if !object.contains_key("$defs") => {
            Schema::of(&super::schema::with_key(object, "$defs", definitions.clone()).into())
        }
        _ => Schema::of(inner),
    }
}
