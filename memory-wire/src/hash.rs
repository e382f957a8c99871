//! Canonical hash of a value (WIRE-401…406): SHA-256 over a prefix-free byte stream that depends on the value
//! alone, not on its text. Never fails and does not recurse, however deep the value.

use num_bigint::BigInt;
use sha2::{Digest as _, Sha256};

use crate::codec::base64;
use crate::codec::{self, EncodeError, Field, State, nested_state};
use crate::js_string::JsString;
use crate::value::{Key, Object, SlotRef, Slots, Special, Value, index_rank};

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// Tag of hashes made by this algorithm.
pub const HASH_TAG: &str = "fid1";

/// The digest of a value (WIRE-402).
pub fn hash_value(value: &Value) -> Digest {
    let mut stream = ShaStream::new();
    write_stream(value, &mut stream);
    stream.finish()
}

/// `H(v)`: the digest as base64url without a tag (WIRE-404).
pub fn hash_string(value: &Value) -> String {
    base64::encode(&hash_value(value))
}

/// The tagged hash string, `fid1:` and 43 characters (WIRE-401).
pub fn tagged_hash(value: &Value) -> String {
    tag_digest(&hash_value(value))
}

/// Writes a digest as a tagged hash string.
pub fn tag_digest(digest: &Digest) -> String {
    format!("{HASH_TAG}:{}", base64::encode(digest))
}

/// Splits a hash string into its tag and bytes (WIRE-406). `None` when there is no `:`, more than one, or the rest
/// is not base64url.
pub fn parse_hash_string(text: &str) -> Option<(&str, Vec<u8>)> {
    let (tag, rest) = text.split_once(':')?;
    if rest.contains(':') {
        return None;
    }
    Some((tag, base64::decode(rest.as_bytes())?))
}

/// The hash that a commit precondition names (WIRE-405): of the *encoded text*, not of the value, so it depends on
/// canonical key order. `value` is what the document holds under `value`.
///
/// # Errors
/// [`EncodeError`] when the value has no encoding.
pub fn precondition_value_hash(value: &Value) -> Result<String, EncodeError> {
    Ok(hash_encoded_text(&codec::encode(value)?))
}

/// [`precondition_value_hash`] of a text that is already encoded, prefix included.
pub fn hash_encoded_text(text: &str) -> String {
    let mut stream = ShaStream::new();
    write_text(text.as_bytes(), &mut stream);
    base64::encode(&stream.finish())
}

/// The bytes that [`hash_value`] digests (WIRE-402): for vectors and diagnostics.
pub fn hash_preimage(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_stream(value, &mut bytes);
    bytes
}

/// Where the stream goes.
trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

const BUFFER: usize = 512;

/// Gathers the stream's many small pieces, so that the hasher sees whole blocks.
struct ShaStream {
    hasher: Sha256,
    buffer: [u8; BUFFER],
    filled: usize,
}

impl ShaStream {
    fn new() -> ShaStream {
        ShaStream {
            hasher: Sha256::new(),
            buffer: [0; BUFFER],
            filled: 0,
        }
    }

    fn flush(&mut self) {
        self.hasher.update(&self.buffer[..self.filled]);
        self.filled = 0;
    }

    fn finish(mut self) -> Digest {
        self.flush();
        self.hasher.finalize().into()
    }
}

impl Sink for ShaStream {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if bytes.len() > BUFFER - self.filled {
            self.flush();
            if bytes.len() > BUFFER {
                self.hasher.update(bytes);
                return;
            }
        }
        self.buffer[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }
}

/// A container whose end has not been written yet.
enum Open<'a> {
    Array(Slots<'a>),
    Entries(std::slice::Iter<'a, (Key, Value)>),
    Sorted(std::vec::IntoIter<&'a (Key, Value)>),
    Fields(std::vec::IntoIter<(Key, Field<'a>)>),
}

fn write_stream<S: Sink>(root: &Value, sink: &mut S) {
    let mut open: Vec<Open<'_>> = Vec::new();
    write_value(root, sink, &mut open);
    while let Some(container) = open.last_mut() {
        match container {
            Open::Array(slots) => match slots.next() {
                Some(SlotRef::Value(value)) => write_value(value, sink, &mut open),
                Some(SlotRef::Holes(n)) => {
                    sink.put(&[0x01]);
                    write_length(n as usize, sink);
                }
                None => close(sink, &mut open),
            },
            Open::Entries(entries) => match entries.next() {
                Some((key, value)) => {
                    write_string(key, sink);
                    write_value(value, sink, &mut open);
                }
                None => close(sink, &mut open),
            },
            Open::Sorted(entries) => match entries.next() {
                Some((key, value)) => {
                    write_string(key, sink);
                    write_value(value, sink, &mut open);
                }
                None => close(sink, &mut open),
            },
            Open::Fields(fields) => match fields.next() {
                Some((key, field)) => {
                    write_string(&key, sink);
                    match field {
                        Field::Value(value) => write_value(value, sink, &mut open),
                        Field::Text(text) => write_string(text, sink),
                    }
                }
                None => close(sink, &mut open),
            },
        }
    }
}

fn close<S: Sink>(sink: &mut S, open: &mut Vec<Open<'_>>) {
    sink.put(&[0x00]);
    open.pop();
}

/// Writes a flat value, or the start of a container that it leaves on `open`.
fn write_value<'a, S: Sink>(value: &'a Value, sink: &mut S, open: &mut Vec<Open<'a>>) {
    match value {
        Value::Null => sink.put(&[0x20]),
        Value::Undefined => sink.put(&[0x21]),
        Value::Bool(b) => sink.put(&[0x22, u8::from(*b)]),
        Value::Number(n) => {
            let bits = if n.is_nan() {
                0x7FF8_0000_0000_0000
            } else {
                n.to_bits()
            };
            let mut bytes = [0x23; 9];
            bytes[1..].copy_from_slice(&bits.to_be_bytes());
            sink.put(&bytes);
        }
        Value::String(text) => write_string(text, sink),
        Value::Bytes(bytes) => write_bytes(bytes, sink),
        Value::BigInt(n) => write_integer(0x26, n, sink),
        Value::Symbol(key) => {
            sink.put(&[0x2A]);
            write_string(key, sink);
        }
        Value::Array(array) => {
            sink.put(&[0x10]);
            open.push(Open::Array(array.slots()));
        }
        Value::Object(object) => write_object(object, sink, open),
        Value::Special(special) => write_special(special, sink, open),
    }
}

fn write_object<'a, S: Sink>(object: &'a Object, sink: &mut S, open: &mut Vec<Open<'a>>) {
    sink.put(&[0x11]);
    open.push(if in_hash_order(object) {
        Open::Entries(object.entries().iter())
    } else {
        Open::Sorted(hash_order(object))
    });
}

/// Canonical order is hash order unless there are index keys, which stand first there (WIRE-303), or ill-formed
/// keys, whose hashed bytes differ from their own.
fn in_hash_order(object: &Object) -> bool {
    object
        .entries()
        .first()
        .is_none_or(|(first, _)| index_rank(first.as_bytes()).is_none())
        && object.iter().all(|(key, _)| key.is_well_formed())
}

/// True UTF-8 byte order of the keys as they are hashed; ill-formed keys that become equal keep canonical order.
fn hash_order(object: &Object) -> std::vec::IntoIter<&(Key, Value)> {
    let mut entries: Vec<&(Key, Value)> = object.entries().iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.to_string_lossy().as_bytes().cmp(b.to_string_lossy().as_bytes()));
    entries.into_iter()
}

fn write_special<'a, S: Sink>(special: &'a Special, sink: &mut S, open: &mut Vec<Open<'a>>) {
    match special {
        Special::EpochNsec(n) => write_integer(0x27, n, sink),
        Special::EpochDay(n) => write_integer(0x28, n, sink),
        Special::Hash { tag, bytes } => {
            sink.put(&[0x29]);
            write_string(tag, sink);
            write_length(bytes.len(), sink);
            sink.put(bytes);
        }
        Special::RegExp {
            source,
            flags,
            flavor,
        } => {
            sink.put(&[0x2B]);
            for part in [source, flags, flavor] {
                write_string(part, sink);
            }
        }
        Special::KeyPair {
            algorithm,
            public,
            private,
        } => {
            sink.put(&[0x2C]);
            write_string(algorithm, sink);
            write_bytes(public, sink);
            write_bytes(private, sink);
        }
        Special::Error(_) | Special::Link(_) | Special::Unknown { .. } | Special::Problematic { .. } => {
            let (tag, state) = nested_state(special).expect("these kinds hold other values");
            sink.put(&[0x12]);
            write_text(tag.as_bytes(), sink);
            match state {
                State::Value(value) => open_state(value, sink, open),
                State::Object(object) => write_object(object, sink, open),
                State::Fields(mut fields) => {
                    fields.sort_by(|(a, _), (b, _)| {
                        a.to_string_lossy().as_bytes().cmp(b.to_string_lossy().as_bytes())
                    });
                    sink.put(&[0x11]);
                    open.push(Open::Fields(fields.into_iter()));
                }
            }
        }
    }
}

/// Follows a chain of unknown tags in a loop: their states nest without a container between them.
fn open_state<'a, S: Sink>(mut value: &'a Value, sink: &mut S, open: &mut Vec<Open<'a>>) {
    while let Value::Special(special) = value {
        let Special::Unknown { tag, state } = special.as_ref() else {
            break;
        };
        sink.put(&[0x12]);
        write_text(tag.as_bytes(), sink);
        value = state;
    }
    write_value(value, sink, open);
}

/// `str(s)` of WIRE-402, unpaired surrogates replaced.
#[inline]
fn write_string<S: Sink>(text: &JsString, sink: &mut S) {
    match text.as_str() {
        Some(text) => write_text(text.as_bytes(), sink),
        None => write_text(text.to_string_lossy().as_bytes(), sink),
    }
}

/// Longest string that is written out; a longer one is represented by its own digest.
const INLINE_TEXT: usize = 64;

#[inline]
fn write_text<S: Sink>(text: &[u8], sink: &mut S) {
    if text.len() <= INLINE_TEXT {
        let mut bytes = [0x24; INLINE_TEXT + 2];
        bytes[1] = text.len() as u8;
        bytes[2..text.len() + 2].copy_from_slice(text);
        sink.put(&bytes[..text.len() + 2]);
    } else {
        sink.put(&[0xF0]);
        sink.put(&Sha256::digest(text));
    }
}

fn write_bytes<S: Sink>(bytes: &[u8], sink: &mut S) {
    sink.put(&[0x25]);
    write_length(bytes.len(), sink);
    sink.put(bytes);
}

/// Minimal two's complement, big-endian; zero is one byte.
fn write_integer<S: Sink>(kind: u8, n: &BigInt, sink: &mut S) {
    let bytes = n.to_signed_bytes_be();
    sink.put(&[kind]);
    write_length(bytes.len(), sink);
    sink.put(&bytes);
}

/// Unsigned LEB128.
fn write_length<S: Sink>(mut n: usize, sink: &mut S) {
    loop {
        let low = (n & 0x7F) as u8;
        n >>= 7;
        if n == 0 {
            sink.put(&[low]);
            return;
        }
        sink.put(&[low | 0x80]);
    }
}
