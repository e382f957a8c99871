//! Strings of the value model (WIRE-001): ECMAScript strings, which may hold unpaired surrogates.
//!
//! A [`JsString`] is UTF-8 text in nearly every case; only when it holds an unpaired surrogate does it fall
//! back to WTF-8 bytes. Both forms clone in O(1). Order is WTF-8 byte order, which for valid text is UTF-8
//! byte order (the order of canonical object keys, WIRE-303).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;

/// An immutable string that may hold unpaired UTF-16 surrogates. Cloning never copies long text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct JsString(Repr);

/// Invariant: `Wtf8` holds at least one unpaired surrogate, so equal strings have equal representations.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Utf8(SmolStr),
    Wtf8(Arc<[u8]>),
}

impl JsString {
    /// The text, or `None` when the string holds an unpaired surrogate.
    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Repr::Utf8(text) => Some(text),
            Repr::Wtf8(_) => None,
        }
    }

    /// The WTF-8 bytes: UTF-8, with each unpaired surrogate as its three-byte generalised form.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Utf8(text) => text.as_bytes(),
            Repr::Wtf8(bytes) => bytes,
        }
    }

    /// True when the string is valid Unicode.
    pub fn is_well_formed(&self) -> bool {
        matches!(self.0, Repr::Utf8(_))
    }

    /// The text with every unpaired surrogate replaced by U+FFFD (the form that is hashed, WIRE-402).
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        match &self.0 {
            Repr::Utf8(text) => Cow::Borrowed(text.as_str()),
            Repr::Wtf8(_) => {
                let points = char::decode_utf16(self.encode_utf16());
                Cow::Owned(points.map(|point| point.unwrap_or('\u{FFFD}')).collect())
            }
        }
    }

    /// The UTF-16 code units.
    pub fn encode_utf16(&self) -> Vec<u16> {
        match &self.0 {
            Repr::Utf8(text) => text.encode_utf16().collect(),
            Repr::Wtf8(bytes) => wtf8_to_utf16(bytes),
        }
    }

    /// Length in UTF-16 code units (ECMAScript `length`).
    pub fn len_utf16(&self) -> usize {
        match &self.0 {
            Repr::Utf8(text) if text.is_ascii() => text.len(),
            Repr::Utf8(text) => text.encode_utf16().count(),
            Repr::Wtf8(bytes) => wtf8_to_utf16(bytes).len(),
        }
    }

    /// Builds a string from UTF-16 code units; unpaired surrogates are kept.
    pub fn from_utf16(units: &[u16]) -> JsString {
        if let Ok(text) = String::from_utf16(units) {
            return JsString::from(text);
        }
        let mut bytes = Vec::with_capacity(units.len() * 3);
        for unit in char::decode_utf16(units.iter().copied()) {
            match unit {
                Ok(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                Err(lone) => {
                    bytes.extend_from_slice(&surrogate_bytes(lone.unpaired_surrogate()));
                }
            }
        }
        JsString::from_wtf8(bytes)
    }

    /// Wraps WTF-8 bytes that hold at least one unpaired surrogate. Invariant of the caller: surrogates that form a
    /// pair have been joined.
    pub(crate) fn from_wtf8(bytes: Vec<u8>) -> JsString {
        JsString(Repr::Wtf8(bytes.into()))
    }

    /// True when the string has no characters.
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }
}

/// The generalised UTF-8 form of a surrogate code unit.
pub(crate) fn surrogate_bytes(unit: u16) -> [u8; 3] {
    let unit = u32::from(unit);
    [
        0xE0 | (unit >> 12) as u8,
        0x80 | ((unit >> 6) & 0x3F) as u8,
        0x80 | (unit & 0x3F) as u8,
    ]
}

/// Invariant of the caller: `bytes` is WTF-8 made by [`JsString::from_utf16`].
fn wtf8_to_utf16(bytes: &[u8]) -> Vec<u16> {
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let width = match first {
            0x00..=0x7F => 1,
            0x80..=0xDF => 2,
            0xE0..=0xEF => 3,
            _ => 4,
        };
        let (head, tail) = rest.split_at(width.min(rest.len()));
        match std::str::from_utf8(head) {
            Ok(text) => units.extend(text.encode_utf16()),
            Err(_) => units.push(
                (u16::from(head[0] & 0x0F) << 12)
                    | (u16::from(head[1] & 0x3F) << 6)
                    | u16::from(head[2] & 0x3F),
            ),
        }
        rest = tail;
    }
    units
}

impl Default for JsString {
    fn default() -> Self {
        JsString(Repr::Utf8(SmolStr::default()))
    }
}

impl From<&str> for JsString {
    fn from(text: &str) -> Self {
        JsString(Repr::Utf8(SmolStr::new(text)))
    }
}

impl From<String> for JsString {
    fn from(text: String) -> Self {
        JsString(Repr::Utf8(SmolStr::from(text)))
    }
}

impl From<SmolStr> for JsString {
    fn from(text: SmolStr) -> Self {
        JsString(Repr::Utf8(text))
    }
}

impl PartialEq<str> for JsString {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for JsString {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialOrd for JsString {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for JsString {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl fmt::Debug for JsString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.to_string_lossy().as_ref(), f)
    }
}

impl fmt::Display for JsString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_001_lone_surrogates_survive() {
        let units = [0x61, 0xD800, 0x62, 0xD83D, 0xDE00, 0xDC00];
        let s = JsString::from_utf16(&units);
        assert_eq!(s.encode_utf16(), units);
        assert_eq!(s.as_str(), None);
        assert_eq!(s.to_string_lossy(), "a\u{FFFD}b😀\u{FFFD}");
        assert_eq!(s.len_utf16(), 6);
    }
}
