//! Writing values as canonical text (WIRE-303, WIRE-305, WIRE-309).

use num_bigint::BigInt;
use smol_str::SmolStr;
use thiserror::Error;

use super::json_lexer::plain_run;
use super::quoting::{MembersRef, QuotePlan, has_slash_key};
use super::special::{Field, State, nested_state};
use super::tagged::is_unknown_tag;
use super::{MAX_DEPTH, MAX_HOLES, PREFIX, base64, is_plain_number, unsafe_key};
use crate::js_string::JsString;
use crate::piece_buffer::PieceBuffer;
use crate::value::{Key, Object, SlotRef, Slots, Special, Value};

/// Why a value has no encoding.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EncodeError {
    /// The key is one of those no object may hold (WIRE-309).
    #[error("Cannot encode an object with a key this runtime reserves: `{0}`")]
    UnsafeKey(&'static str),
    /// The text would nest more than [`MAX_DEPTH`] levels (WIRE-312).
    #[error("value nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// The value is said to be of an unknown kind, under a tag that is a known kind's, or none at all: it would read back
    /// as something else (WIRE-305, WIRE-311).
    #[error("no unknown value can have the tag {0:?}")]
    NotAnUnknownTag(SmolStr),
    /// The arrays together hold more than [`MAX_HOLES`] holes (WIRE-314).
    #[error("value holds more than {MAX_HOLES} array holes")]
    TooManyHoles,
}

/// The value's text, prefix included. Two values have the same text exactly when the reference writes the same.
///
/// # Errors
/// [`EncodeError`] when the value has no encoding that [`super::decode`] would read back.
pub fn encode(value: &Value) -> Result<String, EncodeError> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(PREFIX.as_bytes());
    encode_into(&mut out, value)?;
    Ok(String::from_utf8(out).expect("the encoder writes whole UTF-8 strings and ASCII"))
}

/// Appends the value's text without the prefix; always whole UTF-8. On error, what was appended is unspecified.
///
/// # Errors
/// As [`encode`].
pub fn encode_into(out: &mut Vec<u8>, value: &Value) -> Result<(), EncodeError> {
    let mut encoder = Encoder {
        out: PieceBuffer::new(|chunk: &[u8]| out.extend_from_slice(chunk)),
        open: Vec::new(),
        literal_from: None,
        plan: QuotePlan::default(),
        holes: 0,
    };
    encoder.value(value)?;
    encoder.out.finish();
    Ok(())
}

/// One open bracket of the text, with what is left to be written inside it. The number of these is the depth of
/// the text.
enum Open<'a> {
    /// `[` of an array without holes.
    Elements(std::slice::Iter<'a, Value>),
    /// `{` of an object.
    Entries(std::slice::Iter<'a, (Key, Value)>),
    /// `{"/tag":`, whose one member is already open above or written.
    Wrapper,
    /// `[` of an array with holes.
    Slots(Box<Slots<'a>>),
    /// `{` of a state put together from slots.
    Fields(Box<std::vec::IntoIter<(Key, Field<'a>)>>),
}

/// What [`Encoder::members`] came upon.
enum Met<'a> {
    /// A member that is not flat.
    Value(&'a Value),
    Holes(u32),
    /// The end, with the bracket that closes it.
    End(u8),
}

struct Encoder<'a, C> {
    out: PieceBuffer<C>,
    open: Vec<Open<'a>>,
    /// While set, everything above this depth is literal content of a `/quote`.
    literal_from: Option<usize>,
    plan: QuotePlan<'a>,
    holes: u64,
}

impl<'a, C: FnMut(&[u8])> Encoder<'a, C> {
    fn value(&mut self, root: &'a Value) -> Result<(), EncodeError> {
        if !write_flat(&mut self.out, root) {
            self.begin(root)?;
        }
        // The member that comes next is the first in its bracket.
        let mut first = true;
        while let Some(open) = self.open.last_mut() {
            match members(&mut self.out, open, first)? {
                Met::Value(value) => first = self.begin(value)?,
                Met::Holes(n) => {
                    self.hole_run(n)?;
                    first = false;
                }
                Met::End(bracket) => {
                    self.out.byte(bracket);
                    self.open.pop();
                    if self.literal_from.is_some_and(|depth| self.open.len() < depth) {
                        self.literal_from = None;
                    }
                    first = false;
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, open: Open<'a>) -> Result<(), EncodeError> {
        if self.open.len() == MAX_DEPTH {
            return Err(EncodeError::TooDeep);
        }
        self.open.push(open);
        Ok(())
    }

    /// Writes a rarer flat value, or opens a container. True when a member comes next that is its bracket's first.
    #[inline]
    fn begin(&mut self, value: &'a Value) -> Result<bool, EncodeError> {
        match value {
            Value::Array(array) => {
                self.out.byte(b'[');
                match array.as_dense() {
                    Some(elements) => self.push(Open::Elements(elements.iter()))?,
                    None => self.push(Open::Slots(Box::new(array.slots())))?,
                }
                return Ok(true);
            }
            Value::Object(object) => return self.object(object).map(|()| true),
            Value::Special(special) => return self.special(special),
            Value::Null | Value::Bool(_) | Value::String(_) => {
                write_flat(&mut self.out, value);
            }
            Value::Number(n) => self.special_number(*n)?,
            Value::Undefined => self.flat(1, "Undefined@1", |out| out.bytes(b"null"))?,
            Value::BigInt(n) => self.integer("BigInt@1", n)?,
            Value::Symbol(key) => self.flat(1, "Symbol@1", |out| write_string(out, key))?,
            Value::Bytes(bytes) => self.flat(1, "Bytes@1", |out| write_base64(out, bytes))?,
        }
        Ok(false)
    }

    /// A number that JSON cannot hold.
    fn special_number(&mut self, n: f64) -> Result<(), EncodeError> {
        let text: &[u8] = if n == 0.0 {
            b"-0"
        } else if n.is_nan() {
            b"NaN"
        } else if n > 0.0 {
            b"+Infinity"
        } else {
            b"-Infinity"
        };
        self.flat(1, "SpecialNumber@1", |out| out.between(b'"', text, b'"'))
    }

    #[inline]
    fn object(&mut self, object: &'a Object) -> Result<(), EncodeError> {
        if self.literal_from.is_none() && has_slash_key(object.iter().map(|(key, _)| key)) {
            self.escape(MembersRef::Object(object))?;
        }
        self.out.byte(b'{');
        self.push(Open::Entries(object.entries().iter()))
    }

    fn fields(&mut self, fields: Vec<(Key, Field<'a>)>) -> Result<(), EncodeError> {
        if has_slash_key(fields.iter().map(|(key, _)| key)) {
            self.escape(MembersRef::Fields(&fields))?;
        }
        self.out.byte(b'{');
        self.push(Open::Fields(Box::new(fields.into_iter())))
    }

    /// Opens the wrapper that an object with `/`-keys needs.
    fn escape(&mut self, members: MembersRef<'_, 'a>) -> Result<(), EncodeError> {
        let quotable = self.plan.next_is_quotable(members);
        self.wrapper(if quotable { "quote" } else { "object" })?;
        if quotable {
            self.literal_from = Some(self.open.len());
        }
        Ok(())
    }

    fn wrapper(&mut self, tag: &str) -> Result<(), EncodeError> {
        write_tag(&mut self.out, tag);
        self.push(Open::Wrapper)
    }

    /// Writes a tagged form whose state holds no values and takes `depth` brackets, its own included.
    fn flat(
        &mut self,
        depth: usize,
        tag: &str,
        state: impl FnOnce(&mut PieceBuffer<C>),
    ) -> Result<(), EncodeError> {
        if self.open.len() + depth > MAX_DEPTH {
            return Err(EncodeError::TooDeep);
        }
        write_tag(&mut self.out, tag);
        state(&mut self.out);
        self.out.byte(b'}');
        Ok(())
    }

    fn integer(&mut self, tag: &str, n: &BigInt) -> Result<(), EncodeError> {
        self.flat(1, tag, |out| write_base64(out, &n.to_signed_bytes_be()))
    }

    fn hole_run(&mut self, n: u32) -> Result<(), EncodeError> {
        self.holes += u64::from(n);
        if self.holes > MAX_HOLES {
            return Err(EncodeError::TooManyHoles);
        }
        self.flat(1, "hole", |out| write_number(out, f64::from(n)))
    }

    /// True when a member comes next, as for [`Encoder::begin`].
    fn special(&mut self, special: &'a Special) -> Result<bool, EncodeError> {
        match special {
            Special::EpochNsec(n) => self.integer("EpochNsec@1", n)?,
            Special::EpochDay(n) => self.integer("EpochDay@1", n)?,
            Special::Hash { tag, bytes } => self.flat(2, "Hash@1", |out| {
                out.bytes(b"{\"hash\":");
                write_base64(out, bytes);
                out.bytes(b",\"tag\":");
                write_string(out, tag);
                out.byte(b'}');
            })?,
            Special::RegExp {
                source,
                flags,
                flavor,
            } => self.flat(2, "RegExp@1", |out| {
                out.bytes(b"{\"flags\":");
                write_string(out, flags);
                out.bytes(b",\"flavor\":");
                write_string(out, flavor);
                out.bytes(b",\"source\":");
                write_string(out, source);
                out.byte(b'}');
            })?,
            Special::KeyPair {
                algorithm,
                public,
                private,
            } => self.flat(2, "KeyPair@1", |out| {
                out.bytes(b"{\"algorithm\":");
                write_string(out, algorithm);
                out.bytes(b",\"privateKey\":");
                write_base64(out, private);
                out.bytes(b",\"publicKey\":");
                write_base64(out, public);
                out.byte(b'}');
            })?,
            Special::Error(_) | Special::Link(_) | Special::Unknown { .. } | Special::Problematic { .. } => {
                return self.nested(special);
            }
        }
        Ok(false)
    }

    /// Writes a kind that holds values. A chain of unknown tags is followed in a loop: each opens a wrapper only.
    fn nested(&mut self, mut special: &'a Special) -> Result<bool, EncodeError> {
        while let Some((tag, state)) = nested_state(special) {
            if matches!(special, Special::Unknown { .. }) && !is_unknown_tag(tag) {
                return Err(EncodeError::NotAnUnknownTag(tag.into()));
            }
            self.wrapper(tag)?;
            match state {
                State::Object(object) => return self.object(object).map(|()| true),
                State::Fields(fields) => return self.fields(fields).map(|()| true),
                State::Value(value) => match value {
                    Value::Special(inner) if matches!(inner.as_ref(), Special::Unknown { .. }) => {
                        special = inner
                    }
                    _ if write_flat(&mut self.out, value) => return Ok(false),
                    _ => return self.begin(value),
                },
            }
        }
        Ok(false)
    }
}

/// Writes members up to the first that is not flat. `first` says that none has been written in this bracket yet.
#[inline]
fn members<'a, C: FnMut(&[u8])>(
    out: &mut PieceBuffer<C>,
    open: &mut Open<'a>,
    mut first: bool,
) -> Result<Met<'a>, EncodeError> {
    let mut comma = |out: &mut PieceBuffer<C>| {
        if !std::mem::take(&mut first) {
            out.byte(b',');
        }
    };
    match open {
        Open::Elements(elements) => {
            for value in elements {
                comma(out);
                if !write_flat(out, value) {
                    return Ok(Met::Value(value));
                }
            }
            Ok(Met::End(b']'))
        }
        Open::Entries(entries) => {
            for (key, value) in entries {
                comma(out);
                write_key(out, key)?;
                if !write_flat(out, value) {
                    return Ok(Met::Value(value));
                }
            }
            Ok(Met::End(b'}'))
        }
        Open::Wrapper => Ok(Met::End(b'}')),
        Open::Slots(slots) => {
            for slot in slots.as_mut() {
                comma(out);
                match slot {
                    SlotRef::Holes(n) => return Ok(Met::Holes(n)),
                    SlotRef::Value(value) if write_flat(out, value) => {}
                    SlotRef::Value(value) => return Ok(Met::Value(value)),
                }
            }
            Ok(Met::End(b']'))
        }
        Open::Fields(fields) => {
            for (key, field) in fields.as_mut() {
                comma(out);
                write_key(out, &key)?;
                match field {
                    Field::Text(text) => write_string(out, text),
                    Field::Value(value) if write_flat(out, value) => {}
                    Field::Value(value) => return Ok(Met::Value(value)),
                }
            }
            Ok(Met::End(b'}'))
        }
    }
}

/// Writes a value that JSON has. False for any other, of which nothing is written.
#[inline(always)]
fn write_flat<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, value: &Value) -> bool {
    // Strings are most of what there is; asking for them first spares them the jump.
    if let Value::String(text) = value {
        write_string(out, text);
        return true;
    }
    match value {
        Value::Null => out.bytes(b"null"),
        Value::Bool(true) => out.bytes(b"true"),
        Value::Bool(false) => out.bytes(b"false"),
        Value::Number(n) if is_plain_number(*n) => write_number(out, *n),
        Value::String(text) => write_string(out, text),
        Value::Number(_)
        | Value::Undefined
        | Value::BigInt(_)
        | Value::Symbol(_)
        | Value::Bytes(_)
        | Value::Array(_)
        | Value::Object(_)
        | Value::Special(_) => return false,
    }
    true
}

#[inline(always)]
fn write_key<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, key: &Key) -> Result<(), EncodeError> {
    if let Some(key) = unsafe_key(key) {
        return Err(EncodeError::UnsafeKey(key));
    }
    write_string(out, key);
    out.byte(b':');
    Ok(())
}

fn write_tag<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, tag: &str) {
    out.bytes(b"{\"/");
    out.bytes(tag.as_bytes());
    out.bytes(b"\":");
}

fn write_base64<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, bytes: &[u8]) {
    out.between(b'"', base64::encode(bytes).as_bytes(), b'"');
}

/// ECMAScript `Number::toString` of a finite number (WIRE-303). Integers of exact doubles need no search for the
/// shortest digits: their decimal digits are the shortest.
fn write_number<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, n: f64) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if n.abs() < EXACT && n.trunc() == n {
        write_integer(out, n as i64);
    } else {
        out.bytes(ryu_js::Buffer::new().format_finite(n).as_bytes());
    }
}

fn write_integer<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, n: i64) {
    if n < 0 {
        out.byte(b'-');
    }
    let mut rest = n.unsigned_abs();
    if rest < 10 {
        return out.byte(b'0' + rest as u8);
    }
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    while rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.bytes(&digits[at..]);
}

/// A JSON string with exactly the escapes of WIRE-303.
#[inline(always)]
fn write_string<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, text: &JsString) {
    match text.as_str() {
        Some(text) if plain_run(text.as_bytes()) == text.len() => out.between(b'"', text.as_bytes(), b'"'),
        _ => write_escaped_string(out, text),
    }
}

#[cold]
fn write_escaped_string<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, text: &JsString) {
    out.byte(b'"');
    match text.as_str() {
        Some(text) => write_escaped(out, text.as_bytes()),
        None => {
            for point in char::decode_utf16(text.encode_utf16()) {
                match point {
                    Ok(point) => write_escaped(out, point.encode_utf8(&mut [0; 4]).as_bytes()),
                    Err(lone) => write_unicode_escape(out, lone.unpaired_surrogate()),
                }
            }
        }
    }
    out.byte(b'"');
}

/// Copies runs that need no escape at once.
fn write_escaped<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, mut rest: &[u8]) {
    loop {
        let plain = plain_run(rest);
        out.bytes(&rest[..plain]);
        match rest.get(plain) {
            None => return,
            Some(&byte) => {
                write_escape(out, byte);
                rest = &rest[plain + 1..];
            }
        }
    }
}

fn write_escape<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x09 => b't',
        0x0A => b'n',
        0x0C => b'f',
        0x0D => b'r',
        _ => return write_unicode_escape(out, u16::from(byte)),
    };
    out.bytes(&[b'\\', short]);
}

fn write_unicode_escape<C: FnMut(&[u8])>(out: &mut PieceBuffer<C>, unit: u16) {
    const LOWER_HEX: &[u8; 16] = b"0123456789abcdef";
    out.bytes(b"\\u");
    for shift in [12, 8, 4, 0] {
        out.byte(LOWER_HEX[usize::from(unit >> shift & 15)]);
    }
}
