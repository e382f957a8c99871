//! Writing values as canonical text (WIRE-303, WIRE-305, WIRE-309).

use num_bigint::BigInt;
use thiserror::Error;

use super::quoting::{MembersRef, QuotePlan, has_slash_key};
use super::special::{Field, State, nested_state};
use super::{MAX_DEPTH, MAX_HOLES, PREFIX, base64, is_unsafe_key};
use crate::js_string::JsString;
use crate::value::{Key, Object, SlotRef, Slots, Special, Value};

/// Why a value has no encoding.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EncodeError {
    /// The key is one of those no object may hold (WIRE-309).
    #[error("object key {0:?} cannot be encoded")]
    UnsafeKey(String),
    /// The text would nest more than [`MAX_DEPTH`] levels (WIRE-312).
    #[error("value nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
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
        out,
        open: Vec::new(),
        literal_from: None,
        plan: QuotePlan::default(),
        holes: 0,
    };
    encoder.value(value)?;
    while encoder.step()? {}
    Ok(())
}

/// One open bracket of the text. The number of these is the depth of the text.
enum Open<'a> {
    /// `[`
    Array { slots: Slots<'a>, first: bool },
    /// `{` of an object.
    Entries {
        entries: std::slice::Iter<'a, (Key, Value)>,
        first: bool,
    },
    /// `{` of a state put together from slots.
    Fields {
        fields: std::vec::IntoIter<(Key, Field<'a>)>,
        first: bool,
    },
    /// `{"/tag":`, whose one member is already open above or written.
    Wrapper,
}

struct Encoder<'a, 'o> {
    out: &'o mut Vec<u8>,
    open: Vec<Open<'a>>,
    /// While set, everything above this depth is literal content of a `/quote`.
    literal_from: Option<usize>,
    plan: QuotePlan,
    holes: u64,
}

impl<'a> Encoder<'a, '_> {
    /// Writes the next member of the innermost open bracket, or closes it. False when none is open.
    #[inline]
    fn step(&mut self) -> Result<bool, EncodeError> {
        let Some(open) = self.open.last_mut() else {
            return Ok(false);
        };
        match open {
            Open::Entries { entries, first } => match entries.next() {
                Some((key, value)) => {
                    if !std::mem::take(first) {
                        self.out.push(b',');
                    }
                    self.key(key)?;
                    self.value(value)?;
                }
                None => self.close(b'}'),
            },
            Open::Array { slots, first } => match slots.next() {
                Some(slot) => {
                    if !std::mem::take(first) {
                        self.out.push(b',');
                    }
                    match slot {
                        SlotRef::Value(value) => self.value(value)?,
                        SlotRef::Holes(n) => self.holes(n)?,
                    }
                }
                None => self.close(b']'),
            },
            Open::Fields { fields, first } => match fields.next() {
                Some((key, field)) => {
                    if !std::mem::take(first) {
                        self.out.push(b',');
                    }
                    self.key(&key)?;
                    match field {
                        Field::Value(value) => self.value(value)?,
                        Field::Text(text) => write_string(self.out, text),
                    }
                }
                None => self.close(b'}'),
            },
            Open::Wrapper => self.close(b'}'),
        }
        Ok(true)
    }

    fn close(&mut self, bracket: u8) {
        self.out.push(bracket);
        self.open.pop();
        if self.literal_from.is_some_and(|depth| self.open.len() < depth) {
            self.literal_from = None;
        }
    }

    fn push(&mut self, open: Open<'a>) -> Result<(), EncodeError> {
        if self.open.len() == MAX_DEPTH {
            return Err(EncodeError::TooDeep);
        }
        self.open.push(open);
        Ok(())
    }

    #[inline]
    fn key(&mut self, key: &Key) -> Result<(), EncodeError> {
        if is_unsafe_key(key) {
            return Err(EncodeError::UnsafeKey(key.to_string()));
        }
        write_string(self.out, key);
        self.out.push(b':');
        Ok(())
    }

    /// Writes a flat value, or opens a container.
    #[inline]
    fn value(&mut self, value: &'a Value) -> Result<(), EncodeError> {
        match value {
            Value::Null => self.out.extend_from_slice(b"null"),
            Value::Bool(true) => self.out.extend_from_slice(b"true"),
            Value::Bool(false) => self.out.extend_from_slice(b"false"),
            Value::Number(n) => return self.number(*n),
            Value::String(text) => write_string(self.out, text),
            Value::Array(array) => {
                self.push(Open::Array {
                    slots: array.slots(),
                    first: true,
                })?;
                self.out.push(b'[');
            }
            Value::Object(object) => return self.object(object),
            Value::Undefined => return self.flat("Undefined@1", |out| out.extend_from_slice(b"null")),
            Value::BigInt(n) => return self.integer("BigInt@1", n),
            Value::Symbol(key) => return self.flat("Symbol@1", |out| write_string(out, key)),
            Value::Bytes(bytes) => return self.flat("Bytes@1", |out| write_base64(out, bytes)),
            Value::Special(special) => return self.special(special),
        }
        Ok(())
    }

    fn number(&mut self, n: f64) -> Result<(), EncodeError> {
        let special = if n == 0.0 && n.is_sign_negative() {
            "-0"
        } else if n.is_finite() {
            write_number(self.out, n);
            return Ok(());
        } else if n.is_nan() {
            "NaN"
        } else if n > 0.0 {
            "+Infinity"
        } else {
            "-Infinity"
        };
        self.flat("SpecialNumber@1", |out| write_ascii(out, special))
    }

    fn object(&mut self, object: &'a Object) -> Result<(), EncodeError> {
        if self.literal_from.is_none() && has_slash_key(object.iter().map(|(key, _)| key)) {
            self.escape(MembersRef::Object(object))?;
        }
        self.push(Open::Entries {
            entries: object.entries().iter(),
            first: true,
        })?;
        self.out.push(b'{');
        Ok(())
    }

    fn fields(&mut self, fields: Vec<(Key, Field<'a>)>) -> Result<(), EncodeError> {
        if has_slash_key(fields.iter().map(|(key, _)| key)) {
            self.escape(MembersRef::Fields(&fields))?;
        }
        self.push(Open::Fields {
            fields: fields.into_iter(),
            first: true,
        })?;
        self.out.push(b'{');
        Ok(())
    }

    /// Opens the wrapper that an object with `/`-keys needs.
    #[cold]
    fn escape(&mut self, members: MembersRef<'_, 'a>) -> Result<(), EncodeError> {
        let quotable = self.plan.next_is_quotable(members);
        self.wrapper(if quotable { "quote" } else { "object" })?;
        if quotable {
            self.literal_from = Some(self.open.len());
        }
        Ok(())
    }

    fn wrapper(&mut self, tag: &str) -> Result<(), EncodeError> {
        self.push(Open::Wrapper)?;
        write_tag(self.out, tag);
        Ok(())
    }

    /// Writes a tagged form whose state holds no values.
    fn flat(&mut self, tag: &str, state: impl FnOnce(&mut Vec<u8>)) -> Result<(), EncodeError> {
        self.flat_of_depth(1, tag, state)
    }

    fn flat_of_depth(
        &mut self,
        depth: usize,
        tag: &str,
        state: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), EncodeError> {
        if self.open.len() + depth > MAX_DEPTH {
            return Err(EncodeError::TooDeep);
        }
        write_tag(self.out, tag);
        state(self.out);
        self.out.push(b'}');
        Ok(())
    }

    fn integer(&mut self, tag: &str, n: &BigInt) -> Result<(), EncodeError> {
        self.flat(tag, |out| write_base64(out, &n.to_signed_bytes_be()))
    }

    fn holes(&mut self, n: u32) -> Result<(), EncodeError> {
        self.holes += u64::from(n);
        if self.holes > MAX_HOLES {
            return Err(EncodeError::TooManyHoles);
        }
        self.flat("hole", |out| write_number(out, f64::from(n)))
    }

    fn special(&mut self, special: &'a Special) -> Result<(), EncodeError> {
        match special {
            Special::EpochNsec(n) => self.integer("EpochNsec@1", n),
            Special::EpochDay(n) => self.integer("EpochDay@1", n),
            Special::Hash { tag, bytes } => self.flat_of_depth(2, "Hash@1", |out| {
                out.extend_from_slice(b"{\"hash\":");
                write_base64(out, bytes);
                out.extend_from_slice(b",\"tag\":");
                write_string(out, tag);
                out.push(b'}');
            }),
            Special::RegExp {
                source,
                flags,
                flavor,
            } => self.flat_of_depth(2, "RegExp@1", |out| {
                out.extend_from_slice(b"{\"flags\":");
                write_string(out, flags);
                out.extend_from_slice(b",\"flavor\":");
                write_string(out, flavor);
                out.extend_from_slice(b",\"source\":");
                write_string(out, source);
                out.push(b'}');
            }),
            Special::KeyPair {
                algorithm,
                public,
                private,
            } => self.flat_of_depth(2, "KeyPair@1", |out| {
                out.extend_from_slice(b"{\"algorithm\":");
                write_string(out, algorithm);
                out.extend_from_slice(b",\"privateKey\":");
                write_base64(out, private);
                out.extend_from_slice(b",\"publicKey\":");
                write_base64(out, public);
                out.push(b'}');
            }),
            Special::Error(_) | Special::Link(_) | Special::Unknown { .. } | Special::Problematic { .. } => {
                self.nested(special)
            }
        }
    }

    /// Writes a kind that holds values. A chain of unknown tags is followed in a loop: each opens a wrapper only.
    fn nested(&mut self, mut special: &'a Special) -> Result<(), EncodeError> {
        while let Some((tag, state)) = nested_state(special) {
            self.wrapper(tag)?;
            match state {
                State::Object(object) => return self.object(object),
                State::Fields(fields) => return self.fields(fields),
                State::Value(value) => match value {
                    Value::Special(inner) if matches!(inner.as_ref(), Special::Unknown { .. }) => {
                        special = inner
                    }
                    _ => return self.value(value),
                },
            }
        }
        Ok(())
    }
}

fn write_tag(out: &mut Vec<u8>, tag: &str) {
    out.extend_from_slice(b"{\"/");
    out.extend_from_slice(tag.as_bytes());
    out.extend_from_slice(b"\":");
}

fn write_ascii(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    write_ascii(out, &base64::encode(bytes));
}

/// ECMAScript `Number::toString` of a finite number (WIRE-303). Integers of exact doubles need no search for the
/// shortest digits: their decimal digits are the shortest.
#[inline]
fn write_number(out: &mut Vec<u8>, n: f64) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if n.abs() < EXACT && n.trunc() == n {
        write_integer(out, n as i64);
    } else {
        out.extend_from_slice(ryu_js::Buffer::new().format_finite(n).as_bytes());
    }
}

#[inline]
fn write_integer(out: &mut Vec<u8>, n: i64) {
    if n < 0 {
        out.push(b'-');
    }
    let mut rest = n.unsigned_abs();
    if rest < 10 {
        out.push(b'0' + rest as u8);
        return;
    }
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    while rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

/// A JSON string with exactly the escapes of WIRE-303.
#[inline]
fn write_string(out: &mut Vec<u8>, text: &JsString) {
    out.push(b'"');
    match text.as_str() {
        Some(text) => write_escaped(out, text.as_bytes()),
        None => write_ill_formed(out, text),
    }
    out.push(b'"');
}

/// Copies runs that need no escape at once.
#[inline]
fn write_escaped(out: &mut Vec<u8>, mut rest: &[u8]) {
    loop {
        let plain = super::json_lexer::plain_run(rest);
        out.extend_from_slice(&rest[..plain]);
        match rest.get(plain) {
            None => return,
            Some(&byte) => {
                write_escape(out, byte);
                rest = &rest[plain + 1..];
            }
        }
    }
}

#[cold]
fn write_escape(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x09 => b't',
        0x0A => b'n',
        0x0C => b'f',
        0x0D => b'r',
        _ => return write_unicode_escape(out, u16::from(byte)),
    };
    out.extend_from_slice(&[b'\\', short]);
}

fn write_unicode_escape(out: &mut Vec<u8>, unit: u16) {
    const LOWER_HEX: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\\u");
    for shift in [12, 8, 4, 0] {
        out.push(LOWER_HEX[usize::from(unit >> shift & 15)]);
    }
}

#[cold]
fn write_ill_formed(out: &mut Vec<u8>, text: &JsString) {
    for point in char::decode_utf16(text.encode_utf16()) {
        match point {
            Ok(point) => write_escaped(out, point.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(lone) => write_unicode_escape(out, lone.unpaired_surrogate()),
        }
    }
}
