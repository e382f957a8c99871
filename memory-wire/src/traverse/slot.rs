//! Links as they are stored (TRV-202, 203, §16): recognising one, and reading its payload against the document it
//! is stored in.

use super::place::DocName;
use super::schema::Schema;
use super::source::{DeadEnd, DocPath};
use super::tracker::value_segment;
use crate::js_string::JsString;
use crate::link::{self, LinkRef, LinkScope, Regime};
use crate::value::{Array, Object, Slot, SlotRef, Value};

/// TRV-202: the payload of a stored link; `None` for every other value. Stored data is in the legacy regime.
pub(super) fn link_payload(value: &Value) -> Option<&Value> {
    match link::link_payload(value, Regime::Legacy)? {
        LinkRef::Payload(payload) => Some(payload),
        LinkRef::Object(_) => None,
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
    let fields = LinkRef::Payload(payload).read().ok_or(DeadEnd::MalformedLink)?;
    let scope = match fields.scope {
        Some(LinkScope::Of(scope)) => scope,
        Some(LinkScope::Inherit) | None => base.scope,
    };
    let target = DocName {
        space: fields.space.unwrap_or_else(|| base.space.clone()),
        id: fields.id.unwrap_or_else(|| base.id.clone()),
        scope,
    };
    let path = std::iter::once(value_segment())
        .chain(fields.path.into_iter().map(JsString::from))
        .collect();
    let schema = match fields.schema {
        None => LinkSchema::Absent,
        Some(schema @ (Value::Bool(_) | Value::Object(_))) => LinkSchema::Present(Schema::of(&schema)),
        Some(_) => LinkSchema::Malformed,
    };
    Ok(ParsedLink { target, path, schema })
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
