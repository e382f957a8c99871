//! Arrays and objects under a schema (TRV-508, 509, 511).

use std::sync::Arc;

use smallvec::SmallVec;

use super::build::Build;
use super::hop::Last;
use super::memo::Failure;
use super::narrow::{self, Marking, narrow_item, narrow_step};
use super::refs;
use super::schema::{ByAddress, Schema, SchemaPool};
use super::slot;
use super::source::{Dep, TraverseError};
use super::type_check::{TypeName, Verdict, type_check};
use super::walk::scalar_outcome;
use super::walker::{Mode, Node, Position, Run, Selected, Walker};
use crate::js_string::JsString;
use crate::value::{Array, Object, SlotRef, Value, key_order};

impl<'w, 'a, B: Build> Run<'w, 'a, B> {
    /// TRV-509, after the type check.
    pub(super) async fn object(
        &self,
        node: &Node,
        object: &Object,
        schema: &Schema,
        position: &Position,
    ) -> Selected<B> {
        let walker = self.walker;
        let guard = (node.place, Some(ByAddress(schema.clone())));
        if let Some(open) = walker.open.borrow().get(&guard) {
            return Ok(Ok(open.clone()));
        }
        let at = walker.build_addr(position.place);
        let out = walker.build.borrow_mut().object(at);
        walker.open.borrow_mut().insert(guard.clone(), out.clone());
        let filled = self.fill_object(node, object, schema, &out).await;
        walker.open.borrow_mut().remove(&guard);
        Ok(filled?.map(|()| out))
    }

    async fn fill_object(
        &self,
        node: &Node,
        object: &Object,
        schema: &Schema,
        out: &B::Out,
    ) -> Result<Result<(), Failure>, TraverseError> {
        let walker = self.walker;
        let mut absent: SmallVec<[JsString; 4]> = SmallVec::new();
        for (key, value) in object.iter() {
            let child = narrow_step(&mut walker.pool.borrow_mut(), schema, key, Marking::Marked);
            if narrow::is_marker(&child) {
                // A query counts what it does not descend into as present (TRV §13).
                if walker.mode == Mode::Read {
                    absent.push(key.clone());
                }
                continue;
            }
            if !walker.building()
                && let Some(outcome) = scalar_outcome(&mut walker.pool.borrow_mut(), &child, value)
            {
                if outcome.is_err() {
                    absent.push(key.clone());
                }
                continue;
            }
            let slot = Node {
                place: walker.child(node.place, key),
                value: value.clone(),
            };
            let handle = child.is_handle();
            let selected = if walker.mode == Mode::Read && handle && slot::link_payload(value).is_none() {
                Ok(walker.handle_at(slot.place, &child))
            } else {
                let position = Position {
                    place: slot.place,
                    schema: walker.building().then(|| child.clone()),
                };
                let deeper = walker.inside_handles.get() + u32::from(handle);
                let around = walker.inside_handles.replace(deeper);
                let selected = self
                    .deep
                    .call(self.clone().walk(slot, child, position, None))
                    .await;
                walker.inside_handles.set(around);
                selected?
            };
            match selected {
                Ok(member) => walker.build.borrow_mut().insert(out, key, member),
                Err(_) => absent.push(key.clone()),
            }
        }
        walker.finish_object(node, object, schema, out, absent)
    }

    /// TRV-508, after the type check.
    pub(super) async fn array(
        &self,
        node: &Node,
        array: &Array,
        unresolved: &Schema,
        schema: &Schema,
        position: &Position,
    ) -> Selected<B> {
        let walker = self.walker;
        let guard = (node.place, Some(ByAddress(unresolved.clone())));
        if let Some(open) = walker.open.borrow().get(&guard) {
            return Ok(Ok(open.clone()));
        }
        let at = walker.build_addr(position.place);
        let out = walker.build.borrow_mut().array(at);
        walker.open.borrow_mut().insert(guard.clone(), out.clone());
        let filled = self.fill_array(node, array, schema, &out).await;
        walker.open.borrow_mut().remove(&guard);
        Ok(filled?.map(|()| out))
    }

    /// Every element is visited, also after one failed.
    async fn fill_array(
        &self,
        node: &Node,
        array: &Array,
        schema: &Schema,
        out: &B::Out,
    ) -> Result<Result<(), Failure>, TraverseError> {
        let walker = self.walker;
        let mut failed = false;
        let mut index = 0usize;
        for slot in array.slots() {
            let value = match slot {
                SlotRef::Value(value) => value,
                SlotRef::Holes(n) => {
                    index += n as usize;
                    if walker.building() {
                        (0..n).for_each(|_| walker.build.borrow_mut().push(out, None));
                    }
                    continue;
                }
            };
            let item = narrow_item(&mut walker.pool.borrow_mut(), schema, index);
            let plain = match walker.building() {
                true => None,
                false => {
                    scalar_outcome(&mut walker.pool.borrow_mut(), &item, value).map(|outcome| outcome.is_ok())
                }
            };
            let selected = match plain {
                Some(true) => Ok(walker.leaf(value)),
                Some(false) => Err(Failure::Value),
                None => self.element(node, index, value, &item).await?,
            };
            let element = match selected {
                Ok(element) => Some(element),
                Err(_) => walker.stand_in(&item),
            };
            match element {
                Some(element) => walker.build.borrow_mut().push(out, Some(element)),
                None => failed = true,
            }
            index += 1;
        }
        Ok(if failed { Err(Failure::Array) } else { Ok(()) })
    }

    async fn element(&self, parent: &Node, index: usize, value: &Value, item: &Schema) -> Selected<B> {
        let walker = self.walker;
        let slot = Node {
            place: walker.child(parent.place, &JsString::from(index.to_string())),
            value: value.clone(),
        };
        walker.note(slot.place, Dep::Shallow);
        let here = walker.entered.get();
        let handle = item.is_handle();
        let mut schema = item.clone();
        let mut reached = slot.clone();
        let mut crossed = false;
        if slot::link_payload(value).is_some() {
            crossed = true;
            match walker.hop(&slot, &[], Some(item))? {
                None => {
                    walker.note(slot.place, Dep::Deep);
                    reached.value = Value::Undefined;
                }
                Some(hop) => {
                    let elsewhere = !walker.same_id(hop.target, walker.doc_of(slot.place));
                    if walker.tracks() && walker.hop_covered(&hop)? && elsewhere {
                        walker.note(slot.place, Dep::Deep);
                        return Ok(Ok(walker.leaf(&Value::Null)));
                    }
                    let end =
                        walker.path_walk(slot.clone(), &[], Some(item.clone()), Last::Redirect, Some(hop))?;
                    let end = match slot::link_payload(&end.node.value) {
                        Some(_) => walker.follow_one(end.node, end.schema)?,
                        None => end,
                    };
                    schema = end.schema.unwrap_or_else(Schema::everything);
                    reached = end.node;
                }
            }
        } else if matches!(value, Value::Array(_) | Value::Object(_)) && !handle {
            // The element is a document of its own: links in it that lack an id name the element (TRV-508).
            walker.note(slot.place, Dep::Deep);
            let mut memo = walker.memo.borrow_mut();
            let doc = memo.places.inline(slot.place, value);
            reached.place = memo.places.value(doc);
        }
        if walker.mode == Mode::Read && handle {
            return match crossed {
                true => walker.handle_over(&reached, &schema),
                false => Ok(Ok(walker.handle_at(reached.place, item))),
            };
        }
        let position = Position {
            place: reached.place,
            schema: walker.building().then(|| schema.clone()),
        };
        let selected = self
            .deep
            .call(self.clone().walk(reached, schema, position, None))
            .await;
        walker.entered.set(here);
        selected
    }
}

impl<B: Build> Walker<'_, B> {
    /// What a failed element becomes, when its schema admits a stand-in.
    fn stand_in(&self, item: &Schema) -> Option<B::Out> {
        let admits = |ty| type_check(&mut self.pool.borrow_mut(), item, ty) != Verdict::No;
        if admits(TypeName::Undefined) {
            return Some(self.leaf(&Value::Undefined));
        }
        admits(TypeName::Null).then(|| self.leaf(&Value::Null))
    }

    /// Defaults, then `required` (TRV-509). `absent` are the stored keys that do not count.
    fn finish_object(
        &self,
        node: &Node,
        object: &Object,
        schema: &Schema,
        out: &B::Out,
        absent: SmallVec<[JsString; 4]>,
    ) -> Result<Result<(), Failure>, TraverseError> {
        let required = schema
            .keyword("required")
            .and_then(Value::as_array)
            .filter(|names| !names.is_empty());
        if !self.building() && required.is_none() {
            return Ok(Ok(()));
        }
        // `absent` and `defaults` are in the canonical order of keys, as the objects are that they were made from.
        let is_absent = |name: &JsString| absent.binary_search_by(|known| key_order(known, name)).is_ok();
        let present = |name: &JsString| object.get_key(name).is_some() && !is_absent(name);
        let defaults = defaults(&mut self.pool.borrow_mut(), schema);
        if self.building() {
            for (name, property) in defaults.iter().filter(|(name, _)| !present(name)) {
                let value = match property.keyword("default") {
                    // The key appears, without a value (TRV-1215).
                    None | Some(Value::Null) => self.leaf(&Value::Undefined),
                    Some(_) => self.shape_default(property, self.child(node.place, name))?,
                };
                self.build.borrow_mut().insert(out, name, value);
            }
        }
        let by_default = |name: &JsString| {
            let named = defaults
                .binary_search_by(|(known, _)| key_order(known, name))
                .ok();
            named.is_some_and(|at| !matches!(defaults[at].1.keyword("default"), None | Some(Value::Null)))
        };
        let missing = required
            .into_iter()
            .flat_map(|names| names.elements())
            .any(|(_, name)| match name {
                Value::String(name) => !present(name) && !by_default(name),
                _ => false,
            });
        Ok(if missing { Err(Failure::Object) } else { Ok(()) })
    }
}

/// The declared properties that have a default, with their resolved schemas.
fn defaults(pool: &mut SchemaPool, schema: &Schema) -> Arc<[(JsString, Schema)]> {
    let key = ByAddress(schema.clone());
    if let Some(known) = pool.defaults.get(&key) {
        return Arc::clone(known);
    }
    let misses = pool.misses;
    let mut found = Vec::new();
    if let Some(Value::Object(properties)) = schema.keyword("properties") {
        for (name, property) in properties.iter() {
            if property.member("default").is_none() && property.member("$ref").is_none() {
                continue;
            }
            let definitions = schema.keyword("$defs").cloned();
            let property = match (property, definitions) {
                (Value::Object(own), Some(definitions)) if !own.contains_key("$defs") => {
                    pool.intern(&super::schema::with_key(own, "$defs", definitions).into())
                }
                (own, _) => pool.intern(own),
            };
            if let Some(resolved) = refs::resolve_ref(pool, &property)
                && resolved.keyword("default").is_some()
            {
                found.push((name.clone(), resolved));
            }
        }
    }
    let found: Arc<[(JsString, Schema)]> = found.into();
    pool.remember(misses, |pool| &mut pool.defaults, key, &found);
    found
}
