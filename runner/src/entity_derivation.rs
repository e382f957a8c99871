//! Ids that follow from causes (RUN-800…805): equal causes give equal ids in every process, so that client and
//! server name the same documents without asking each other.
//!
//! Called by pattern setup, runs and built-ins. A cause is a plain value; a place inside a cause is spelled by
//! [`place_cause`], which never contains a schema (RUN-803).

use std::cell::Cell;

use memory_wire::{EntityId, EventId, Object, Scope, SpaceId, Value, hash, value};
use rustc_hash::FxHashMap;
use smol_str::SmolStr;

use crate::error::RunnerError;
use crate::keys::{push_json_path, push_json_string};
use crate::link::Link;
use crate::value_write::WriteFrame;

/// RUN-800: the id that `cause` gives within `source` (extra members hashed beside the cause; usually empty).
pub fn create_ref(source: &Object, cause: Value) -> EntityId {
    let mut hashed = source.clone();
    hashed.insert("causal", cause);
    EntityId::from(format!("of:{}", hash::tagged_hash(&Value::Object(hashed))))
}

/// The id that `cause` gives with nothing beside it.
pub fn entity_for(cause: Value) -> EntityId {
    create_ref(&Object::new(), cause)
}

/// RUN-801: the `computed:` spelling of the same hash.
pub fn computed(id: &EntityId) -> EntityId {
    respelled(id, "computed")
}

/// The kindless `of:` spelling, which is what causes mention (RUN-802).
pub fn kindless(id: &EntityId) -> EntityId {
    respelled(id, "of")
}

fn respelled(id: &EntityId, scheme: &str) -> EntityId {
    match id.as_str().split_once(':') {
        Some(("of" | "computed", hash)) => EntityId::from(format!("{scheme}:{hash}")),
        Some(_) | None => id.clone(),
    }
}

/// How a cell contributes to a cause: as a link with its place, scope included, schema excluded.
pub fn place_cause(link: &Link) -> Value {
    value!({ "/": { "link@1": (place_payload(link)) } })
}

/// A place as `{path, id, space, scope}`.
pub fn place_payload(link: &Link) -> Value {
    value!({
        "path": (path_cause(link)),
        "id": (link.id.as_str()),
        "space": (link.space.as_str()),
        "scope": (link.scope.as_str()),
    })
}

/// How an entity id contributes to a cause: without scheme, so that a document's kind does not enter.
pub fn entity_cause(id: &EntityId) -> Value {
    let hash = id.as_str().split_once(':').map_or(id.as_str(), |(_, hash)| hash);
    value!({ "/": hash })
}

/// The spot an output goes to: `{space, id, path}`, kindless and without scope.
pub fn spot_cause(link: &Link) -> Value {
    value!({
        "space": (link.space.as_str()),
        "id": (kindless(&link.id).as_str()),
        "path": (path_cause(link)),
    })
}

fn path_cause(link: &Link) -> Value {
    Value::from(
        link.path
            .iter()
            .map(|segment| Value::from(segment.as_str()))
            .collect::<Vec<_>>(),
    )
}

// --- standing derivations (RUN-802) ----------------------------------------------------------------------------

/// Argument document of the piece at `result`; depends on the piece's scope.
pub fn argument_document(result: &Link) -> EntityId {
    entity_for(value!({ "type": "argument", "parent": (place_cause(result)) }))
}

/// Internal document `partial_cause` of the piece `result`; does not depend on its scope.
pub fn internal_document(result: &EntityId, partial_cause: &Value) -> EntityId {
    entity_for(
        value!({ "parent": (entity_cause(result)), "type": "internal", "cause": (partial_cause.clone()) }),
    )
}

/// Result document of a child piece whose output goes to `output`, the resolved redirect.
pub fn child_result(output: &Link) -> EntityId {
    entity_for(value!({ "resultFor": (spot_cause(output)) }))
}

/// A cell made inside a frame: `name` when the body gave one, else the frame's counter (handlers only).
pub fn frame_cell(frame: &Frame, name: Option<Value>) -> Result<EntityId, RunnerError> {
    let cause = match name {
        Some(name) => name,
        None => value!({ "count": (frame.next_unnamed()? as f64) }),
    };
    let mut source = Object::new();
    source.insert("frame", frame.cause.clone());
    Ok(create_ref(&source, cause))
}

/// A keyed element of a list anchored under `parent`.
pub fn keyed_element(parent: &Link, key: Value) -> EntityId {
    let mut source = Object::new();
    source.insert("id", key);
    create_ref(
        &source,
        value!({
            "parent": { "id": (parent.id.as_str()), "space": (parent.space.as_str()) },
            "path": (path_cause(parent)),
        }),
    )
}

/// An array element anchored by position in the frame's program order; `context` is the frame's cause, or
/// `{cell, binding}` for a result write.
pub fn anchored_element(parent: &Link, counter: u64, context: Value) -> EntityId {
    let mut source = Object::new();
    source.insert("id", counter as f64);
    create_ref(
        &source,
        value!({
            "parent": { "id": (parent.id.as_str()), "space": (parent.space.as_str()) },
            "path": (path_cause(parent)),
            "context": context,
        }),
    )
}

/// The anonymous space a body asks for: its ordinal within the frame.
pub fn anonymous_space(frame: &Frame, ordinal: u64) -> EntityId {
    let mut source = Object::new();
    source.insert("inSpace", ordinal as f64);
    create_ref(&source, frame.cause.clone())
}

/// Container of a list built-in (`map`, `filter`, `flatMap`): named from where its output goes, so that the
/// schemas of its inputs do not enter (RUN-803).
pub fn list_container(builtin: &str, parent: &EntityId, output: &Link) -> EntityId {
    let mut cause = Object::new();
    cause.insert(builtin, entity_cause(parent));
    cause.insert("outputSpot", spot_cause(output));
    entity_for(Value::Object(cause))
}

/// Child document of one list element.
pub fn list_element(container: &Link, element_key: &str) -> EntityId {
    entity_for(value!({ "map": (place_cause(container)), "elementKey": element_key }))
}

/// Result cell of a simple built-in (`ifElse`, `when`, `unless`, …).
pub fn builtin_result(name: &str, cause: Value) -> EntityId {
    let mut named = Object::new();
    named.insert(name, cause);
    entity_for(Value::Object(named))
}

/// Receipt of one handling: a redelivery collides with it.
pub fn receipt(frame: &Frame) -> EntityId {
    entity_for(value!({ "resultFor": (frame.cause.clone()) }))
}

/// Keys of list elements: the element's place and its occurrence among equal ones (RUN-902). `None` = a hole.
pub fn list_element_keys<'a>(elements: impl IntoIterator<Item = Option<&'a Link>>) -> Vec<Option<String>> {
    let mut seen: FxHashMap<(SpaceId, EntityId, Scope, crate::address::Path), u64> = FxHashMap::default();
    elements
        .into_iter()
        .map(|element| {
            let link = element?;
            let place = (link.space.clone(), link.id.clone(), link.scope, link.path.clone());
            let occurrence = seen.entry(place).or_default();
            let mut key = String::from("[");
            for part in [link.space.as_str(), link.id.as_str(), link.scope.as_str()] {
                push_json_string(&mut key, part);
                key.push(',');
            }
            push_json_path(&mut key, &link.path);
            key.push_str(&format!(",{occurrence}]"));
            *occurrence += 1;
            Some(key)
        })
        .collect()
}

/// RUN-904: hash of a fetch's inputs. What only says how to deliver the result does not enter: top-level
/// `result`, `options.mutexTimeoutMs`, and `undefined` properties at any depth.
pub fn fetch_input_hash(inputs: &Object) -> String {
    let mut kept = inputs.clone();
    kept.remove("result");
    if let Some(Value::Object(options)) = kept.get_mut("options")
        && options.remove("mutexTimeoutMs").is_some()
        && options.is_empty()
    {
        kept.remove("options");
    }
    hash::hash_string(&without_undefined(&Value::Object(kept)))
}

fn without_undefined(value: &Value) -> Value {
    match value {
        Value::Object(object) => Value::Object(
            object
                .iter()
                .filter(|(_, member)| !member.is_undefined())
                .map(|(key, member)| (key.clone(), without_undefined(member)))
                .collect(),
        ),
        Value::Array(array) => match array.as_dense() {
            Some(items) => Value::from(items.iter().map(without_undefined).collect::<Vec<_>>()),
            None => value.clone(),
        },
        other => other.clone(),
    }
}

// --- frames --------------------------------------------------------------------------------------------------------

/// What a body may name things by (RUN-804): its cause, and one counter consumed in program order.
#[derive(Debug)]
pub struct Frame {
    cause: Value,
    counter: Cell<u64>,
    /// Only a handler's frame may mint unnamed cells: its cause embeds the event, so a retry mints the same.
    handler: bool,
}

impl Frame {
    /// The frame of a derivation.
    pub fn derivation(cause: Value) -> Frame {
        Frame {
            cause,
            counter: Cell::new(0),
            handler: false,
        }
    }

    /// The frame of one handling: the handler's bound inputs in causal form, and the event.
    pub fn handler(mut inputs: Object, event: &EventId) -> Frame {
        inputs.insert("$event", event.as_str());
        Frame {
            cause: Value::Object(inputs),
            counter: Cell::new(0),
            handler: true,
        }
    }

    /// The cause.
    pub fn cause(&self) -> &Value {
        &self.cause
    }

    /// The next ordinal for an anchored array element.
    pub fn next_anchored(&self) -> u64 {
        let n = self.counter.get();
        self.counter.set(n + 1);
        n
    }

    fn next_unnamed(&self) -> Result<u64, RunnerError> {
        if !self.handler {
            return Err(RunnerError::InvalidValue {
                operation: "new cell",
                reason: "only a handler may make a cell without a name (RUN-804)".to_owned(),
            });
        }
        Ok(self.next_anchored())
    }
}

impl WriteFrame for Frame {
    fn anchor(&self, space: &SpaceId, id: &EntityId, path: &[SmolStr]) -> EntityId {
        let mut parent = Link::to_document(space.clone(), id.clone(), Scope::Space);
        parent.path = path.to_vec();
        anchored_element(&parent, self.next_anchored(), self.cause.clone())
    }
}
