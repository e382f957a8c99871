//! Which objects with `/`-keys can be written literally (WIRE-309). An object is quotable when everything below it
//! is plain JSON: no hole, no special number, nothing tagged.
//!
//! The answer for an object depends on its whole subtree, and such objects nest; the plan judges a subtree in
//! one walk and lists the answers in the order in which the encoder meets the objects.

use super::is_plain_number;
use super::special::{Field, State, nested_state};
use crate::value::{Key, Object, SlotRef, Slots, Value};

/// The answer for one object with `/`-keys.
struct Answer {
    quotable: bool,
    /// Index of the first answer after this object's subtree.
    after: usize,
}

/// Answers for the objects with `/`-keys of one subtree, consumed as the encoder meets them.
#[derive(Default)]
pub(super) struct QuotePlan<'v> {
    answers: Vec<Answer>,
    at: usize,
    /// The containers on the way down, during a walk.
    frames: Vec<Frame<'v>>,
    /// Indexes of the answers of those among them that are asked about.
    asked: Vec<usize>,
}

impl<'v> QuotePlan<'v> {
    /// The answer for the object that the encoder has just met. When it may be quoted, the answers for the objects
    /// inside it are skipped, since literal content is not asked about.
    pub(super) fn next_is_quotable(&mut self, members: MembersRef<'_, 'v>) -> bool {
        if self.at == self.answers.len() {
            self.answers.clear();
            self.at = 0;
            self.judge(members);
        }
        let answer = &self.answers[self.at];
        self.at = if answer.quotable {
            answer.after
        } else {
            self.at + 1
        };
        answer.quotable
    }
}

/// The members of the object asked about.
#[derive(Clone, Copy)]
pub(super) enum MembersRef<'r, 'v> {
    /// A plain object.
    Object(&'v Object),
    /// The state of a rare kind.
    Fields(&'r [(Key, Field<'v>)]),
}

/// True when an object with these keys, in canonical order, must be escaped. In that order `/` comes before every
/// letter, so that the first ordinary key answers.
#[inline]
pub(crate) fn has_slash_key<'k>(keys: impl Iterator<Item = &'k Key>) -> bool {
    for key in keys {
        match key.as_bytes().first() {
            Some(b'/') => return true,
            // Index keys stand before all others, whatever their first byte.
            Some(b'0'..=b'9') => {}
            Some(&first) if first > b'/' => return false,
            Some(_) | None => {}
        }
    }
    false
}

enum Open<'v> {
    Array(Slots<'v>),
    Entries(std::slice::Iter<'v, (Key, Value)>),
    Fields(std::vec::IntoIter<(Key, Field<'v>)>),
}

/// A container under way, with the index of its answer when it has `/`-keys.
struct Frame<'v> {
    open: Open<'v>,
    answer: Option<usize>,
}

impl<'v> QuotePlan<'v> {
    fn judge(&mut self, root: MembersRef<'_, 'v>) {
        match root {
            MembersRef::Object(object) => self.enter_object(object),
            MembersRef::Fields(fields) => self.enter_fields(fields.to_vec()),
        }
        while let Some(frame) = self.frames.last_mut() {
            let next = match &mut frame.open {
                Open::Array(slots) => match slots.next() {
                    Some(SlotRef::Value(value)) => Some(value),
                    Some(SlotRef::Holes(_)) => {
                        self.refuse();
                        continue;
                    }
                    None => None,
                },
                Open::Entries(entries) => entries.next().map(|(_, value)| value),
                Open::Fields(fields) => match fields.next() {
                    Some((_, Field::Value(value))) => Some(value),
                    Some((_, Field::Text(_))) => continue,
                    None => None,
                },
            };
            match next {
                Some(value) => self.enter(value),
                None => {
                    if let Some(answer) = frame.answer {
                        self.answers[answer].after = self.answers.len();
                        self.asked.pop();
                    }
                    self.frames.pop();
                }
            }
        }
    }

    fn enter(&mut self, mut value: &'v Value) {
        loop {
            match value {
                Value::Null | Value::Bool(_) | Value::String(_) => return,
                Value::Number(n) if is_plain_number(*n) => return,
                Value::Number(_)
                | Value::Undefined
                | Value::BigInt(_)
                | Value::Symbol(_)
                | Value::Bytes(_) => {
                    return self.refuse();
                }
                Value::Array(array) => {
                    return self.frames.push(Frame {
                        open: Open::Array(array.slots()),
                        answer: None,
                    });
                }
                Value::Object(object) => return self.enter_object(object),
                Value::Special(special) => {
                    self.refuse();
                    match nested_state(special) {
                        None => return,
                        Some((_, State::Value(state))) => value = state,
                        Some((_, State::Object(state))) => return self.enter_object(state),
                        Some((_, State::Fields(fields))) => return self.enter_fields(fields),
                    }
                }
            }
        }
    }

    fn enter_object(&mut self, object: &'v Object) {
        let answer = self.ask(has_slash_key(object.iter().map(|(key, _)| key)));
        self.frames.push(Frame {
            open: Open::Entries(object.entries().iter()),
            answer,
        });
    }

    fn enter_fields(&mut self, fields: Vec<(Key, Field<'v>)>) {
        let answer = self.ask(has_slash_key(fields.iter().map(|(key, _)| key)));
        self.frames.push(Frame {
            open: Open::Fields(fields.into_iter()),
            answer,
        });
    }

    fn ask(&mut self, slash: bool) -> Option<usize> {
        if !slash {
            return None;
        }
        let index = self.answers.len();
        self.answers.push(Answer {
            quotable: true,
            after: index + 1,
        });
        self.asked.push(index);
        Some(index)
    }

    /// Something here is not plain JSON: no object around it may be quoted. Stops at the first one already refused,
    /// because everything around that one is refused too.
    fn refuse(&mut self) {
        for &index in self.asked.iter().rev() {
            if !self.answers[index].quotable {
                break;
            }
            self.answers[index].quotable = false;
        }
    }
}
