//! The text codec of the value model (WIRE-302…314): `fvj1:` plus canonical JSON with tagged forms. The same text
//! is used for socket frames, stored value columns and stored commits; encoding is byte-identical to the
//! reference because its bytes are compared and hashed. Neither direction recurses.

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
