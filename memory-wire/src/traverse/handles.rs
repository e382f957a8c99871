//! Turning a position into a handle (TRV-1003, 1212): its kind, the schema it carries on, and where it leads when
//! a scope cap keeps its target out.

use super::combine;
use super::schema::{Schema, SchemaPool, entries_of_as_cell, first_kind, with_key, without_key};
use super::source::Addr;
use crate::ids::EntityId;
use crate::js_string::JsString;
use crate::scope_key::Scope;
use crate::value::{Array, Object, Slot, SlotRef, Value};

/// The kind of the first `asCell` entry, and the schema without that entry. `None` when the schema has no entries
/// of its own: a union of handles has no kind before its value is known (TRV-1214).
pub(super) fn unwrap(pool: &mut SchemaPool, schema: &Schema) -> Option<(JsString, Schema)> {
    let kind = first_kind(schema.value())?.clone();
    let object = schema.value().as_object()?;
    let rest: Vec<Value> = entries_of_as_cell(schema.value())?
        .elements()
        .skip(1)
        .map(|(_, entry)| entry.clone())
        .collect();
    let object = if rest.is_empty() {
        without_key(object, "asCell")
    } else {
        with_key(object, "asCell", rest.into())
    };
    Some((kind, pool.intern(&Value::Object(object))))
}

/// The schema of a handle over a link: the reader's, combined with the link's own on top of itself.
pub(super) fn over_link(pool: &mut SchemaPool, readers: &Schema, links: Option<&Schema>) -> Option<Schema> {
    let carried = combine::combine(pool, Some(readers), links);
    combine::combine(pool, Some(readers), carried.as_ref())
}

/// TRV-1213: the schema of the handle that a union's matches were merged into: the compound schema, `asCell`
/// stripped from its members, with the handle's own remaining entries.
pub(super) fn compound_schema(compound: &Schema, own: Option<Value>) -> Schema {
    let Value::Object(object) = compound.value() else {
        return compound.clone();
    };
    let mut stripped = object.clone();
    for combinator in ["anyOf", "oneOf", "allOf"] {
        if let Some(Value::Array(members)) = object.get(combinator) {
            let members = members
                .slots()
                .map(|slot| match slot {
                    SlotRef::Value(Value::Object(member)) => {
                        Slot::Value(without_key(member, "asCell").into())
                    }
                    SlotRef::Value(member) => Slot::Value(member.clone()),
                    SlotRef::Holes(n) => Slot::Holes(n),
                })
                .collect();
            if let Some(members) = Array::from_slots(members) {
                stripped.insert(combinator, Value::Array(members));
            }
        }
    }
    let stripped = match own {
        Some(entries) => with_key(&stripped, "asCell", entries),
        None => without_key(&stripped, "asCell"),
    };
    Schema::of(&Value::Object(stripped))
}

/// Where a handle leads whose link the cap keeps out: a document in place that holds nothing (TRV-1003).
pub(super) fn nowhere(link: &Addr, scope: Scope) -> Addr {
    let id = EntityId::inline(&Value::Undefined).unwrap_or_else(|_| EntityId::from("data:"));
    Addr {
        space: link.space.clone(),
        id,
        scope,
        path: vec![super::tracker::value_segment()],
    }
}

/// A schema object that an absent schema of a handle stands for.
pub(super) fn open_schema() -> Schema {
    Schema::of(&Value::Object(Object::new()))
}
