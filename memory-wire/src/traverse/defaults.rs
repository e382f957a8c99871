//! Shaping defaults (TRV-1215): a default is a value that its own schema shapes — declared defaults fill in,
//! required containers appear, handle members become handles. Queries only learn that there is one.

use rustc_hash::FxHashSet;

use super::build::{Build, Handle};
use super::deep::{self, Deep};
use super::handles;
use super::memo::Outcome;
use super::narrow::narrow_item;
use super::place::PlaceIx;
use super::refs;
use super::schema::{Schema, entries_of_as_cell};
use super::source::{Link, TraverseError};
use super::walker::{MAX_OPEN_PLACES, Walker};
use crate::js_string::JsString;
use crate::value::{Array, Object, SlotRef, Value};

impl<B: Build> Walker<'_, B> {
    /// The default of a visited position.
    pub(super) fn default_at(
        &self,
        schema: &Schema,
        place: PlaceIx,
    ) -> Result<Outcome<B::Out>, TraverseError> {
        if !self.building() {
            return Ok(Ok(self.leaf(&Value::Undefined)));
        }
        Ok(Ok(self.shape_default(schema, place)?))
    }

    /// The shaped default of a schema that has one.
    pub(super) fn shape_default(&self, schema: &Schema, place: PlaceIx) -> Result<B::Out, TraverseError> {
        let default = schema.keyword("default").cloned().unwrap_or(Value::Undefined);
        deep::run(MAX_OPEN_PLACES, |deep| {
            self.shape(deep, schema.clone(), default, place)
        })
        .unwrap_or(Err(TraverseError::TooDeep {
            limit: MAX_OPEN_PLACES,
        }))
    }

    async fn shape<'f>(
        &'f self,
        deep: Deep<'f>,
        schema: Schema,
        value: Value,
        place: PlaceIx,
    ) -> Result<B::Out, TraverseError> {
        let Some(schema) = refs::resolve_ref(&mut self.pool.borrow_mut(), &schema) else {
            return Ok(self.leaf(&value));
        };
        if entries_of_as_cell(schema.value()).is_some() {
            let unwrapped = handles::unwrap(&mut self.pool.borrow_mut(), &schema);
            if let Some((kind, rest)) = unwrapped {
                let link = Link {
                    at: self.addr(place),
                    schema: Some(rest),
                };
                return Ok(self.build.borrow_mut().handle(Handle { kind, link }));
            }
        }
        let ty = schema.keyword("type").and_then(Value::as_str);
        match (&value, ty) {
            (Value::Object(object), Some("object")) => self.shape_object(&deep, &schema, object, place).await,
            (Value::Array(array), Some("array")) if schema.keyword("items").is_some() => {
                self.shape_array(&deep, &schema, array, place).await
            }
            (Value::Object(_) | Value::Array(_), _) => Ok(self.whole(&value, place)),
            (leaf, _) => Ok(self.leaf(leaf)),
        }
    }

    async fn shape_object<'f>(
        &'f self,
        deep: &Deep<'f>,
        schema: &Schema,
        object: &Object,
        place: PlaceIx,
    ) -> Result<B::Out, TraverseError> {
        let at = self.addr(place);
        let out = self.build.borrow_mut().object(at);
        let empty = Object::new();
        let properties = schema
            .keyword("properties")
            .and_then(Value::as_object)
            .unwrap_or(&empty);
        let required: FxHashSet<&JsString> = schema
            .keyword("required")
            .and_then(Value::as_array)
            .into_iter()
            .flat_map(Array::elements)
            .filter_map(|(_, name)| match name {
                Value::String(name) => Some(name),
                _ => None,
            })
            .collect();
        for (name, _) in properties.iter() {
            let member =
                super::narrow::narrow(&mut self.pool.borrow_mut(), schema, std::slice::from_ref(name));
            let Some(resolved) = refs::resolve_ref(&mut self.pool.borrow_mut(), &member) else {
                continue;
            };
            let value = match (object.get_key(name), resolved.keyword("default")) {
                (Some(value), _) => value.clone(),
                (None, Some(default)) => default.clone(),
                (None, None) if entries_of_as_cell(resolved.value()).is_some() => Value::Undefined,
                (None, None) if required.contains(name) => {
                    match resolved.keyword("type").and_then(Value::as_str) {
                        Some("object") => Object::new().into(),
                        Some("array") => Array::new().into(),
                        _ => continue,
                    }
                }
                (None, None) => continue,
            };
            let place = self.child(place, name);
            let shaped = deep.call(self.shape(deep.clone(), member, value, place)).await?;
            self.build.borrow_mut().insert(&out, name, shaped);
        }
        let additional = schema
            .keyword("additionalProperties")
            .filter(|a| !matches!(a, Value::Bool(false)));
        if let Some(additional) = additional {
            for (name, value) in object
                .iter()
                .filter(|(name, _)| properties.get_key(name).is_none())
            {
                let member = match additional {
                    Value::Bool(_) => Schema::everything(),
                    _ => {
                        super::narrow::narrow(&mut self.pool.borrow_mut(), schema, std::slice::from_ref(name))
                    }
                };
                let place = self.child(place, name);
                let shaped = deep
                    .call(self.shape(deep.clone(), member, value.clone(), place))
                    .await?;
                self.build.borrow_mut().insert(&out, name, shaped);
            }
        }
        Ok(out)
    }

    async fn shape_array<'f>(
        &'f self,
        deep: &Deep<'f>,
        schema: &Schema,
        array: &Array,
        place: PlaceIx,
    ) -> Result<B::Out, TraverseError> {
        let slots = schema
            .keyword("prefixItems")
            .and_then(Value::as_array)
            .map_or(0, Array::len);
        if matches!(schema.keyword("items"), Some(Value::Bool(false))) && array.len() > slots {
            return Err(TraverseError::Default(
                "Array schema error: items: false conflicts with non-empty default\n\
                 help: either allow items with valid schema, or use empty array default"
                    .into(),
            ));
        }
        let at = self.addr(place);
        let out = self.build.borrow_mut().array(at);
        let mut index = 0usize;
        for slot in array.slots() {
            match slot {
                SlotRef::Value(value) => {
                    let item = narrow_item(&mut self.pool.borrow_mut(), schema, index);
                    let place = self.child(place, &JsString::from(index.to_string()));
                    let shaped = deep
                        .call(self.shape(deep.clone(), item, value.clone(), place))
                        .await?;
                    self.build.borrow_mut().push(&out, Some(shaped));
                    index += 1;
                }
                SlotRef::Holes(n) => {
                    (0..n).for_each(|_| self.build.borrow_mut().push(&out, None));
                    index += n as usize;
                }
            }
        }
        Ok(out)
    }

    /// A default that no typed schema shapes, as it is: only its top stands for a place.
    fn whole(&self, value: &Value, place: PlaceIx) -> B::Out {
        let at = self.addr(place);
        let mut build = self.build.borrow_mut();
        match value {
            Value::Object(object) => {
                let out = build.object(at);
                for (name, member) in object.iter() {
                    let member = build.leaf(member);
                    build.insert(&out, name, member);
                }
                out
            }
            Value::Array(array) => {
                let out = build.array(at);
                for slot in array.slots() {
                    match slot {
                        SlotRef::Value(member) => {
                            let member = build.leaf(member);
                            build.push(&out, Some(member));
                        }
                        SlotRef::Holes(n) => (0..n).for_each(|_| build.push(&out, None)),
                    }
                }
                out
            }
            leaf => build.leaf(leaf),
        }
    }
}
