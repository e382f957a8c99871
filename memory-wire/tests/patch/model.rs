//! A naive model of patch application: every slot of an array is its own `Option`, every container its own copy, and an
//! operation is read from its wire form, so that the model shares nothing with the implementation but the pointer syntax.

use memory_wire::equality::value_equal;
use memory_wire::pointer::parse_pointer;
use memory_wire::value::{Slot, SlotRef, Value};

/// The model's node: every slot of an array is its own `Option`, every container its own copy.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Leaf(Value),
    Array(Vec<Option<Node>>),
    Object(Vec<(String, Node)>),
}

pub(crate) fn to_node(value: &Value) -> Node {
    match value {
        Value::Object(object) => {
            Node::Object(object.iter().map(|(k, v)| (k.to_string(), to_node(v))).collect())
        }
        Value::Array(array) => Node::Array(
            array
                .slots()
                .flat_map(|slot| match slot {
                    SlotRef::Value(v) => vec![Some(to_node(v))],
                    SlotRef::Holes(n) => vec![None; n as usize],
                })
                .collect(),
        ),
        leaf => Node::Leaf(leaf.clone()),
    }
}

pub(crate) fn to_value(node: &Node) -> Value {
    match node {
        Node::Leaf(value) => value.clone(),
        Node::Object(entries) => {
            Value::Object(entries.iter().map(|(k, v)| (k.as_str(), to_value(v))).collect())
        }
        Node::Array(slots) => {
            let slots = slots
                .iter()
                .map(|slot| match slot {
                    Some(node) => Slot::Value(to_value(node)),
                    None => Slot::Holes(1),
                })
                .collect();
            Value::Array(memory_wire::value::Array::from_slots(slots).unwrap())
        }
    }
}

/// A canonical index of an array of the model, which is never long.
fn index(segment: &str) -> Option<usize> {
    segment.parse::<usize>().ok().filter(|n| n.to_string() == segment)
}

pub(crate) type Outcome<T> = Result<T, ()>;

fn child<'a>(node: &'a mut Node, segment: &str) -> Outcome<Option<&'a mut Node>> {
    match node {
        Node::Object(entries) => Ok(entries.iter_mut().find(|(k, _)| k == segment).map(|(_, v)| v)),
        Node::Array(slots) => Ok(slots.get_mut(index(segment).ok_or(())?).and_then(Option::as_mut)),
        Node::Leaf(_) => Err(()),
    }
}

/// The existing value at a path.
fn existing<'a>(root: &'a mut Node, path: &[String]) -> Outcome<&'a mut Node> {
    match path {
        [] => Ok(root),
        [first, rest @ ..] => existing(child(root, first)?.ok_or(())?, rest),
    }
}

fn set(object: &mut Vec<(String, Node)>, key: &str, value: Node) {
    match object.iter_mut().find(|(k, _)| k == key) {
        Some((_, slot)) => *slot = value,
        None => object.push((key.to_owned(), value)),
    }
}

/// What `path` has to lead through before its last segment, made where object keys are absent.
fn make_way<'a>(root: &'a mut Node, path: &[String]) -> Outcome<(&'a mut Node, bool)> {
    let looks_indexed = |s: &String| s == "-" || index(s).is_some();
    match path {
        [] | [_] => Ok((root, false)),
        [first, rest @ ..] => {
            if child(root, first)?.is_some() {
                return make_way(child(root, first)?.ok_or(())?, rest);
            }
            let Node::Object(entries) = root else {
                return Err(());
            };
            let (last, middle) = rest.split_last().ok_or(())?;
            if middle.iter().any(looks_indexed) {
                return Err(());
            }
            entries.push((first.clone(), Node::Object(vec![])));
            let mut at = &mut entries.last_mut().ok_or(())?.1;
            for name in middle {
                let Node::Object(inner) = at else { return Err(()) };
                inner.push((name.clone(), Node::Object(vec![])));
                at = &mut inner.last_mut().ok_or(())?.1;
            }
            if looks_indexed(last) {
                *at = Node::Array(vec![]);
            }
            Ok((at, true))
        }
    }
}

fn add(root: &mut Node, path: &[String], value: Node) -> Outcome<()> {
    let Some(last) = path.last() else {
        *root = value;
        return Ok(());
    };
    match make_way(root, path)?.0 {
        Node::Object(entries) => set(entries, last, value),
        Node::Array(slots) => {
            let at = if last == "-" {
                slots.len()
            } else {
                index(last).filter(|i| *i <= slots.len()).ok_or(())?
            };
            slots.insert(at, Some(value));
        }
        Node::Leaf(_) => return Err(()),
    }
    Ok(())
}

fn remove(root: &mut Node, path: &[String]) -> Outcome<Node> {
    let (last, way) = path.split_last().ok_or(())?;
    match existing(root, way)? {
        Node::Object(entries) => {
            let at = entries.iter().position(|(k, _)| k == last).ok_or(())?;
            Ok(entries.remove(at).1)
        }
        Node::Array(slots) => {
            let at = index(last)
                .filter(|i| slots.get(*i).is_some_and(Option::is_some))
                .ok_or(())?;
            slots.remove(at).ok_or(())
        }
        Node::Leaf(_) => Err(()),
    }
}

fn equal(a: &Node, b: &Value) -> bool {
    value_equal(&to_value(a), b)
}

fn push_values(slots: &mut Vec<Option<Node>>, values: &[Value], unique: bool) {
    for value in values {
        if !unique || !slots.iter().flatten().any(|element| equal(element, value)) {
            slots.push(Some(to_node(value)));
        }
    }
}

fn append(root: &mut Node, path: &[String], values: &[Value], unique: bool) -> Outcome<()> {
    let Some(last) = path.last() else {
        // Between two operations the root may be an array.
        return match root {
            Node::Array(slots) => {
                push_values(slots, values, unique);
                Ok(())
            }
            _ => Err(()),
        };
    };
    let (parent, fresh) = make_way(root, path)?;
    let mut created = Vec::new();
    push_values(&mut created, values, unique);
    match parent {
        Node::Object(entries) => match entries.iter_mut().find(|(k, _)| k == last) {
            Some((_, Node::Array(slots))) => push_values(slots, values, unique),
            Some(_) => return Err(()),
            None => entries.push((last.clone(), Node::Array(created))),
        },
        Node::Array(parent) => match index(last) {
            None if fresh => return Err(()),
            None => {}
            Some(at) if fresh && at > 0 => return Err(()),
            Some(at) => {
                while parent.len() <= at {
                    parent.push(None);
                }
                match &mut parent[at] {
                    Some(Node::Array(slots)) => push_values(slots, values, unique),
                    Some(_) => return Err(()),
                    hole => *hole = Some(Node::Array(created)),
                }
            }
        },
        Node::Leaf(_) => return Err(()),
    }
    Ok(())
}

fn increment(root: &mut Node, path: &[String], by: f64) -> Outcome<()> {
    let Some(last) = path.last() else { return Err(()) };
    if by == 0.0 || !by.is_finite() {
        return Err(());
    }
    let add_to = |node: &mut Node| match node {
        Node::Leaf(Value::Number(n)) => {
            *n += by;
            Ok(())
        }
        Node::Leaf(undefined @ Value::Undefined) => {
            *undefined = Value::Number(by);
            Ok(())
        }
        _ => Err(()),
    };
    match make_way(root, path)?.0 {
        Node::Object(entries) => match entries.iter_mut().find(|(k, _)| k == last) {
            Some((_, node)) => add_to(node),
            None => {
                entries.push((last.clone(), Node::Leaf(by.into())));
                Ok(())
            }
        },
        Node::Array(slots) => {
            let at = index(last).filter(|i| *i <= slots.len()).ok_or(())?;
            if at == slots.len() {
                slots.push(None);
            }
            match &mut slots[at] {
                Some(node) => add_to(node),
                hole => {
                    *hole = Some(Node::Leaf(by.into()));
                    Ok(())
                }
            }
        }
        Node::Leaf(_) => Err(()),
    }
}

/// One operation, read from its wire form so that the model shares nothing with the implementation.
pub(crate) fn model_apply(root: &mut Node, op: &Value) -> Outcome<()> {
    let pointer = |key| -> Vec<String> {
        let text = op.member(key).and_then(Value::as_str).unwrap();
        parse_pointer(text)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    let list = |key| {
        op.member(key)
            .and_then(Value::as_array)
            .unwrap()
            .as_dense()
            .unwrap()
            .to_vec()
    };
    let number = |key| op.member(key).and_then(Value::as_f64).unwrap();
    let written = || op.member("value").cloned().unwrap_or(Value::Undefined);
    let path = pointer("path");
    match op.member("op").and_then(Value::as_str).unwrap() {
        "replace" => match path.split_last() {
            None => {
                *root = to_node(&written());
                Ok(())
            }
            Some((last, way)) => match existing(root, way)? {
                Node::Object(entries) => {
                    set(entries, last, to_node(&written()));
                    Ok(())
                }
                array => {
                    *child(array, last)?.ok_or(())? = to_node(&written());
                    Ok(())
                }
            },
        },
        "add" => add(root, &path, to_node(&written())),
        "remove" => remove(root, &path).map(drop),
        "move" => {
            let from = pointer("from");
            if from.len() < path.len() && path.starts_with(&from) {
                return Err(());
            }
            let value = remove(root, &from)?;
            add(root, &path, value)
        }
        "splice" => match existing(root, &path)? {
            Node::Array(slots) => {
                let (at, count) = (number("index"), number("remove"));
                if at < 0.0 || count < 0.0 || at > slots.len() as f64 {
                    return Err(());
                }
                let at = at.trunc() as usize;
                let count = (count.trunc() as usize).min(slots.len() - at);
                slots.splice(at..at + count, list("add").iter().map(|v| Some(to_node(v))));
                Ok(())
            }
            _ => Err(()),
        },
        "append" => append(root, &path, &list("values"), false),
        "add-unique" => append(root, &path, &list("values"), true),
        "remove-by-value" => {
            if let Ok(Node::Array(slots)) = existing(root, &path) {
                let wanted = written();
                if slots.iter().flatten().any(|element| equal(element, &wanted)) {
                    slots.retain(|slot| match slot {
                        Some(element) => !equal(element, &wanted),
                        None => !wanted.is_undefined(),
                    });
                }
            }
            Ok(())
        }
        "increment" => increment(root, &path, number("by")),
        other => panic!("{other}"),
    }
}
