//! What random commits write and where: paths, leaves and patches, made from a seed's numbers.

use memory_wire::patch::PatchOp;
use memory_wire::pointer::{DocPath, encode_pointer};
use memory_wire::value;
use memory_wire::value::{Array, Slot, Value};

use super::tree::Tree;

const KEYS: [&str; 3] = ["a", "b", "c"];

/// A sequence of numbers made from a seed (SplitMix64).
pub(crate) struct Entropy(u64);

impl Entropy {
    pub(crate) fn of(seed: u64) -> Entropy {
        Entropy(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

/// A path below `value`, at most three segments deep; now and then an element of a list.
pub(super) fn path(entropy: &mut Entropy, shortest: u64) -> DocPath {
    let mut path: DocPath = vec!["value".into()];
    for _ in 0..shortest + entropy.below(4 - shortest) {
        let index = entropy.one_in(10);
        path.push(
            if index {
                entropy.pick(&["0", "1", "3", "-"])
            } else {
                entropy.pick(&KEYS)
            }
            .into(),
        );
    }
    path
}

pub(super) fn leaf(entropy: &mut Entropy) -> Value {
    match entropy.below(8) {
        0 => value!({ "a": 1, "b": { "c": 2 } }),
        1 => value!([1, 2]),
        2 => value!([{ "a": 1 }, [], 3]),
        3 => Value::Number(-0.0),
        4 => value!("text"),
        n => Value::from(n as i32 - 5),
    }
}

/// A patch that suits what the document holds at some place.
pub(super) fn fitting_patch(entropy: &mut Entropy, document: &Tree) -> PatchOp {
    let mut path: DocPath = vec!["value".into()];
    let mut here = document.key("value");
    while let Some(Tree::Map(map)) = here {
        let keys: Vec<&String> = map.keys().collect();
        if keys.is_empty() || entropy.one_in(4) {
            break;
        }
        let key = entropy.pick(&keys);
        path.push(key.as_str().into());
        here = map.get(key);
    }
    let creates_key = entropy.one_in(4);
    match (here, entropy.below(6)) {
        (_, 0) if path.len() > 1 => PatchOp::remove(path),
        (_, 1) if path.len() > 1 => PatchOp::replace(path, leaf(entropy)),
        (Some(Tree::List(_)), 2) => PatchOp::add_unique(path, vec![leaf(entropy)], creates_key),
        (Some(Tree::List(_)), 3) => PatchOp::remove_by_value(path, leaf(entropy)),
        (Some(Tree::List(_)), _) => PatchOp::append(path, vec![leaf(entropy)], creates_key),
        (Some(Tree::Number(_)), _) => PatchOp::increment(path, 1.0, creates_key),
        (Some(Tree::Map(_)), n) => {
            path.push(entropy.pick(&KEYS).into());
            if n == 5 {
                path.push(entropy.pick(&KEYS).into());
            }
            PatchOp::add(path, leaf(entropy))
        }
        _ => PatchOp::replace(path, leaf(entropy)),
    }
}

pub(super) fn patch(entropy: &mut Entropy) -> PatchOp {
    let target = path(entropy, 1);
    let pointer = |path: &DocPath| encode_pointer(path);
    let stated = |operation: Value| PatchOp::from_value(&operation).expect("a well-formed operation");
    match entropy.below(14) {
        0..=2 => PatchOp::add(target, leaf(entropy)),
        3 | 4 => PatchOp::replace(target, leaf(entropy)),
        5 => PatchOp::remove(target),
        6 | 7 => PatchOp::append(target, vec![leaf(entropy)], entropy.one_in(2)),
        8 => PatchOp::add_unique(target, vec![1.into(), leaf(entropy), 1.into()], entropy.one_in(2)),
        9 => PatchOp::remove_by_value(target, leaf(entropy)),
        10 | 11 => PatchOp::increment(target, entropy.pick(&[1.0, -2.0, 0.5]), entropy.one_in(2)),
        12 => {
            let from = pointer(&path(entropy, 1));
            stated(value!({ "op": "move", "from": from, "path": (pointer(&target)) }))
        }
        _ => {
            let (index, remove) = (entropy.below(4) as f64 - 1.0, entropy.below(3) as f64);
            let add = (0..entropy.below(3)).map(|_| leaf(entropy)).collect::<Vec<_>>();
            stated(value!({
                "op": "splice", "path": (pointer(&target)), "index": index, "remove": remove, "add": add
            }))
        }
    }
}

/// The value of a tree.
pub(crate) fn value_of(tree: &Tree) -> Value {
    match tree {
        Tree::Null => Value::Null,
        Tree::Bool(flag) => Value::Bool(*flag),
        Tree::Number(n) => Value::Number(*n),
        Tree::Text(text) => text.as_str().into(),
        Tree::List(list) => {
            let slot = |tree: &Tree| match tree {
                Tree::Hole => Slot::Holes(1),
                other => Slot::Value(value_of(other)),
            };
            Array::from_slots(list.iter().map(slot).collect())
                .expect("lists of schedules are short")
                .into()
        }
        Tree::Map(map) => Value::Object(
            map.iter()
                .map(|(key, tree)| (key.as_str(), value_of(tree)))
                .collect(),
        ),
        Tree::Hole => Value::Undefined,
    }
}
