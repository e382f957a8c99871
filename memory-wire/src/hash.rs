//! Canonical hash of a value (WIRE-401…406): SHA-256 over a prefix-free byte stream that depends on the value
//! alone, not on its text. Never fails and does not recurse, however deep the value.
//!
//! | value | bytes |
//! | --- | --- |
//! | null, undefined | `20`, `21` |
//! | false, true | `22 00`, `22 01` |
//! | number | `23`, 8 bytes big-endian; one NaN; −0 is not 0 |
//! | string | `24 LEB(length)`, UTF-8; above 64 bytes `F0` and its SHA-256; unpaired surrogates are U+FFFD |
//! | bytes | `25 LEB(length)`, bytes |
//! | big integer, instant, day | `26`, `27`, `28`, `LEB(length)`, minimal two's complement |
//! | hash, symbol, regular expression, key pair | `29`, `2A`, `2B`, `2C` and their parts |
//! | array | `10`, elements, `00`; n holes are `01 LEB(n)` |
//! | object | `11`, key and value in UTF-8 order of keys, `00` |
//! | error, link, problematic, unknown | `12`, tag, the stream of its state |
//!
//! [`tagged_hash`] is `fid1:` and the digest in base64url; [`hash_string`] leaves the tag out (WIRE-401, 404, 406).
//! [`precondition_value_hash`] hashes the *text* of a value (WIRE-405).
//!
//! ```
//! use memory_wire::{hash::tagged_hash, value};
//!
//! let schema = value!({ "type": "string" });
//! assert_eq!(tagged_hash(&schema), "fid1:vfzH49OWCbF_cEsFg47pOhiYNeRd6thTSgqkiSfJs_Y");
//! ```

use num_bigint::BigInt;
use sha2::{Digest as _, Sha256};

use crate::codec::base64;
use crate::codec::{self, EncodeError, Field, State, nested_state};
use crate::js_string::JsString;
use crate::piece_buffer::PieceBuffer;
use crate::value::{Key, Object, SlotRef, Slots, Special, Value, index_rank};

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// Tag of hashes made by this algorithm.
pub const HASH_TAG: &str = "fid1";

/// The digest of a value (WIRE-402).
pub fn hash_value(value: &Value) -> Digest {
    sha_256(|stream| write_stream(value, stream))
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
    base64::encode(&sha_256(|stream| write_text(text.as_bytes(), stream)))
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

    /// A string short enough to be written out.
    fn put_short_text(&mut self, text: &[u8]) {
        self.put(&[0x24, text.len() as u8]);
        self.put(text);
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<C: FnMut(&[u8])> Sink for PieceBuffer<C> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
    }

    #[inline]
    fn put_short_text(&mut self, text: &[u8]) {
        self.headed([0x24, text.len() as u8], text);
    }
}

/// A hasher behind the buffer.
type ShaStream<'h> = PieceBuffer<&'h mut dyn FnMut(&[u8])>;

fn sha_256(write: impl FnOnce(&mut ShaStream<'_>)) -> Digest {
    let mut hasher = Sha256::new();
    let mut update = |chunk: &[u8]| hasher.update(chunk);
    let mut stream: ShaStream<'_> = PieceBuffer::new(&mut update);
    write(&mut stream);
    stream.finish();
    hasher.finalize().into()
}

/// A container whose end has not been written yet: what is left of its members.
enum Open<'a> {
    Elements(std::slice::Iter<'a, Value>),
    Entries(std::slice::Iter<'a, (Key, Value)>),
    Rare(Box<Rare<'a>>),
}

/// The containers that take some preparation.
enum Rare<'a> {
    Slots(Slots<'a>),
    Sorted(std::vec::IntoIter<&'a (Key, Value)>),
    Fields(std::vec::IntoIter<(Key, Field<'a>)>),
}

fn write_stream<S: Sink>(root: &Value, sink: &mut S) {
    let mut open: Vec<Open<'_>> = Vec::new();
    if !write_flat(root, sink) {
        begin(root, sink, &mut open);
    }
    while let Some(container) = open.last_mut() {
        match write_members(container, sink) {
            Some(value) => begin(value, sink, &mut open),
            None => {
                sink.put(&[0x00]);
                open.pop();
            }
        }
    }
}

/// Writes members up to the first that is not flat, which it returns; `None` at the end.
#[inline]
fn write_members<'a, S: Sink>(container: &mut Open<'a>, sink: &mut S) -> Option<&'a Value> {
    match container {
        Open::Elements(elements) => elements.find(|value| !write_flat(value, sink)),
        Open::Entries(entries) => {
            while let Some((key, value)) = entries.as_slice().first() {
                let Some(text) = key.as_str() else {
                    // The hashed form of an ill-formed key is greater than its own bytes: the keys before it stand
                    // where they should, those after it may belong before it.
                    let mut rest = Box::new(Rare::Sorted(hash_order(entries.as_slice())));
                    let next = write_rare_members(&mut rest, sink);
                    *container = Open::Rare(rest);
                    return next;
                };
                entries.next();
                write_text(text.as_bytes(), sink);
                if !write_flat(value, sink) {
                    return Some(value);
                }
            }
            None
        }
        Open::Rare(rare) => write_rare_members(rare, sink),
    }
}

fn write_rare_members<'a, S: Sink>(container: &mut Rare<'a>, sink: &mut S) -> Option<&'a Value> {
    match container {
        Rare::Slots(slots) => slots.find_map(|slot| match slot {
            SlotRef::Value(value) => (!write_flat(value, sink)).then_some(value),
            SlotRef::Holes(n) => {
                sink.put(&[0x01]);
                write_length(n as usize, sink);
                None
            }
        }),
        Rare::Sorted(entries) => entries.find_map(|(key, value)| {
            write_string(key, sink);
            (!write_flat(value, sink)).then_some(value)
        }),
        Rare::Fields(fields) => fields.find_map(|(key, field)| {
            write_string(&key, sink);
            match field {
                Field::Value(value) => (!write_flat(value, sink)).then_some(value),
                Field::Text(text) => {
                    write_string(text, sink);
                    None
                }
            }
        }),
    }
}

/// Writes a value of one of the common flat kinds. False for any other, of which nothing is written.
#[inline(always)]
fn write_flat<S: Sink>(value: &Value, sink: &mut S) -> bool {
    // Strings are most of what there is; asking for them first spares them the jump.
    if let Value::String(text) = value {
        write_string(text, sink);
        return true;
    }
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
        Value::Bytes(_)
        | Value::BigInt(_)
        | Value::Symbol(_)
        | Value::Array(_)
        | Value::Object(_)
        | Value::Special(_) => return false,
    }
    true
}

/// Writes a rarer flat value, or the start of a container that it leaves on `open`.
#[inline]
fn begin<'a, S: Sink>(value: &'a Value, sink: &mut S, open: &mut Vec<Open<'a>>) {
    match value {
        Value::Null | Value::Undefined | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            write_flat(value, sink);
        }
        Value::Bytes(bytes) => write_bytes(bytes, sink),
        Value::BigInt(n) => write_integer(0x26, n, sink),
        Value::Symbol(key) => {
            sink.put(&[0x2A]);
            write_string(key, sink);
        }
        Value::Array(array) => {
            sink.put(&[0x10]);
            match array.as_dense() {
                Some(elements) => open.push(Open::Elements(elements.iter())),
                None => open.push(Open::Rare(Box::new(Rare::Slots(array.slots())))),
            }
        }
        Value::Object(object) => begin_object(object, sink, open),
        Value::Special(special) => begin_special(special, sink, open),
    }
}

#[inline]
fn begin_object<'a, S: Sink>(object: &'a Object, sink: &mut S, open: &mut Vec<Open<'a>>) {
    sink.put(&[0x11]);
    let entries = object.entries();
    // Canonical order is hash order unless there are index keys, which stand first there (WIRE-303).
    let index_keys = entries
        .first()
        .is_some_and(|(first, _)| index_rank(first.as_bytes()).is_some());
    if index_keys {
        open.push(Open::Rare(Box::new(Rare::Sorted(hash_order(entries)))));
    } else {
        open.push(Open::Entries(entries.iter()));
    }
}

/// True UTF-8 byte order of the keys as they are hashed; ill-formed keys that become equal keep canonical order.
fn hash_order(entries: &[(Key, Value)]) -> std::vec::IntoIter<&(Key, Value)> {
    let mut entries: Vec<&(Key, Value)> = entries.iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.to_string_lossy().as_bytes().cmp(b.to_string_lossy().as_bytes()));
    entries.into_iter()
}

fn begin_special<'a, S: Sink>(special: &'a Special, sink: &mut S, open: &mut Vec<Open<'a>>) {
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
                State::Value(value) => begin_state(value, sink, open),
                State::Object(object) => begin_object(object, sink, open),
                State::Fields(mut fields) => {
                    fields.sort_by(|(a, _), (b, _)| {
                        a.to_string_lossy().as_bytes().cmp(b.to_string_lossy().as_bytes())
                    });
                    sink.put(&[0x11]);
                    open.push(Open::Rare(Box::new(Rare::Fields(fields.into_iter()))));
                }
            }
        }
    }
}

/// Follows a chain of unknown tags in a loop: their states nest without a container between them.
fn begin_state<'a, S: Sink>(mut value: &'a Value, sink: &mut S, open: &mut Vec<Open<'a>>) {
    while let Value::Special(special) = value {
        let Special::Unknown { tag, state } = special.as_ref() else {
            break;
        };
        sink.put(&[0x12]);
        write_text(tag.as_bytes(), sink);
        value = state;
    }
    begin(value, sink, open);
}

/// `str(s)` of WIRE-402, unpaired surrogates replaced.
#[inline(always)]
fn write_string<S: Sink>(text: &JsString, sink: &mut S) {
    match text.as_str() {
        Some(text) => write_text(text.as_bytes(), sink),
        None => write_text(text.to_string_lossy().as_bytes(), sink),
    }
}

/// Longest string that is written out; a longer one is represented by its own digest.
const INLINE_TEXT: usize = 64;

#[inline(always)]
fn write_text<S: Sink>(text: &[u8], sink: &mut S) {
    if text.len() <= INLINE_TEXT {
        sink.put_short_text(text);
    } else {
        write_long_text(text, sink);
    }
}

#[cold]
fn write_long_text<S: Sink>(text: &[u8], sink: &mut S) {
    sink.put(&[0xF0]);
    sink.put(&Sha256::digest(text));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    #[test]
    fn wire_406_a_hash_string_has_one_colon() {
        let digest = hash_value(&value!({ "a": 1 }));
        let text = tag_digest(&digest);
        assert_eq!(text, "fid1:0cBGQ4N2BoCM2jISu3ttc_0Rhu5phgRDnWyvlXWeBq4");
        assert_eq!(parse_hash_string(&text), Some(("fid1", digest.to_vec())));
        for text in ["fid1", "fid1:AA:AA", "fid1:+/", "fid1:A"] {
            assert_eq!(parse_hash_string(text), None, "{text}");
        }
    }

    #[test]
    fn wire_405_the_precondition_hash_is_of_the_text_and_its_key_order() {
        let hash = precondition_value_hash(&value!({ "a": 1 })).unwrap();
        assert_eq!(hash, "3znodIkJ77GXj5cpHH9HbVZ0sEYs7N43S7wYxPe26Z0");
        assert_eq!(hash, hash_string(&Value::from("fvj1:{\"a\":1}")));
    }
}
