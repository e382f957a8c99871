//! Links as they are stored (TRV-202, 203, §16): recognising one, and reading its payload against the document it
//! is stored in. Malformed payloads are told apart here and nowhere else.

use super::place::DocName;
use super::schema::Schema;
use super::source::{DeadEnd, DocPath};
use super::tracker::value_segment;
use crate::ids::{EntityId, SpaceId};
use crate::js_string::JsString;
use crate::scope_key::Scope;
use crate::value::{Array, Object, Slot, SlotRef, Value};

/// TRV-202: the payload of a stored link; `None` for every other value.
pub(super) fn link_payload(value: &Value) -> Option<&Value> {
    let Value::Object(envelope) = value else {
        return None;
    };
    if envelope.len() != 1 {
        return None;
    }
    match envelope.get("/")? {
        Value::Object(inside) => inside.get("link@1"),
        // An array with a key `link@1` does not survive storage.
        _ => None,
    }
}

/// A link's schema, as far as it can be used.
#[derive(Clone, Debug)]
pub(super) enum LinkSchema {
    Absent,
    Present(Schema),
    /// Neither boolean nor object: `false` for this link.
    Malformed,
}

/// A stored link with its target spelled out.
#[derive(Clone, Debug)]
pub(super) struct ParsedLink {
    pub(super) target: DocName,
    /// Document-rooted.
    pub(super) path: DocPath,
    pub(super) schema: LinkSchema,
}

/// True for a link that writes go through.
pub(super) fn is_redirect(payload: &Value) -> bool {
    payload.member("overwrite").and_then(Value::as_str) == Some("redirect")
}

/// TRV-203: reads a payload found in `base`.
pub(super) fn parse(payload: &Value, base: &DocName) -> Result<ParsedLink, DeadEnd> {
    let malformed = |field| DeadEnd::MalformedLink { field };
    let fields = match payload {
        Value::Object(fields) => Some(fields),
        Value::Null | Value::Undefined => return Err(malformed("payload")),
        // A number, a text, an array: no field is found, so the link names its own document's root.
        _ => None,
    };
    let field = |name: &str| {
        fields
            .and_then(|fields| fields.get(name))
            .filter(|v| !v.is_undefined())
    };
    let text = |name: &'static str| match field(name) {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => text.as_str().map(Some).ok_or(malformed(name)),
        Some(_) => Err(malformed(name)),
    };
    let id = text("id")?.map_or_else(|| base.id.clone(), EntityId::from);
    let space = text("space")?.map_or_else(|| base.space.clone(), SpaceId::from);
    let scope = match field("scope") {
        None => base.scope,
        Some(Value::String(name)) if *name == "inherit" => base.scope,
        Some(Value::String(name)) => name
            .as_str()
            .and_then(Scope::from_name)
            .ok_or(malformed("scope"))?,
        Some(_) => return Err(malformed("scope")),
    };
    let path = match field("path") {
        None => vec![value_segment()],
        Some(Value::Array(segments)) => {
            let rest = segments.slots().map(|slot| match slot {
                SlotRef::Value(Value::String(text)) => Ok(text.clone()),
                SlotRef::Value(Value::Number(n)) => Ok(number_text(*n)),
                SlotRef::Value(_) | SlotRef::Holes(_) => Err(malformed("path")),
            });
            std::iter::once(Ok(value_segment()))
                .chain(rest)
                .collect::<Result<_, _>>()?
        }
        Some(_) => return Err(malformed("path")),
    };
    let schema = match field("schema") {
        None => LinkSchema::Absent,
        Some(schema @ (Value::Bool(_) | Value::Object(_))) => LinkSchema::Present(Schema::of(schema)),
        Some(_) => LinkSchema::Malformed,
    };
    let target = DocName { space, id, scope };
    Ok(ParsedLink { target, path, schema })
}

/// A number as a path segment (ECMAScript `String(n)`).
fn number_text(n: f64) -> JsString {
    if n.is_finite() {
        ryu_js::Buffer::new().format_finite(n).into()
    } else {
        n.to_string().replace("inf", "Infinity").into()
    }
}

/// What a raw read of a path finds (TRV-201).
#[derive(Clone, Debug)]
pub(super) enum Raw {
    Found(Value),
    /// Only the last segment is missing.
    Undefined,
    /// This segment could not be looked up: its parent is undefined.
    Missing(usize),
    /// A segment applies to `null` or a scalar.
    Blocked,
}

/// TRV-201: own keys only; no links are followed.
pub(super) fn raw_read(root: &Value, path: &[JsString]) -> Raw {
    let mut node = root.clone();
    for (k, segment) in path.iter().enumerate() {
        let next = match &node {
            Value::Undefined => return Raw::Missing(k),
            Value::Object(object) => object.get_key(segment).cloned(),
            Value::Array(array) => own_member(array, segment),
            Value::Special(_) | Value::Bytes(_) => None,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::BigInt(_)
            | Value::Symbol(_) => return Raw::Blocked,
        };
        node = next.unwrap_or(Value::Undefined);
    }
    if node.is_undefined() {
        Raw::Undefined
    } else {
        Raw::Found(node)
    }
}

/// An own member of an array: an element by canonical index, or `length`.
pub(super) fn own_member(array: &Array, segment: &JsString) -> Option<Value> {
    if *segment == "length" {
        return Some(Value::Number(array.len() as f64));
    }
    array
        .get(crate::value::index_rank(segment.as_bytes())? as usize)
        .cloned()
}

/// The element with every link in it naming its target in full, as it was meant where it is stored: the content
/// behind a pseudo document's id. Recursion follows the nesting of a stored value, at most 2,048 levels (WIRE-312).
pub(super) fn with_absolute_links(element: &Value, base: &DocName) -> Value {
    if let Some(payload) = link_payload(element) {
        let Ok(link) = parse(payload, base) else {
            return element.clone();
        };
        let mut fields = payload.as_object().cloned().unwrap_or_default();
        fields.insert("id", &link.target.id);
        fields.insert("space", &link.target.space);
        fields.insert("scope", link.target.scope.as_str());
        let path: Vec<Value> = link.path[1..].iter().cloned().map(Value::String).collect();
        fields.insert("path", path);
        let inside = Object::from_entries(vec![("link@1".into(), fields.into())]);
        return Object::from_entries(vec![("/".into(), inside.into())]).into();
    }
    match element {
        Value::Object(object) => object
            .iter()
            .map(|(key, member)| (key.clone(), with_absolute_links(member, base)))
            .collect::<Object>()
            .into(),
        Value::Array(array) => {
            let slots = array
                .slots()
                .map(|slot| match slot {
                    SlotRef::Value(v) => Slot::Value(with_absolute_links(v, base)),
                    SlotRef::Holes(n) => Slot::Holes(n),
                })
                .collect();
            Array::from_slots(slots).map_or_else(|| element.clone(), Value::Array)
        }
        _ => element.clone(),
    }
}
