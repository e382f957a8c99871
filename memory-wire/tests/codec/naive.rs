//! The text of a value by the procedure of WIRE-309 as written: encode the members first, then look at the nodes.

use memory_wire::codec::{self, PREFIX};
use memory_wire::equality::value_equal;
use memory_wire::js_string::JsString;
use memory_wire::value::{SlotRef, Special, Value};

#[derive(Clone)]
pub(crate) enum Node {
    Atom(String),
    Array(Vec<Node>),
    Object(Vec<(JsString, Node)>),
}

fn tagged(tag: &str, state: Node) -> Node {
    Node::Object(vec![(format!("/{tag}").into(), state)])
}

pub(crate) fn encode(value: &Value) -> Node {
    match value {
        Value::Array(array) => Node::Array(
            array
                .slots()
                .map(|slot| match slot {
                    SlotRef::Value(value) => encode(value),
                    SlotRef::Holes(n) => tagged("hole", Node::Atom(n.to_string())),
                })
                .collect(),
        ),
        Value::Object(object) => escape(object.iter().map(|(k, v)| (k.clone(), encode(v))).collect()),
        Value::Special(special) => match special.as_ref() {
            Special::Link(payload) => tagged("Link@1", encode(&Value::Object(payload.clone()))),
            Special::Unknown { tag, state } => tagged(tag, encode(state)),
            Special::Problematic { tag, state, error } => {
                let state = [
                    ("error", error.clone().into()),
                    ("state", state.clone()),
                    ("tag", tag.clone().into()),
                ];
                tagged(
                    "Problematic@1",
                    encode(&Value::Object(state.into_iter().collect())),
                )
            }
            Special::Error(error) => {
                let mut state = error.extras.clone();
                state.insert("type", error.kind.clone());
                state.insert(
                    "name",
                    if value_equal(&error.name, &error.kind) {
                        Value::Null
                    } else {
                        error.name.clone()
                    },
                );
                state.insert("message", error.message.clone());
                for (slot, value) in [("stack", &error.stack), ("cause", &error.cause)] {
                    if !value.is_undefined() {
                        state.insert(slot, value.clone());
                    }
                }
                tagged("Error@1", encode(&Value::Object(state)))
            }
            _ => leaf(value),
        },
        _ => leaf(value),
    }
}

/// Leaves are the codec's own business; the procedure only sees whether they are tagged.
fn leaf(value: &Value) -> Node {
    let text = codec::encode(value).unwrap()[PREFIX.len()..].to_owned();
    match text
        .strip_prefix("{\"/")
        .and_then(|rest| rest.strip_suffix('}'))
        .and_then(|rest| rest.split_once("\":"))
    {
        Some((tag, state)) => tagged(tag, Node::Atom(state.to_owned())),
        None => Node::Atom(text),
    }
}

fn single_slash_key(members: &[(JsString, Node)]) -> Option<&JsString> {
    match members {
        [(key, _)] if key.as_bytes().starts_with(b"/") => Some(key),
        _ => None,
    }
}

fn is_hole(node: &Node) -> bool {
    matches!(node, Node::Object(members) if single_slash_key(members).is_some_and(|key| *key == "/hole"))
}

fn quote_safe(node: &Node) -> bool {
    match node {
        Node::Atom(_) => true,
        Node::Array(items) => items.iter().all(|item| !is_hole(item) && quote_safe(item)),
        Node::Object(members) => match single_slash_key(members) {
            Some(key) => *key == "/quote",
            None => members.iter().all(|(_, member)| quote_safe(member)),
        },
    }
}

fn unquote(node: Node) -> Node {
    match node {
        Node::Atom(text) => Node::Atom(text),
        Node::Array(items) => Node::Array(items.into_iter().map(unquote).collect()),
        Node::Object(mut members) => match single_slash_key(&members) {
            Some(key) if *key == "/quote" => members.remove(0).1,
            _ => Node::Object(
                members
                    .into_iter()
                    .map(|(key, member)| (key, unquote(member)))
                    .collect(),
            ),
        },
    }
}

fn escape(members: Vec<(JsString, Node)>) -> Node {
    if !members.iter().any(|(key, _)| key.as_bytes().starts_with(b"/")) {
        return Node::Object(members);
    }
    if members.iter().all(|(_, member)| quote_safe(member)) {
        let literal = members
            .into_iter()
            .map(|(key, member)| (key, unquote(member)))
            .collect();
        tagged("quote", Node::Object(literal))
    } else {
        tagged("object", Node::Object(members))
    }
}

pub(crate) fn write(node: &Node) -> String {
    match node {
        Node::Atom(text) => text.clone(),
        Node::Array(items) => format!("[{}]", items.iter().map(write).collect::<Vec<_>>().join(",")),
        Node::Object(members) => {
            let key = |key: &JsString| {
                codec::encode(&Value::String(key.clone())).unwrap()[PREFIX.len()..].to_owned()
            };
            let members: Vec<_> = members
                .iter()
                .map(|(k, member)| format!("{}:{}", key(k), write(member)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
    }
}
