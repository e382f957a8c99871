//! Applying patches (WIRE-602…605, ENG-355). Works on a structurally shared copy: an operation un-shares the
//! containers on its way and nothing else, so its cost follows the path, not the document.

use rustc_hash::FxHashMap;
use smol_str::SmolStr;

use super::array_edit::{self, TooManyHoles};
use super::{PatchAction, PatchError, PatchOp, check_depth, unsafe_token};
use crate::codec::MAX_HOLES;
use crate::equality::value_equal;
use crate::hash::{Digest, hash_value};
use crate::pointer::{ArrayIndex, encode_pointer, is_path_prefix};
use crate::value::{Array, Extent, Object, Slot, SlotRef, Value};

/// Applies the operations in order to `base` (`{}` for an absent or deleted document, WIRE-606). Nothing is half
/// applied: on an error the base is as it was. Only the final root has to be an object. What comes out of a base within
/// [`MAX_DOCUMENT_DEPTH`](crate::codec::MAX_DOCUMENT_DEPTH) and [`MAX_HOLES`] is within them, and so has a text in every message (WIRE-312, WIRE-314).
pub fn apply_patches(base: &Value, patches: &[PatchOp]) -> Result<Value, PatchError> {
    let mut root = base.clone();
    for patch in patches {
        apply_one(&mut root, patch)?;
    }
    if let Some(patch) = patches.iter().rev().find(|patch| is_suspicious(patch)) {
        let extent = Extent::of(&root);
        check_depth(extent.depth, patch.path())?;
        if extent.holes > MAX_HOLES {
            return Err(hole_budget(patch.path())(TooManyHoles));
        }
    }
    match root {
        Value::Object(_) => Ok(root),
        _ => Err(PatchError::RootNotDocument),
    }
}

/// Depth that an operation may bring without a look at the whole document: far below what a document may have, whatever
/// escapes double it.
const UNSUSPICIOUS: usize = 256;

/// True for an operation after which the document has to be measured: one that brings holes, depth, or a key that makes
/// the objects around it escaped. Others leave the deepest place where it was, or write something flat near the root.
fn is_suspicious(patch: &PatchOp) -> bool {
    // How deep that is which moves, the operation does not say.
    let deeper = matches!(patch.action(), PatchAction::Move { .. }) || patch.extent().depth > UNSUSPICIOUS;
    let escapes = patch
        .touched_paths()
        .flatten()
        .any(|segment| segment.starts_with('/'));
    // An append past the end of an array leaves holes (WIRE-605).
    let gap = match patch.action() {
        PatchAction::Append { path, .. } | PatchAction::AddUnique { path, .. } => {
            path.last().is_some_and(looks_like_index)
        }
        _ => false,
    };
    deeper || escapes || gap || patch.extent().holes > 0
}

fn apply_one(root: &mut Value, patch: &PatchOp) -> Result<(), PatchError> {
    for path in patch.touched_paths() {
        if let Some(token) = unsafe_token(path) {
            return Err(PatchError::UnsafeKey {
                token: token.to_string(),
                at: encode_pointer(path),
            });
        }
    }
    patch.check_depth()?;
    match patch.action() {
        PatchAction::Replace { path, value } => replace(root, path, value.clone()),
        PatchAction::Add { path, value } => add(root, path, value.clone()),
        PatchAction::Remove { path } => remove(root, path),
        PatchAction::Move { from, path } => move_value(root, from, path),
        PatchAction::Splice {
            path,
            index,
            remove,
            add,
        } => splice(root, path, *index, *remove, add),
        PatchAction::Append { path, values, .. } => push_all(root, path, "append", |array| {
            array_edit::extend(array, values.clone())
        }),
        PatchAction::AddUnique { path, values, .. } => push_all(root, path, "add-unique", |array| {
            let missing = not_yet_in(array, values);
            if missing.is_empty() {
                Ok(())
            } else {
                array_edit::extend(array, missing)
            }
        }),
        PatchAction::RemoveByValue { path, value } => remove_by_value(root, path, value),
        PatchAction::Increment { path, by, .. } => increment(root, path, *by),
    }
}

/// The two ends of a non-root path.
fn split(path: &[SmolStr]) -> Option<(&[SmolStr], &SmolStr)> {
    path.split_last().map(|(last, way)| (way, last))
}

fn missing(path: &[SmolStr]) -> PatchError {
    PatchError::MissingPath(encode_pointer(path))
}

fn not_traversable(path: &[SmolStr]) -> PatchError {
    PatchError::NotTraversable(encode_pointer(path))
}

fn hole_budget(path: &[SmolStr]) -> impl FnOnce(TooManyHoles) -> PatchError + '_ {
    |TooManyHoles| PatchError::HoleBudget {
        limit: MAX_HOLES,
        at: encode_pointer(path),
    }
}

fn array_index(segment: &SmolStr) -> Result<usize, PatchError> {
    match ArrayIndex::of(segment) {
        ArrayIndex::Index(index) => Ok(index as usize),
        ArrayIndex::OutOfBounds => Err(PatchError::IndexOutOfBounds(segment.to_string())),
        ArrayIndex::NotAnIndex => Err(PatchError::InvalidArrayIndex(segment.to_string())),
    }
}

/// One step down; `whole` is the operation's path, for the error text.
fn step<'a>(node: &'a mut Value, segment: &SmolStr, whole: &[SmolStr]) -> Result<&'a mut Value, PatchError> {
    match node {
        Value::Object(object) => object.get_mut(segment).ok_or_else(|| missing(whole)),
        Value::Array(array) => array.get_mut(array_index(segment)?).ok_or_else(|| missing(whole)),
        _ => Err(not_traversable(whole)),
    }
}

fn descend<'a>(root: &'a mut Value, way: &[SmolStr], whole: &[SmolStr]) -> Result<&'a mut Value, PatchError> {
    way.iter()
        .try_fold(root, |node, segment| step(node, segment, whole))
}

/// The value at a path, or why there is none; the reading twin of [`descend`].
fn get<'a>(root: &'a Value, path: &[SmolStr]) -> Result<&'a Value, PatchError> {
    path.iter().try_fold(root, |node, segment| match node {
        Value::Object(object) => object.get(segment).ok_or_else(|| missing(path)),
        Value::Array(array) => array.get(array_index(segment)?).ok_or_else(|| missing(path)),
        _ => Err(not_traversable(path)),
    })
}

/// A container ready to receive the last segment of a path.
struct Receiver<'a> {
    container: &'a mut Value,
    /// The container was created by this operation.
    fresh: bool,
}

/// Walks to the parent of the last segment, creating missing object keys on the way (WIRE-604): what is created
/// in the middle is an object, so a middle segment that looks like an index cannot be; what receives the last
/// segment is an array when that one looks like an index.
fn descend_creating<'a>(
    root: &'a mut Value,
    way: &[SmolStr],
    last: &SmolStr,
    whole: &[SmolStr],
) -> Result<Receiver<'a>, PatchError> {
    let mut node = root;
    let mut fresh = false;
    for (depth, segment) in way.iter().enumerate() {
        if let Value::Object(object) = node
            && !object.contains_key(segment)
        {
            let rest = &way[depth + 1..];
            if rest.iter().any(looks_like_index) {
                return Err(missing(whole));
            }
            let receiver = if looks_like_index(last) {
                Value::Array(Array::new())
            } else {
                Value::Object(Object::new())
            };
            let created = rest.iter().rev().fold(receiver, |inner, name| {
                Value::Object(Object::from_entries(vec![(name.clone().into(), inner)]))
            });
            object.insert(segment.clone(), created);
            fresh = true;
        }
        node = step(node, segment, whole)?;
    }
    Ok(Receiver {
        container: node,
        fresh,
    })
}

fn looks_like_index(segment: &SmolStr) -> bool {
    segment == "-" || !matches!(ArrayIndex::of(segment), ArrayIndex::NotAnIndex)
}

fn replace(root: &mut Value, path: &[SmolStr], value: Value) -> Result<(), PatchError> {
    let Some((way, last)) = split(path) else {
        *root = value;
        return Ok(());
    };
    match descend(root, way, path)? {
        Value::Object(object) => {
            object.insert(last.clone(), value);
            Ok(())
        }
        Value::Array(array) => {
            *array.get_mut(array_index(last)?).ok_or_else(|| missing(path))? = value;
            Ok(())
        }
        _ => Err(not_traversable(path)),
    }
}

fn add(root: &mut Value, path: &[SmolStr], value: Value) -> Result<(), PatchError> {
    let Some((way, last)) = split(path) else {
        *root = value;
        return Ok(());
    };
    match descend_creating(root, way, last, path)?.container {
        Value::Object(object) => {
            object.insert(last.clone(), value);
            Ok(())
        }
        Value::Array(array) => {
            let at = if last == "-" {
                array.len()
            } else {
                array_index(last)?
            };
            if at > array.len() {
                return Err(PatchError::IndexOutOfBounds(last.to_string()));
            }
            array_edit::insert(array, at, value).map_err(hole_budget(path))
        }
        _ => Err(not_traversable(path)),
    }
}

fn remove(root: &mut Value, path: &[SmolStr]) -> Result<(), PatchError> {
    let Some((way, last)) = split(path) else {
        return Err(PatchError::RootRemove);
    };
    match descend(root, way, path)? {
        Value::Object(object) => match object.remove(last) {
            Some(_) => Ok(()),
            None => Err(PatchError::MissingObjectKey(encode_pointer(path))),
        },
        Value::Array(array) => {
            let at = array_index(last)?;
            if array.get(at).is_none() {
                return Err(missing(path));
            }
            array_edit::remove(array, at).map_err(hole_budget(path))
        }
        _ => Err(not_traversable(path)),
    }
}

fn move_value(root: &mut Value, from: &[SmolStr], path: &[SmolStr]) -> Result<(), PatchError> {
    if from.is_empty() {
        return Err(PatchError::MoveRoot);
    }
    if from.len() < path.len() && is_path_prefix(from, path) {
        return Err(PatchError::MoveIntoDescendant);
    }
    let value = get(root, from)?.clone();
    if path.len() > from.len() {
        check_depth(path.len() + Extent::of(&value).depth, path)?;
    }
    remove(root, from)?;
    add(root, path, value)
}

fn splice(
    root: &mut Value,
    path: &[SmolStr],
    index: f64,
    remove: f64,
    add: &[Value],
) -> Result<(), PatchError> {
    match descend(root, path, path)? {
        Value::Array(array) => {
            let len = array.len();
            if index < 0.0 || remove < 0.0 || index > len as f64 {
                return Err(PatchError::InvalidSplice(encode_pointer(path)));
            }
            // Casts truncate fractions, read NaN as 0 and saturate: exactly what the operation means.
            let at = index as usize;
            let count = (remove as usize).min(len - at);
            array_edit::splice(array, at, count, add.to_vec()).map_err(hole_budget(path))
        }
        Value::Object(_) => Err(PatchError::TargetNotArray {
            op: "splice",
            at: encode_pointer(path),
        }),
        _ => Err(not_traversable(path)),
    }
}

/// The shared shape of `append` and `add-unique`: find or create the array at `path`, then let `push` extend it.
fn push_all(
    root: &mut Value,
    path: &[SmolStr],
    op: &'static str,
    push: impl FnOnce(&mut Array) -> Result<(), TooManyHoles>,
) -> Result<(), PatchError> {
    let Some((way, last)) = split(path) else {
        return push_into(root, path, op, push);
    };
    let Receiver { container, fresh } = descend_creating(root, way, last, path)?;
    match container {
        Value::Object(object) => {
            if let Some(target) = object.get_mut(last) {
                return push_into(target, path, op, push);
            }
            let mut created = Array::new();
            push(&mut created).map_err(hole_budget(path))?;
            object.insert(last.clone(), created);
            Ok(())
        }
        Value::Array(array) => {
            let at = match ArrayIndex::of(last) {
                ArrayIndex::Index(at) => at as usize,
                ArrayIndex::OutOfBounds => return Err(PatchError::IndexOutOfBounds(last.to_string())),
                ArrayIndex::NotAnIndex if fresh => {
                    return Err(PatchError::InvalidArrayIndex(last.to_string()));
                }
                // Kept from the reference (WIRE-605): the values go to a property that no array element is, so
                // nothing visible happens.
                ArrayIndex::NotAnIndex => return Ok(()),
            };
            if let Some(target) = array.get_mut(at) {
                return push_into(target, path, op, push);
            }
            if fresh && at > 0 {
                return Err(PatchError::IndexOutOfBounds(last.to_string()));
            }
            let mut created = Array::new();
            push(&mut created).map_err(hole_budget(path))?;
            array_edit::assign(array, at, Value::Array(created)).map_err(hole_budget(path))
        }
        _ => Err(not_traversable(path)),
    }
}

fn push_into(
    target: &mut Value,
    path: &[SmolStr],
    op: &'static str,
    push: impl FnOnce(&mut Array) -> Result<(), TooManyHoles>,
) -> Result<(), PatchError> {
    match target {
        Value::Array(array) => push(array).map_err(hole_budget(path)),
        Value::Object(_) => Err(PatchError::TargetNotArray {
            op,
            at: encode_pointer(path),
        }),
        _ => Err(not_traversable(path)),
    }
}

/// Most values that are compared with every element one by one; more are looked up by hash.
const FEW: usize = 8;

/// The values that neither an element nor an earlier one of them equals. A hole equals nothing here (WIRE-605).
fn not_yet_in(array: &Array, values: &[Value]) -> Vec<Value> {
    let mut missing: Vec<Value> = Vec::new();
    if values.len() > FEW {
        // Equal values have equal hashes, whatever their kind (WIRE-313).
        let mut known: FxHashMap<Digest, Vec<&Value>> = FxHashMap::default();
        for (_, element) in array.elements() {
            known.entry(hash_value(element)).or_default().push(element);
        }
        for value in values {
            let alike = known.entry(hash_value(value)).or_default();
            if !alike.iter().any(|other| value_equal(other, value)) {
                alike.push(value);
                missing.push(value.clone());
            }
        }
        return missing;
    }
    for value in values {
        let known = array
            .elements()
            .map(|(_, element)| element)
            .chain(&missing)
            .any(|other| value_equal(other, value));
        if !known {
            missing.push(value.clone());
        }
    }
    missing
}

fn remove_by_value(root: &mut Value, path: &[SmolStr], value: &Value) -> Result<(), PatchError> {
    // Looked up without un-sharing anything: whatever is missing or does not match is no change.
    let Ok(Value::Array(array)) = get(root, path) else {
        return Ok(());
    };
    if !array.elements().any(|(_, element)| value_equal(element, value)) {
        return Ok(());
    }
    let kept = array
        .slots()
        .filter_map(|slot| match slot {
            SlotRef::Value(element) => (!value_equal(element, value)).then(|| Slot::Value(element.clone())),
            // A hole reads as undefined, so removing undefined takes it too (WIRE-605).
            SlotRef::Holes(_) if value.is_undefined() => None,
            SlotRef::Holes(n) => Some(Slot::Holes(n)),
        })
        .collect();
    let kept = Array::from_slots(kept).expect("an array with slots taken out is no longer than it was");
    *descend(root, path, path)? = Value::Array(kept);
    Ok(())
}

fn increment(root: &mut Value, path: &[SmolStr], by: f64) -> Result<(), PatchError> {
    let Some((way, last)) = split(path) else {
        return Err(PatchError::IncrementRoot);
    };
    if !by.is_finite() || by == 0.0 {
        return Err(PatchError::IncrementAmount(encode_pointer(path)));
    }
    match descend_creating(root, way, last, path)?.container {
        Value::Object(object) => match object.get_mut(last) {
            Some(target) => increment_target(target, path, by),
            None => {
                object.insert(last.clone(), by);
                Ok(())
            }
        },
        Value::Array(array) => {
            let at = array_index(last)?;
            if at > array.len() {
                return Err(PatchError::IndexOutOfBounds(last.to_string()));
            }
            match array.get_mut(at) {
                Some(target) => increment_target(target, path, by),
                None => array_edit::assign(array, at, Value::Number(by)).map_err(hole_budget(path)),
            }
        }
        _ => Err(not_traversable(path)),
    }
}

fn increment_target(target: &mut Value, path: &[SmolStr], by: f64) -> Result<(), PatchError> {
    *target = match target {
        Value::Number(n) => Value::Number(*n + by),
        Value::Undefined => Value::Number(by),
        _ => return Err(PatchError::IncrementTarget(encode_pointer(path))),
    };
    Ok(())
}
