//! Documents of the model: plain trees, and patches applied to them by the words of ENG-355 alone. Every operation copies
//! the whole document; nothing is shared with the product but the type that a patch arrives in.

use std::collections::BTreeMap;

use memory_wire::patch::{PatchAction, PatchOp};
use memory_wire::value::{SlotRef, Value};

/// A document or a part of one.
#[derive(Clone, Debug)]
pub(crate) enum Tree {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Tree>),
    Map(BTreeMap<String, Tree>),
    /// A slot of a list that holds nothing.
    Hole,
}

impl PartialEq for Tree {
    /// Same value: `NaN` equals itself, 0 differs from −0 (ENG-356).
    fn eq(&self, other: &Tree) -> bool {
        match (self, other) {
            (Tree::Null, Tree::Null) | (Tree::Hole, Tree::Hole) => true,
            (Tree::Bool(a), Tree::Bool(b)) => a == b,
            (Tree::Number(a), Tree::Number(b)) => a.to_bits() == b.to_bits(),
            (Tree::Text(a), Tree::Text(b)) => a == b,
            (Tree::List(a), Tree::List(b)) => a == b,
            (Tree::Map(a), Tree::Map(b)) => a == b,
            _ => false,
        }
    }
}

impl Tree {
    pub(crate) fn empty() -> Tree {
        Tree::Map(BTreeMap::new())
    }

    /// The tree of a value without special parts.
    pub(crate) fn of(value: &Value) -> Tree {
        match value {
            Value::Null => Tree::Null,
            Value::Bool(flag) => Tree::Bool(*flag),
            Value::Number(n) => Tree::Number(*n),
            Value::String(text) => Tree::Text(text.to_string()),
            Value::Array(array) => {
                let mut list = Vec::new();
                for slot in array.slots() {
                    match slot {
                        SlotRef::Value(element) => list.push(Tree::of(element)),
                        SlotRef::Holes(n) => list.extend((0..n).map(|_| Tree::Hole)),
                    }
                }
                Tree::List(list)
            }
            Value::Object(object) => Tree::Map(
                object
                    .iter()
                    .map(|(key, member)| (key.to_string(), Tree::of(member)))
                    .collect(),
            ),
            other => panic!("schedules hold no {other:?}"),
        }
    }

    pub(crate) fn key(&self, key: &str) -> Option<&Tree> {
        match self {
            Tree::Map(map) => map.get(key),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Tree::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Tree::Number(n) => Some(*n),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Tree]> {
        match self {
            Tree::List(list) => Some(list),
            _ => None,
        }
    }

    pub(crate) fn is_true(&self) -> bool {
        matches!(self, Tree::Bool(true))
    }

    pub(crate) fn at(&self, path: &[String]) -> Option<&Tree> {
        let Some((first, rest)) = path.split_first() else {
            return Some(self);
        };
        match self {
            Tree::Map(map) => map.get(first)?.at(rest),
            Tree::List(list) => match list.get(index(first)?)? {
                Tree::Hole => None,
                element => element.at(rest),
            },
            _ => None,
        }
    }
}

/// What one patch operation does, on trees.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Replace(Tree),
    Add(Tree),
    Remove,
    MoveFrom(Vec<String>),
    Splice { index: f64, remove: f64, add: Vec<Tree> },
    Append { values: Vec<Tree>, creates_key: bool },
    AddUnique { values: Vec<Tree>, creates_key: bool },
    RemoveByValue(Tree),
    Increment { by: f64, creates_key: bool },
}

/// One patch operation.
#[derive(Clone, Debug)]
pub(crate) struct Patch {
    pub(crate) path: Vec<String>,
    pub(crate) edit: Edit,
}

/// The patch cannot be applied.
#[derive(Debug)]
pub(crate) struct Inapplicable;

pub(crate) fn strings(path: &[smol_str::SmolStr]) -> Vec<String> {
    path.iter().map(|segment| segment.to_string()).collect()
}

impl Patch {
    pub(crate) fn of(patch: &PatchOp) -> Patch {
        let trees = |values: &[Value]| values.iter().map(Tree::of).collect();
        let edit = match patch.action() {
            PatchAction::Replace { value, .. } => Edit::Replace(Tree::of(value)),
            PatchAction::Add { value, .. } => Edit::Add(Tree::of(value)),
            PatchAction::Remove { .. } => Edit::Remove,
            PatchAction::Move { from, .. } => Edit::MoveFrom(strings(from)),
            PatchAction::Splice {
                index, remove, add, ..
            } => Edit::Splice {
                index: *index,
                remove: *remove,
                add: trees(add),
            },
            PatchAction::Append {
                values, creates_key, ..
            } => Edit::Append {
                values: trees(values),
                creates_key: *creates_key,
            },
            PatchAction::AddUnique {
                values, creates_key, ..
            } => Edit::AddUnique {
                values: trees(values),
                creates_key: *creates_key,
            },
            PatchAction::RemoveByValue { value, .. } => Edit::RemoveByValue(Tree::of(value)),
            PatchAction::Increment { by, creates_key, .. } => Edit::Increment {
                by: *by,
                creates_key: *creates_key,
            },
        };
        Patch {
            path: strings(patch.path()),
            edit,
        }
    }

    pub(crate) fn apply(&self, root: Tree) -> Result<Tree, Inapplicable> {
        let path = &self.path;
        match &self.edit {
            Edit::Replace(value) => replace(root, path, value),
            Edit::Add(value) => add(root, path, value),
            Edit::Remove => Ok(take(root, path)?.0),
            Edit::MoveFrom(from) => {
                let into_itself = path.len() > from.len() && path[..from.len()] == from[..];
                if from.is_empty() || into_itself {
                    return Err(Inapplicable);
                }
                let (rest, value) = take(root, from)?;
                add(rest, path, &value)
            }
            Edit::Splice { index, remove, add } => change(root, path, &|target| match target {
                Tree::List(list) if *index >= 0.0 && *index <= list.len() as f64 && *remove >= 0.0 => {
                    let at = *index as usize;
                    let end = (at + *remove as usize).min(list.len());
                    Ok(Tree::List([&list[..at], add, &list[end..]].concat()))
                }
                _ => Err(Inapplicable),
            }),
            Edit::Append { values, .. } => push(root, path, &|list| [&list[..], values].concat()),
            Edit::AddUnique { values, .. } => push(root, path, &|mut list| {
                for value in values {
                    if !list.contains(value) {
                        list.push(value.clone());
                    }
                }
                list
            }),
            Edit::RemoveByValue(value) => match root.at(path) {
                Some(Tree::List(_)) => change(root, path, &|target| match target {
                    Tree::List(list) => Ok(Tree::List(list.into_iter().filter(|e| e != value).collect())),
                    other => Ok(other),
                }),
                _ => Ok(root),
            },
            Edit::Increment { by, .. } => {
                if !by.is_finite() || *by == 0.0 {
                    return Err(Inapplicable);
                }
                create(root, path, false, &|old, place| match (old, place) {
                    (Some(Tree::Number(n)), _) => Ok(Some(Tree::Number(n + by))),
                    (Some(_), _) | (None, Place::NoIndex | Place::Beyond) => Err(Inapplicable),
                    (None, Place::Key | Place::Next) => Ok(Some(Tree::Number(*by))),
                })
            }
        }
    }
}

/// Applies a list to a document; only the last state has to be an object.
pub(crate) fn apply_all(base: Tree, patches: &[Patch]) -> Result<Tree, Inapplicable> {
    let mut root = base;
    for patch in patches {
        root = patch.apply(root)?;
    }
    match root {
        Tree::Map(_) => Ok(root),
        _ => Err(Inapplicable),
    }
}

fn index(segment: &str) -> Option<usize> {
    let canonical =
        segment == "0" || (!segment.starts_with('0') && segment.chars().all(|c| c.is_ascii_digit()));
    if canonical && !segment.is_empty() {
        segment.parse().ok()
    } else {
        None
    }
}

fn looks_like_index(segment: &str) -> bool {
    segment == "-" || index(segment).is_some()
}

/// Replaces what is at an existing path.
fn change(
    node: Tree,
    path: &[String],
    with: &dyn Fn(Tree) -> Result<Tree, Inapplicable>,
) -> Result<Tree, Inapplicable> {
    let Some((first, rest)) = path.split_first() else {
        return with(node);
    };
    match node {
        Tree::Map(mut map) => {
            let child = map.remove(first).ok_or(Inapplicable)?;
            map.insert(first.clone(), change(child, rest, with)?);
            Ok(Tree::Map(map))
        }
        Tree::List(mut list) => {
            let slot = index(first).and_then(|at| list.get_mut(at)).ok_or(Inapplicable)?;
            if *slot == Tree::Hole {
                return Err(Inapplicable);
            }
            *slot = change(slot.clone(), rest, with)?;
            Ok(Tree::List(list))
        }
        _ => Err(Inapplicable),
    }
}

fn replace(root: Tree, path: &[String], value: &Tree) -> Result<Tree, Inapplicable> {
    let Some((last, way)) = path.split_last() else {
        return Ok(value.clone());
    };
    change(root, way, &|container| match container {
        Tree::Map(mut map) => {
            map.insert(last.clone(), value.clone());
            Ok(Tree::Map(map))
        }
        list => change(list, std::slice::from_ref(last), &|_| Ok(value.clone())),
    })
}

/// Takes out what is at a path; the rest, and what was there.
fn take(root: Tree, path: &[String]) -> Result<(Tree, Tree), Inapplicable> {
    let Some((last, way)) = path.split_last() else {
        return Err(Inapplicable);
    };
    let value = root.at(path).cloned().ok_or(Inapplicable)?;
    let rest = change(root, way, &|container| match container {
        Tree::Map(mut map) => {
            map.remove(last);
            Ok(Tree::Map(map))
        }
        Tree::List(mut list) => {
            list.remove(index(last).ok_or(Inapplicable)?);
            Ok(Tree::List(list))
        }
        _ => Err(Inapplicable),
    })?;
    Ok((rest, value))
}

fn add(root: Tree, path: &[String], value: &Tree) -> Result<Tree, Inapplicable> {
    let Some((last, way)) = path.split_last() else {
        return Ok(value.clone());
    };
    within(root, way, last, &|container, _| match container {
        Tree::Map(mut map) => {
            map.insert(last.clone(), value.clone());
            Ok(Tree::Map(map))
        }
        Tree::List(mut list) => {
            let at = if last == "-" {
                list.len()
            } else {
                index(last).ok_or(Inapplicable)?
            };
            if at > list.len() {
                return Err(Inapplicable);
            }
            list.insert(at, value.clone());
            Ok(Tree::List(list))
        }
        _ => Err(Inapplicable),
    })
}

/// Changes the container of a path's last segment, creating what is missing on the way. Tells whether it was created.
fn within(
    node: Tree,
    way: &[String],
    last: &str,
    with: &dyn Fn(Tree, bool) -> Result<Tree, Inapplicable>,
) -> Result<Tree, Inapplicable> {
    let Some((first, rest)) = way.split_first() else {
        return with(node, false);
    };
    match node {
        Tree::Map(mut map) => {
            let child = match map.remove(first) {
                Some(child) => within(child, rest, last, with)?,
                None => {
                    if rest.iter().any(|segment| looks_like_index(segment)) {
                        return Err(Inapplicable);
                    }
                    let fresh = if looks_like_index(last) {
                        Tree::List(Vec::new())
                    } else {
                        Tree::empty()
                    };
                    let mut created = with(fresh, true)?;
                    for name in rest.iter().rev() {
                        created = Tree::Map(BTreeMap::from([(name.clone(), created)]));
                    }
                    created
                }
            };
            map.insert(first.clone(), child);
            Ok(Tree::Map(map))
        }
        list @ Tree::List(_) => change(list, std::slice::from_ref(first), &|child| {
            within(child, rest, last, with)
        }),
        _ => Err(Inapplicable),
    }
}

/// Where the value of a path's last segment is to go, when there is none yet.
enum Place {
    /// A key of an object.
    Key,
    /// A slot of a list: a hole, or the one after the last.
    Next,
    /// A slot further out.
    Beyond,
    /// No slot of a list.
    NoIndex,
}

/// A new value, made of the old one if there is one; `None` for none.
type Make<'m> = dyn Fn(Option<&Tree>, Place) -> Result<Option<Tree>, Inapplicable> + 'm;

/// Gives the last segment a new value, made of the old one if there is one. `None` leaves everything as it is.
fn create(root: Tree, path: &[String], gaps: bool, make: &Make<'_>) -> Result<Tree, Inapplicable> {
    let Some((last, way)) = path.split_last() else {
        return Err(Inapplicable);
    };
    within(root, way, last, &|container, fresh| match container {
        Tree::Map(mut map) => {
            if let Some(made) = make(map.get(last), Place::Key)? {
                map.insert(last.clone(), made);
            }
            Ok(Tree::Map(map))
        }
        Tree::List(mut list) => {
            let Some(at) = index(last) else {
                // A property that is no element: nothing to see (WIRE-605), unless the list is the operation's own.
                if fresh {
                    return Err(Inapplicable);
                }
                make(None, Place::NoIndex)?;
                return Ok(Tree::List(list));
            };
            let old = list.get(at).filter(|slot| **slot != Tree::Hole);
            let place = if at <= list.len() {
                Place::Next
            } else {
                Place::Beyond
            };
            if at > list.len() && (fresh || !gaps) {
                return Err(Inapplicable);
            }
            if let Some(made) = make(old, place)? {
                while list.len() <= at {
                    list.push(Tree::Hole);
                }
                list[at] = made;
            }
            Ok(Tree::List(list))
        }
        _ => Err(Inapplicable),
    })
}

/// `append` and `add-unique`.
fn push(root: Tree, path: &[String], longer: &dyn Fn(Vec<Tree>) -> Vec<Tree>) -> Result<Tree, Inapplicable> {
    create(root, path, true, &|old, place| match (old, place) {
        (Some(Tree::List(list)), _) => Ok(Some(Tree::List(longer(list.clone())))),
        (Some(_), _) => Err(Inapplicable),
        (None, Place::NoIndex) => Ok(None),
        (None, Place::Key | Place::Next | Place::Beyond) => Ok(Some(Tree::List(longer(Vec::new())))),
    })
}
