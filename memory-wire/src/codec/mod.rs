//! The text codec of the value model (WIRE-302…314): `fvj1:` plus canonical JSON with tagged forms. The same text
//! is used for socket frames, stored value columns and stored commits; encoding is byte-identical to the
//! reference because its bytes are compared and hashed. Neither direction recurses.
//!
//! # Text
//!
//! `fvj1:` and JSON without white space (WIRE-302). Keys stand in one order: array indices by number, then the rest by
//! WTF-8 bytes (WIRE-303). Numbers print as ECMAScript prints them; strings escape `"`, `\`, control characters and
//! unpaired surrogates, nothing else. Reading takes JSON white space, keeps the last of equal keys and rounds numbers to
//! doubles (WIRE-304).
//!
//! # What JSON has no word for
//!
//! An object with the one key `/` + tag stands for a value of another kind (WIRE-305, 306, 307):
//!
//! | key | value | stands for |
//! | --- | --- | --- |
//! | `/Undefined@1` | `null` | `undefined` |
//! | `/SpecialNumber@1` | `"-0"`, `"NaN"`, `"+Infinity"`, `"-Infinity"` | that number |
//! | `/BigInt@1`, `/EpochNsec@1`, `/EpochDay@1` | base64url of minimal two's complement | an integer, an instant, a day |
//! | `/Symbol@1` | its key | a registered symbol |
//! | `/Bytes@1` | base64url | bytes |
//! | `/Hash@1` | `{ hash, tag }` | a tagged hash |
//! | `/KeyPair@1` | `{ algorithm, privateKey, publicKey }` | a key pair |
//! | `/RegExp@1` | `{ flags, flavor, source }` | a regular expression |
//! | `/Error@1` | `{ cause?, message, name, stack?, type, … }` | an error |
//! | `/Link@1` | an object | a link of the modern regime |
//! | `/Problematic@1` | `{ error, state, tag }` | what once could not be read |
//! | `/<Other>@<n>` | anything | an unknown kind, kept as it is |
//! | `/hole` (in an array) | n | n empty slots (WIRE-308) |
//!
//! `/Map@1` and `/Set@1` are reserved and always an error. An object of user data that has a `/`-key is escaped: as
//! `{"/quote": …}`, whose content is literal, where everything in it is plain JSON; as `{"/object": …}` with encoded members
//! otherwise (WIRE-309). So a stored link reads `{"/quote":{"/":{"link@1":…}}}`. Decoding refuses every other `/`-key, and
//! the keys `__proto__` and `constructor` (WIRE-310, 311).
//!
//! # Bounds
//!
//! [`MAX_DEPTH`] brackets and [`MAX_HOLES`] holes a text (WIRE-312, 314); a document has to leave room for the message around
//! it ([`MAX_DOCUMENT_DEPTH`]).

pub(crate) mod base64;
mod decode;
mod encode;
mod json_lexer;
mod quoting;
mod regexp;
mod special;
mod tagged;

pub use decode::{DecodeError, DecodeReason, decode, decode_body};
pub use encode::{EncodeError, encode, encode_into};
pub(crate) use quoting::has_slash_key;
pub(crate) use special::{Field, State, nested_state};

use crate::value::Key;

/// The exact prefix of an encoded value.
pub const PREFIX: &str = "fvj1:";

/// Deepest nesting of containers in an encoded text (WIRE-312); both directions refuse more.
pub const MAX_DEPTH: usize = 2048;

/// Deepest document, as [`crate::value::Extent`] counts: within it a document has a text in every message, which puts at
/// most seven brackets around it. A message of 1,024 levels may carry any document (WIRE-312), since that count is at most
/// twice the real depth.
pub const MAX_DOCUMENT_DEPTH: usize = MAX_DEPTH - 8;

/// Most hole slots one text may claim in total (WIRE-314); both directions refuse more.
pub const MAX_HOLES: u64 = 1_000_000;

/// True for a number that JSON can hold; the others are tagged (WIRE-305).
#[inline(always)]
pub(crate) fn is_plain_number(n: f64) -> bool {
    n.is_finite() && (n != 0.0 || n.is_sign_positive())
}

/// The key, when it is one that no object may hold (WIRE-309).
#[inline]
fn unsafe_key(key: &Key) -> Option<&'static str> {
    let bytes = key.as_bytes();
    // Most keys have another length than either.
    match bytes.len() {
        9 if bytes == b"__proto__" => Some("__proto__"),
        11 if bytes == b"constructor" => Some("constructor"),
        _ => None,
    }
}
