//! How deep a value's text may nest and how many holes it claims (WIRE-312, WIRE-314). Decoding bounds both for one
//! text; what is put together from several texts, as a patched document is, has to be asked. Does not recurse.

use super::{Key, SlotRef, Slots, Special, Value};
use crate::codec::{Field, State, has_slash_key, is_plain_number, nested_state};

/// Depth and holes of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The most brackets that may be open at once in the value's text. Every object with `/`-keys counts as escaped on
    /// its own, which really depends on what else is in the document (WIRE-309): a bound, at most twice the real depth,
    /// that no change elsewhere in the document raises.
    pub depth: usize,
    /// Holes of all arrays together.
    pub holes: u64,
}

impl Extent {
    /// The extent of `value`; costs its size, and memory for its depth.
    pub fn of(value: &Value) -> Extent {
        let mut walk = Walk::default();
        walk.enter(value);
        while let Some(container) = walk.open.last_mut() {
            match container.members.next() {
                Some(Member::Value(value)) => walk.enter(value),
                Some(Member::Holes(n)) => {
                    walk.extent.holes += u64::from(n);
                    walk.reach(1);
                }
                None => {
                    walk.depth -= container.brackets;
                    walk.open.pop();
                }
            }
        }
        walk.extent
    }

    /// What both have: the deeper text, and the holes of both.
    #[must_use]
    pub fn beside(self, other: Extent) -> Extent {
        Extent {
            depth: self.depth.max(other.depth),
            holes: self.holes + other.holes,
        }
    }
}

#[derive(Default)]
struct Walk<'a> {
    extent: Extent,
    open: Vec<Container<'a>>,
    /// Brackets of all that is open.
    depth: usize,
}

/// A container under way, with the brackets that its text puts around a member.
struct Container<'a> {
    brackets: usize,
    members: Members<'a>,
}

enum Members<'a> {
    Slots(Slots<'a>),
    Entries(std::slice::Iter<'a, (Key, Value)>),
    One(Option<&'a Value>),
    Fields(std::vec::IntoIter<(Key, Field<'a>)>),
}

enum Member<'a> {
    Value(&'a Value),
    Holes(u32),
}

impl<'a> Walk<'a> {
    fn reach(&mut self, further: usize) {
        self.extent.depth = self.extent.depth.max(self.depth + further);
    }

    /// Takes the depth of a flat value, or opens a container.
    fn enter(&mut self, value: &'a Value) {
        match value {
            Value::Null | Value::Bool(_) | Value::String(_) => {}
            Value::Number(n) if is_plain_number(*n) => {}
            Value::Number(_) | Value::Undefined | Value::BigInt(_) | Value::Symbol(_) | Value::Bytes(_) => {
                self.reach(1)
            }
            Value::Array(array) => self.push(1, Members::Slots(array.slots())),
            Value::Object(object) => {
                let entries = object.entries();
                self.push(object_brackets(entries), Members::Entries(entries.iter()));
            }
            Value::Special(special) => self.enter_special(special),
        }
    }

    fn enter_special(&mut self, special: &'a Special) {
        match nested_state(special) {
            None => self.reach(2),
            Some((_, State::Value(state))) => self.push(1, Members::One(Some(state))),
            Some((_, State::Object(state))) => {
                let entries = state.entries();
                self.push(1 + object_brackets(entries), Members::Entries(entries.iter()));
            }
            Some((_, State::Fields(fields))) => {
                self.push(1 + object_brackets(&fields), Members::Fields(fields.into_iter()));
            }
        }
    }

    fn push(&mut self, brackets: usize, members: Members<'a>) {
        self.depth += brackets;
        self.reach(0);
        self.open.push(Container { brackets, members });
    }
}

/// The brackets of an object: its own, and those of the escape that `/`-keys need.
fn object_brackets<V>(entries: &[(Key, V)]) -> usize {
    1 + usize::from(has_slash_key(entries.iter().map(|(key, _)| key)))
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        match self {
            Members::Slots(slots) => slots.next().map(|slot| match slot {
                SlotRef::Value(value) => Member::Value(value),
                SlotRef::Holes(n) => Member::Holes(n),
            }),
            Members::Entries(entries) => entries.next().map(|(_, value)| Member::Value(value)),
            Members::One(state) => state.take().map(Member::Value),
            Members::Fields(fields) => fields.find_map(|(_, field)| match field {
                Field::Value(value) => Some(Member::Value(value)),
                Field::Text(_) => None,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::decode;

    #[test]
    fn wire_312_depth_bounds_the_brackets_and_holes_add_up() {
        for (text, depth, holes) in [
            ("null", 0, 0),
            ("\"x\"", 0, 0),
            ("1", 0, 0),
            ("{\"/SpecialNumber@1\":\"-0\"}", 1, 0),
            ("{\"/Undefined@1\":null}", 1, 0),
            ("{\"/Bytes@1\":\"AA\"}", 1, 0),
            ("{\"/Hash@1\":{\"hash\":\"\",\"tag\":\"\"}}", 2, 0),
            ("[]", 1, 0),
            ("{}", 1, 0),
            ("[[],{\"a\":[\"\"]},[]]", 3, 0),
            ("[{\"/hole\":3},[{\"/hole\":4}],null]", 3, 7),
            ("{\"/quote\":{\"/a\":null}}", 2, 0),
            // Really three deep, as long as nothing in it needs a tag.
            ("{\"/quote\":{\"/a\":{\"/b\":null}}}", 4, 0),
            ("{\"/Zork@1\":{\"/Zork@1\":null}}", 2, 0),
            ("{\"/Zork@1\":[{\"/hole\":2}]}", 3, 2),
            ("{\"/Link@1\":{\"path\":[]}}", 3, 0),
            ("{\"/Error@1\":{\"cause\":[[]]}}", 4, 0),
        ] {
            let value = decode(&format!("fvj1:{text}")).unwrap();
            assert_eq!(Extent::of(&value), Extent { depth, holes }, "{text}");
        }
    }
}
