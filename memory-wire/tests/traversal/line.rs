//! Reading the notation of the vector lines: JSON with markers for what JSON lacks, documents, selectors.

use memory_wire::traverse::{DocKey, DocSource, Schema, Selector, SourceError};
use memory_wire::value::{Array, Object, Slot, Value};
use memory_wire::{EntityId, Scope, ScopeIdentity, ScopeKey, SpaceId};
use serde_json::Value as Json;
use std::collections::BTreeMap;

pub(crate) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => Value::Number(n.as_f64().unwrap()),
        Json::String(s) => Value::string(s.as_str()),
        Json::Array(items) => {
            let slots = items.iter().map(|item| match item.get("@hole") {
                Some(_) => Slot::Holes(1),
                None => Slot::Value(value(item)),
            });
            Value::Array(Array::from_slots(slots.collect()).unwrap())
        }
        Json::Object(object) => {
            if object.contains_key("@undefined") {
                return Value::Undefined;
            }
            if let Some(number) = object.get("@num") {
                return Value::Number(match number.as_str().unwrap() {
                    "NaN" => f64::NAN,
                    "Infinity" => f64::INFINITY,
                    "-Infinity" => f64::NEG_INFINITY,
                    "-0" => -0.0,
                    other => panic!("unknown number {other}"),
                });
            }
            object
                .iter()
                .map(|(key, member)| (key.as_str(), value(member)))
                .collect::<Object>()
                .into()
        }
    }
}

/// A schema that may be absent.
pub(crate) fn schema(json: Option<&Json>) -> Option<Schema> {
    let json = json?;
    if json.get("@absent").is_some() {
        return None;
    }
    Some(Schema::of(&value(json)))
}

/// A schema as comparable text: canonical order, so key order is irrelevant.
pub(crate) fn text(value: &Value) -> String {
    format!("{value:?}")
}

pub(crate) fn identity(json: &Json) -> ScopeIdentity {
    ScopeIdentity {
        principal: json["principal"].as_str().map(Into::into),
        session_id: json["sessionId"].as_str().map(Into::into),
    }
}

pub(crate) fn path(json: &Json) -> Vec<memory_wire::JsString> {
    json.as_array()
        .into_iter()
        .flatten()
        .map(|segment| segment.as_str().unwrap().into())
        .collect()
}

/// A selector whose path is document-rooted already.
pub(crate) fn selector(json: &Json) -> Selector {
    Selector::new(path(&json["path"]), schema(json.get("schema")))
}

pub(crate) fn selector_text(selector: &Selector) -> String {
    let schema = selector.schema.as_ref().map(|schema| text(schema.value()));
    format!(
        "{:?} {}",
        selector.path,
        schema.unwrap_or_else(|| "absent".into())
    )
}

/// The documents of a line, as a source.
pub(crate) struct Documents {
    pub(crate) documents: BTreeMap<DocKey, Value>,
}

impl Documents {
    pub(crate) fn of(json: &Json, space: &SpaceId, identity: &ScopeIdentity) -> Documents {
        let mut documents = BTreeMap::new();
        for (name, document) in json.as_object().into_iter().flatten() {
            let (id, scope) = match name.rsplit_once('@') {
                Some((id, scope)) => (id, Scope::from_name(scope).unwrap()),
                None => (name.as_str(), Scope::Space),
            };
            let Ok(scope_key) = ScopeKey::resolve(scope, identity) else {
                continue;
            };
            // A deleted document is listed as null.
            if !document.is_null() {
                documents.insert(
                    DocKey::new(space.clone(), scope_key, EntityId::from(id)),
                    value(document),
                );
            }
        }
        Documents { documents }
    }
}

impl DocSource for Documents {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        Ok(self.documents.get(key).cloned())
    }
}
