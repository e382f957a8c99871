//! How deep a value nests and how many holes it claims (WIRE-312, WIRE-314). Decoding bounds both for one text; what
//! is put together from several texts, as a patched document is, has to be asked. Does not recurse.

use super::{Object, SlotRef, Slots, Value};
use crate::codec::{Field, State, nested_state};

/// Nesting and holes of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Containers around the innermost value: arrays, objects, and kinds that hold other values. 0 for a flat value.
    pub nesting: usize,
    /// Holes of all arrays together.
    pub holes: u64,
}

impl Extent {
    /// The extent of `value`; costs its size, and memory for its nesting.
    pub fn of(value: &Value) -> Extent {
        let mut extent = Extent::default();
        let mut open: Vec<Open<'_>> = Vec::new();
        enter(value, &mut open);
        while let Some(container) = open.last_mut() {
            let member = container.next(&mut extent.holes);
            extent.nesting = extent.nesting.max(open.len());
            match member {
                Some(member) => enter(member, &mut open),
                None => drop(open.pop()),
            }
        }
        extent
    }

    /// What both have: the deeper nesting, and the holes of both.
    #[must_use]
    pub fn beside(self, other: Extent) -> Extent {
        Extent {
            nesting: self.nesting.max(other.nesting),
            holes: self.holes + other.holes,
        }
    }
}

/// A container under way.
enum Open<'a> {
    Slots(Slots<'a>),
    Entries(&'a Object, usize),
    /// A kind with one state.
    State(Option<&'a Value>),
    Fields(std::vec::IntoIter<Field<'a>>),
}

/// Opens `value` when it is a container.
fn enter<'a>(value: &'a Value, open: &mut Vec<Open<'a>>) {
    match value {
        Value::Array(array) => open.push(Open::Slots(array.slots())),
        Value::Object(object) => open.push(Open::Entries(object, 0)),
        Value::Special(special) => match nested_state(special) {
            None => {}
            Some((_, State::Value(state))) => open.push(Open::State(Some(state))),
            Some((_, State::Object(state))) => {
                open.push(Open::State(None));
                open.push(Open::Entries(state, 0));
            }
            Some((_, State::Fields(fields))) => {
                open.push(Open::State(None));
                let fields: Vec<Field<'a>> = fields.into_iter().map(|(_, field)| field).collect();
                open.push(Open::Fields(fields.into_iter()));
            }
        },
        Value::Undefined
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::BigInt(_)
        | Value::Symbol(_)
        | Value::Bytes(_) => {}
    }
}

impl<'a> Open<'a> {
    /// The next member that may be a container; counts the holes before it.
    fn next(&mut self, holes: &mut u64) -> Option<&'a Value> {
        let container =
            |value: &&'a Value| matches!(value, Value::Array(_) | Value::Object(_) | Value::Special(_));
        match self {
            Open::Slots(slots) => slots.find_map(|slot| match slot {
                SlotRef::Value(value) => Some(value).filter(container),
                SlotRef::Holes(n) => {
                    *holes += u64::from(n);
                    None
                }
            }),
            Open::Entries(object, at) => {
                let rest = &object.entries()[*at..];
                let found = rest.iter().position(|(_, value)| container(&value));
                *at += found.map_or(rest.len(), |position| position + 1);
                found.map(|position| &rest[position].1)
            }
            Open::State(state) => state.take(),
            Open::Fields(fields) => fields.find_map(|field| match field {
                Field::Value(value) => Some(value).filter(container),
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
    fn wire_312_nesting_counts_containers_and_holes_add_up() {
        for (text, nesting, holes) in [
            ("1", 0, 0),
            ("\"x\"", 0, 0),
            ("{\"/Bytes@1\":\"AA\"}", 0, 0),
            ("[]", 1, 0),
            ("{}", 1, 0),
            ("[[],{\"a\":[1]},[]]", 3, 0),
            ("[{\"/hole\":3},[{\"/hole\":4}],1]", 2, 7),
            ("{\"/Zork@1\":{\"/Zork@1\":1}}", 2, 0),
            ("{\"/Zork@1\":[{\"/hole\":2}]}", 2, 2),
            ("{\"/Link@1\":{\"path\":[]}}", 3, 0),
            ("{\"/Error@1\":{\"cause\":[[]]}}", 4, 0),
        ] {
            let value = decode(&format!("fvj1:{text}")).unwrap();
            assert_eq!(Extent::of(&value), Extent { nesting, holes }, "{text}");
        }
    }
}
