//! Reading and editing one document tree by path: copy-on-write, JavaScript container rules (RUN-82, RUN-84).

use memory_wire::value::{Slot, index_rank};
use memory_wire::{Array, Object, Value};
use smol_str::SmolStr;

/// The segment that reads and writes the length of an array.
pub(crate) const LENGTH: &str = "length";

/// The index a segment denotes in an array.
pub(crate) fn index(segment: &str) -> Option<usize> {
    index_rank(segment.as_bytes()).map(|i| i as usize)
}

/// One step down; own keys, array elements and an array's `length`.
pub(crate) fn child(node: &Value, segment: &str) -> Option<Value> {
    match node {
        Value::Object(object) => object.get(segment).cloned(),
        Value::Array(array) if segment == LENGTH => Some(Value::Number(array.len() as f64)),
        Value::Array(array) => array.get(index(segment)?).cloned(),
        _ => None,
    }
}

/// What a path leads to.
#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    /// The value there.
    Found(Value),
    /// Nothing; `depth` segments lead to the deepest existing container.
    Missing {
        /// Number of existing leading segments.
        depth: usize,
    },
}

/// Follows `path` from `root`.
pub(crate) fn lookup(root: &Value, path: &[SmolStr]) -> Lookup {
    let mut node = root.clone();
    for (depth, segment) in path.iter().enumerate() {
        match child(&node, segment) {
            Some(next) => node = next,
            None => return Lookup::Missing { depth },
        }
    }
    Lookup::Found(node)
}

/// The value at `path`, if any.
pub(crate) fn get(root: &Value, path: &[SmolStr]) -> Option<Value> {
    match lookup(root, path) {
        Lookup::Found(value) => Some(value),
        Lookup::Missing { .. } => None,
    }
}

/// Puts `value` at `path` (`None` removes), creating plain containers on the way. The error is the number of
/// segments that lead to the leaf which blocks the way, or to the array that cannot take the segment.
pub(crate) fn put(root: &mut Value, path: &[SmolStr], value: Option<Value>) -> Result<(), usize> {
    put_at(root, path, value, 0)
}

fn put_at(node: &mut Value, path: &[SmolStr], value: Option<Value>, depth: usize) -> Result<(), usize> {
    let Some((segment, rest)) = path.split_first() else {
        *node = value.unwrap_or(Value::Undefined);
        return Ok(());
    };
    // Only absence is a place to build in; `null` and scalars block.
    if node.is_undefined() {
        if value.is_none() {
            return Ok(());
        }
        *node = empty_container(segment);
    }
    match node {
        Value::Object(object) => match (rest.is_empty(), value) {
            (true, Some(value)) => {
                object.insert(segment.as_str(), value);
                Ok(())
            }
            (true, None) => {
                object.remove(segment);
                Ok(())
            }
            (false, value) => match object.get_mut(segment) {
                Some(next) => put_at(next, rest, value, depth + 1),
                None if value.is_none() => Ok(()),
                None => {
                    let mut next = Value::Undefined;
                    put_at(&mut next, rest, value, depth + 1)?;
                    object.insert(segment.as_str(), next);
                    Ok(())
                }
            },
        },
        Value::Array(array) => put_in_array(array, segment, rest, value, depth),
        _ => Err(depth),
    }
}

fn put_in_array(
    array: &mut Array,
    segment: &str,
    rest: &[SmolStr],
    value: Option<Value>,
    depth: usize,
) -> Result<(), usize> {
    if segment == LENGTH && rest.is_empty() {
        let length = value
            .as_ref()
            .and_then(Value::as_u64)
            .and_then(|n| usize::try_from(n).ok())
            .ok_or(depth)?;
        *array = resized(array, length).ok_or(depth)?;
        return Ok(());
    }
    let at = index(segment).ok_or(depth)?;
    if !rest.is_empty() {
        if let Some(next) = array.get_mut(at) {
            return put_at(next, rest, value, depth + 1);
        }
        if value.is_none() {
            return Ok(());
        }
        let mut next = Value::Undefined;
        put_at(&mut next, rest, value, depth + 1)?;
        *array = with_element(array, at, Some(next)).ok_or(depth)?;
        return Ok(());
    }
    if value.is_none() && at >= array.len() {
        return Ok(());
    }
    *array = with_element(array, at, value).ok_or(depth)?;
    Ok(())
}

fn empty_container(for_segment: &str) -> Value {
    match index(for_segment) {
        Some(_) => Value::Array(Array::new()),
        None => Value::Object(Object::new()),
    }
}

/// The array with `length` slots: cut, or extended by holes.
pub(crate) fn resized(array: &Array, length: usize) -> Option<Array> {
    if length >= array.len() {
        let mut slots = array.to_slots();
        slots.push(Slot::Holes(u32::try_from(length - array.len()).ok()?));
        return Array::from_slots(slots);
    }
    if let Some(items) = array.as_dense() {
        return Some(Array::from(items[..length].to_vec()));
    }
    let mut slots = Vec::new();
    let mut left = length;
    for slot in array.to_slots() {
        match slot {
            _ if left == 0 => break,
            Slot::Value(v) => {
                slots.push(Slot::Value(v));
                left -= 1;
            }
            Slot::Holes(n) => {
                let kept = (n as usize).min(left);
                slots.push(Slot::Holes(u32::try_from(kept).ok()?));
                left -= kept;
            }
        }
    }
    Array::from_slots(slots)
}

/// The array with one slot replaced (`None` = a hole); writing past the end leaves holes before it.
fn with_element(array: &Array, at: usize, value: Option<Value>) -> Option<Array> {
    let mut array = array.clone();
    if let (Some(items), Some(_)) = (array.as_dense_mut(), &value) {
        if at < items.len() {
            items[at] = value.unwrap_or(Value::Undefined);
            return Some(array);
        }
        if at == items.len() {
            items.push(value.unwrap_or(Value::Undefined));
            return Some(array);
        }
    }
    let (mut slots, mut position) = (Vec::new(), 0usize);
    let filler = value.map_or(Slot::Holes(1), Slot::Value);
    let mut pending = Some(filler);
    for slot in array.to_slots() {
        let width = match &slot {
            Slot::Value(_) => 1,
            Slot::Holes(n) => *n as usize,
        };
        if pending.is_some() && at < position + width {
            if let Slot::Holes(_) = slot {
                slots.push(Slot::Holes(u32::try_from(at - position).ok()?));
                slots.extend(pending.take());
                slots.push(Slot::Holes(u32::try_from(position + width - at - 1).ok()?));
            } else {
                slots.extend(pending.take());
            }
        } else {
            slots.push(slot);
        }
        position += width;
    }
    if let Some(filler) = pending {
        slots.push(Slot::Holes(u32::try_from(at - position).ok()?));
        slots.push(filler);
    }
    Array::from_slots(slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::path;
    use memory_wire::equality::value_equal;
    use memory_wire::value;

    #[test]
    fn run_84_missing_parents_become_plain_containers() {
        let mut root = value!({});
        put(&mut root, &path(["value", "a", "0", "b"]), Some(1.into())).unwrap();
        assert!(value_equal(&root, &value!({ "value": { "a": [{ "b": 1 }] } })));
        put(&mut root, &path(["value", "a", "0", "b"]), None).unwrap();
        assert!(value_equal(&root, &value!({ "value": { "a": [{}] } })));
    }

    #[test]
    fn leaves_block_and_say_where() {
        let mut root = value!({ "value": { "a": 1 } });
        assert_eq!(put(&mut root, &path(["value", "a", "b"]), Some(1.into())), Err(2));
        assert_eq!(
            put(&mut value!({ "x": [1] }), &path(["x", "01"]), Some(1.into())),
            Err(1)
        );
    }

    #[test]
    fn array_length_cuts_and_extends() {
        let mut root = value!({ "x": [1, 2, 3] });
        put(&mut root, &path(["x", "length"]), Some(1.into())).unwrap();
        put(&mut root, &path(["x", "3"]), Some(9.into())).unwrap();
        let x = root.member("x").and_then(Value::as_array).cloned().unwrap();
        assert_eq!((x.len(), x.elements().count()), (4, 2));
        put(&mut root, &path(["x", "2"]), Some(7.into())).unwrap();
        let x = root.member("x").and_then(Value::as_array).cloned().unwrap();
        assert_eq!((x.len(), x.elements().count()), (4, 3));
    }

    #[test]
    fn missing_paths_report_the_deepest_container() {
        let root = value!({ "value": { "a": [1] } });
        assert!(matches!(
            lookup(&root, &path(["value", "a", "5", "x"])),
            Lookup::Missing { depth: 2 }
        ));
        assert!(
            matches!(lookup(&root, &path(["value", "a", "length"])), Lookup::Found(Value::Number(n)) if n == 1.0)
        );
    }
}
