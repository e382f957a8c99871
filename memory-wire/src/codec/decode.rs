//! Reading encoded text into values in one pass (WIRE-304…310, WIRE-312, WIRE-314). Strict: any failure fails the
//! whole text. Deviating from a reader that drops shadowed members first, a malformed value under a duplicate
//! key fails too.

use smol_str::SmolStr;
use thiserror::Error;

use super::json_lexer::JsonLexer;
use super::regexp::Judge;
use super::{MAX_DEPTH, MAX_HOLES, PREFIX, tagged, unsafe_key};
use crate::value::{Array, Key, Object, Slot, Value};

/// Why a text is no encoded value, and where.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("encoded value, byte {at}: {reason}")]
pub struct DecodeError {
    /// Byte offset into the text.
    pub at: usize,
    /// What is wrong there.
    pub reason: DecodeReason,
}

/// What is wrong with an encoded text.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DecodeReason {
    /// The text does not start with the prefix.
    #[error("expected the prefix `fvj1:`")]
    Prefix,
    /// The JSON grammar wants something else here.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A raw control character in a string.
    #[error("raw control character in a string")]
    ControlCharacter,
    /// The text ends inside a string.
    #[error("unterminated string")]
    Unterminated,
    /// A backslash with something JSON does not know.
    #[error("malformed escape in a string")]
    BadEscape,
    /// Not a JSON number.
    #[error("malformed number")]
    BadNumber,
    /// Text after the value.
    #[error("unexpected text after the value")]
    Trailing,
    /// A key that no object may hold (WIRE-309).
    #[error("object key {0:?} is not allowed")]
    UnsafeKey(&'static str),
    /// A single `/`-key that is no tag (WIRE-310).
    #[error("malformed tag {0:?}")]
    MalformedTag(SmolStr),
    /// Several keys, one of them with `/` (WIRE-310).
    #[error("unescaped `/` key among several keys")]
    UnescapedSlashKey,
    /// A tag that is reserved and has no decoding.
    #[error("tag `/{0}` is reserved")]
    ReservedTag(SmolStr),
    /// The state does not fit the tag (WIRE-305).
    #[error("`/{tag}`: expected {expected}")]
    BadState {
        /// The tag.
        tag: SmolStr,
        /// What its state must be or hold.
        expected: &'static str,
    },
    /// Flags or source of a checked regular expression are wrong.
    #[error("`/RegExp@1`: {0}")]
    BadRegExp(String),
    /// Not a count of holes, or the array becomes too long (WIRE-308).
    #[error("`/hole`: expected a positive integer count, and at most 2^32-1 slots in the array")]
    BadHole,
    /// Too many holes in one text (WIRE-314).
    #[error("more than {MAX_HOLES} array holes")]
    TooManyHoles,
    /// Too many nested brackets (WIRE-312).
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// The value of an encoded text, prefix included.
///
/// # Errors
/// [`DecodeError`] with the position and the reason.
pub fn decode(text: &str) -> Result<Value, DecodeError> {
    if !text.starts_with(PREFIX) {
        return Err(DecodeError {
            at: 0,
            reason: DecodeReason::Prefix,
        });
    }
    Decoder::new(text, PREFIX.len()).text()
}

/// The value of an encoded text whose prefix is already gone.
///
/// # Errors
/// As [`decode`]; positions count from the start of `body`.
pub fn decode_body(body: &str) -> Result<Value, DecodeError> {
    Decoder::new(body, 0).text()
}

/// How the content of a container is to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Encoded: `/`-keys are tags.
    Encoded,
    /// State of `/object`: keys are literal, values encoded.
    Unwrapped,
    /// Content of `/quote`: everything is literal.
    Literal,
}

/// One open bracket.
struct Open {
    is_array: bool,
    mode: Mode,
    /// How the value that comes next is to be read; of an object it depends on the key.
    content: Mode,
    /// An object in [`Mode::Encoded`] has met a `/`-key.
    slash: bool,
    /// Where this container's members begin among the pending members or elements.
    base: usize,
    /// Where this array's hole runs begin among the pending runs.
    holes_base: usize,
}

/// A finished member: a value, or a run of holes, which only an array can take.
enum Item {
    Value(Value),
    Holes(u32),
}

struct Decoder<'a> {
    lexer: JsonLexer<'a>,
    open: Vec<Open>,
    /// Members of all open objects; the last member of an object under way holds its key and no value yet.
    members: Vec<(Key, Value)>,
    /// Elements of all open arrays, holes left out.
    elements: Vec<Value>,
    /// Hole runs of all open arrays: the number of pending elements before the run, and its length.
    holes: Vec<(usize, u32)>,
    hole_total: u64,
    judge: Judge,
}

impl<'a> Decoder<'a> {
    fn new(text: &'a str, at: usize) -> Decoder<'a> {
        Decoder {
            lexer: JsonLexer::new(text, at),
            open: Vec::with_capacity(16),
            members: Vec::with_capacity(32),
            elements: Vec::with_capacity(32),
            holes: Vec::new(),
            hole_total: 0,
            judge: Judge::new(),
        }
    }

    fn text(mut self) -> Result<Value, DecodeError> {
        let mut mode = Mode::Encoded;
        loop {
            if let Some(value) = self.begin(mode)? {
                match self.deliver(Item::Value(value))? {
                    Next::Begin(content) => mode = content,
                    Next::Done(value) => {
                        return match self.lexer.peek() {
                            None => Ok(value),
                            Some(_) => self.lexer.fail(DecodeReason::Trailing),
                        };
                    }
                }
            } else {
                // A container was opened and has a first member.
                mode = self.open.last().map_or(Mode::Encoded, |open| open.content);
            }
        }
    }

    /// Reads a flat value or an empty container, or opens a container up to its first member's value.
    #[inline]
    fn begin(&mut self, mode: Mode) -> Result<Option<Value>, DecodeError> {
        Ok(Some(match self.lexer.peek() {
            Some(b'"') => Value::String(self.lexer.string()?),
            Some(b'-' | b'0'..=b'9') => Value::Number(self.lexer.number()?),
            Some(b'{') => {
                self.enter(false, mode)?;
                if self.lexer.peek() == Some(b'}') {
                    self.lexer.advance();
                    self.open.pop();
                    Value::Object(Object::new())
                } else {
                    self.key()?;
                    return Ok(None);
                }
            }
            Some(b'[') => {
                // Keys are literal only in the object that `/object` wraps, and an array is none.
                self.enter(
                    true,
                    if mode == Mode::Unwrapped {
                        Mode::Encoded
                    } else {
                        mode
                    },
                )?;
                if self.lexer.peek() == Some(b']') {
                    self.lexer.advance();
                    self.open.pop();
                    Value::Array(Array::new())
                } else {
                    return Ok(None);
                }
            }
            Some(b't') => {
                self.lexer.keyword("true")?;
                Value::Bool(true)
            }
            Some(b'f') => {
                self.lexer.keyword("false")?;
                Value::Bool(false)
            }
            Some(b'n') => {
                self.lexer.keyword("null")?;
                Value::Null
            }
            Some(_) | None => return self.lexer.fail(DecodeReason::Expected("a value")),
        }))
    }

    #[inline]
    fn enter(&mut self, is_array: bool, mode: Mode) -> Result<(), DecodeError> {
        if self.open.len() == MAX_DEPTH {
            return self.lexer.fail(DecodeReason::TooDeep);
        }
        self.lexer.advance();
        self.open.push(Open {
            is_array,
            mode,
            content: if mode == Mode::Unwrapped {
                Mode::Encoded
            } else {
                mode
            },
            slash: false,
            base: if is_array {
                self.elements.len()
            } else {
                self.members.len()
            },
            holes_base: self.holes.len(),
        });
        Ok(())
    }

    /// Reads a key and its colon, and leaves the member waiting for its value.
    #[inline]
    fn key(&mut self) -> Result<(), DecodeError> {
        if self.lexer.peek() != Some(b'"') {
            return self.lexer.fail(DecodeReason::Expected("an object key"));
        }
        let key = self.lexer.string()?;
        if let Some(key) = unsafe_key(&key) {
            return self.lexer.fail(DecodeReason::UnsafeKey(key));
        }
        if self.lexer.peek() != Some(b':') {
            return self.lexer.fail(DecodeReason::Expected("`:` after an object key"));
        }
        self.lexer.advance();
        let open = self.open.last_mut().expect("a key is read only inside an object");
        if open.mode == Mode::Encoded && key.as_bytes().first() == Some(&b'/') {
            open.slash = true;
            open.content = match key.as_bytes() {
                b"/quote" => Mode::Literal,
                b"/object" => Mode::Unwrapped,
                _ => Mode::Encoded,
            };
        }
        self.members.push((key, Value::Undefined));
        Ok(())
    }

    /// Gives a finished value to the container around it, and closes every container that ends with it.
    #[inline]
    fn deliver(&mut self, mut item: Item) -> Result<Next, DecodeError> {
        loop {
            let Some(open) = self.open.last() else {
                return match item {
                    Item::Value(value) => Ok(Next::Done(value)),
                    Item::Holes(_) => self.lexer.fail(DecodeReason::MalformedTag("/hole".into())),
                };
            };
            let content = open.content;
            if open.is_array {
                match item {
                    Item::Value(value) => self.elements.push(value),
                    Item::Holes(n) => self.holes.push((self.elements.len(), n)),
                }
                match self.lexer.peek() {
                    Some(b',') => {
                        self.lexer.advance();
                        return Ok(Next::Begin(content));
                    }
                    Some(b']') => {
                        self.lexer.advance();
                        item = Item::Value(self.close_array()?);
                    }
                    Some(_) | None => return self.lexer.fail(DecodeReason::Expected("`,` or `]`")),
                }
            } else {
                match item {
                    Item::Value(value) => {
                        self.members
                            .last_mut()
                            .expect("an open object has a member under way")
                            .1 = value;
                    }
                    Item::Holes(_) => return self.lexer.fail(DecodeReason::MalformedTag("/hole".into())),
                }
                match self.lexer.peek() {
                    Some(b',') => {
                        self.lexer.advance();
                        self.key()?;
                        let content = self.open.last().map_or(Mode::Encoded, |open| open.content);
                        return Ok(Next::Begin(content));
                    }
                    Some(b'}') => {
                        self.lexer.advance();
                        item = self.close_object()?;
                    }
                    Some(_) | None => return self.lexer.fail(DecodeReason::Expected("`,` or `}`")),
                }
            }
        }
    }

    fn close_array(&mut self) -> Result<Value, DecodeError> {
        let open = self.open.pop().expect("an array is open");
        if self.holes.len() == open.holes_base {
            return Ok(Value::Array(take_tail(&mut self.elements, open.base).into()));
        }
        let mut slots: Vec<Slot> = Vec::with_capacity(self.elements.len() - open.base + 1);
        let mut elements = self.elements.drain(open.base..);
        let mut before = open.base;
        for (at, n) in self.holes.drain(open.holes_base..) {
            slots.extend(elements.by_ref().take(at - before).map(Slot::Value));
            slots.push(Slot::Holes(n));
            before = at;
        }
        slots.extend(elements.map(Slot::Value));
        match Array::from_slots(slots) {
            Some(array) => Ok(Value::Array(array)),
            None => self.lexer.fail(DecodeReason::BadHole),
        }
    }

    #[inline]
    fn close_object(&mut self) -> Result<Item, DecodeError> {
        let open = self.open.pop().expect("an object is open");
        let object = Object::from_entries(take_tail(&mut self.members, open.base));
        if open.slash {
            self.tagged(object)
        } else {
            Ok(Item::Value(Value::Object(object)))
        }
    }

    /// The meaning of an object with a `/`-key.
    #[cold]
    fn tagged(&mut self, object: Object) -> Result<Item, DecodeError> {
        let [(key, state)] = object.entries() else {
            return self.lexer.fail(DecodeReason::UnescapedSlashKey);
        };
        let malformed = || DecodeReason::MalformedTag(key.to_string().into());
        let Some(tag) = key.as_str().and_then(|key| key.strip_prefix('/')) else {
            return self.lexer.fail(malformed());
        };
        let state = state.clone();
        match tag {
            "quote" => Ok(Item::Value(state)),
            "object" => match state {
                Value::Object(_) => Ok(Item::Value(state)),
                _ => self.lexer.fail(DecodeReason::BadState {
                    tag: "object".into(),
                    expected: "a plain object",
                }),
            },
            "hole" => self.hole_run(&state),
            _ if tagged::is_tag(tag) => match tagged::from_state(tag, state, &mut self.judge) {
                Ok(value) => Ok(Item::Value(value)),
                Err(reason) => self.lexer.fail(reason),
            },
            _ => self.lexer.fail(malformed()),
        }
    }

    fn hole_run(&mut self, state: &Value) -> Result<Item, DecodeError> {
        let count = state
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|&n| n > 0);
        let Some(n) = count else {
            return self.lexer.fail(DecodeReason::BadHole);
        };
        self.hole_total += u64::from(n);
        if self.hole_total > MAX_HOLES {
            return self.lexer.fail(DecodeReason::TooManyHoles);
        }
        Ok(Item::Holes(n))
    }
}

/// Members of a container that has most of what is pending; moved as they are, so that they never lie in memory twice.
const LARGE: usize = 1 << 12;

/// Takes what is pending from `base` on.
#[inline]
fn take_tail<T>(pending: &mut Vec<T>, base: usize) -> Vec<T> {
    let count = pending.len() - base;
    if count < LARGE || count < base {
        return pending.split_off(base);
    }
    let mut all = std::mem::take(pending);
    pending.extend(all.drain(..base));
    all.shrink_to_fit();
    all
}

/// What follows a delivered value.
enum Next {
    /// The next member of a container, to be read in this mode.
    Begin(Mode),
    /// Nothing: the text's value is complete.
    Done(Value),
}
