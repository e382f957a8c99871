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
pub(crate) use special::{Field, State, nested_state};

use crate::value::Key;

/// The exact prefix of an encoded value.
pub const PREFIX: &str = "fvj1:";

/// Deepest nesting of containers in an encoded text (WIRE-312); both directions refuse more.
pub const MAX_DEPTH: usize = 2048;

/// Deepest nesting of containers in one document, as [`crate::value::Extent`] counts it. Escaping can double the brackets
/// of a text (WIRE-309), a leaf may take two of its own, and a frame puts up to six around a document: within this
/// bound a document has a text wherever it is sent. A message of 1,024 levels may still carry it (WIRE-312).
pub const MAX_DOCUMENT_NESTING: usize = (MAX_DEPTH - 8) / 2;

/// Most hole slots one text may claim in total (WIRE-314); both directions refuse more.
pub const MAX_HOLES: u64 = 1_000_000;

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
