//! Paths and JSON pointers (WIRE-601). A *document path* starts at the document root, so user data begins with
//! `value`; patches spell it as a pointer, read sets as a list of strings.

use smol_str::SmolStr;

use crate::value::{Array, Value};

/// A path as a list of segments: a document path unless a name says otherwise (`ValuePath` in WIRE 0.3 is the
/// same list relative to the `value` field).
pub type DocPath = Vec<SmolStr>;

/// A pointer that does not start at the root.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON pointer: {0}")]
pub struct PointerError(pub String);

/// The segments of a pointer: `""` is the root, otherwise the text starts with `/`. `~1` reads as `/`, then `~0`
/// as `~`; stray `~` and `%` are ordinary.
pub fn parse_pointer(text: &str) -> Result<DocPath, PointerError> {
    if text.is_empty() {
        return Ok(DocPath::new());
    }
    let Some(rest) = text.strip_prefix('/') else {
        return Err(PointerError(text.to_owned()));
    };
    Ok(rest.split('/').map(decode_segment).collect())
}

fn decode_segment(segment: &str) -> SmolStr {
    if segment.contains('~') {
        segment.replace("~1", "/").replace("~0", "~").into()
    } else {
        SmolStr::new(segment)
    }
}

/// The pointer of a path: `~` becomes `~0`, then `/` becomes `~1`.
pub fn encode_pointer<S: AsRef<str>>(path: &[S]) -> String {
    let mut text = String::new();
    for segment in path {
        text.push('/');
        for c in segment.as_ref().chars() {
            match c {
                '~' => text.push_str("~0"),
                '/' => text.push_str("~1"),
                c => text.push(c),
            }
        }
    }
    text
}

/// Reads a path spelled as an array of strings; `None` for anything else, holes and unpaired surrogates included.
pub fn path_from_value(value: &Value) -> Option<DocPath> {
    value
        .as_array()?
        .as_dense()?
        .iter()
        .map(|segment| segment.as_str().map(SmolStr::new))
        .collect()
}

/// The array of strings of a path.
pub fn path_to_value<S: AsRef<str>>(path: &[S]) -> Value {
    Value::Array(
        path.iter()
            .map(|segment| Value::from(segment.as_ref()))
            .collect::<Array>(),
    )
}

/// True when `prefix` is a prefix of `path`, equality included.
pub fn is_path_prefix<A: AsRef<str>, B: AsRef<str>>(prefix: &[A], path: &[B]) -> bool {
    prefix.len() <= path.len() && prefix.iter().zip(path).all(|(a, b)| a.as_ref() == b.as_ref())
}

/// True when either path is a prefix of the other: the recursive conflict rule (WIRE-608, ENG-343).
pub fn paths_overlap<A: AsRef<str>, B: AsRef<str>>(left: &[A], right: &[B]) -> bool {
    left.iter().zip(right).all(|(a, b)| a.as_ref() == b.as_ref())
}

/// The path without its last segment; the root is its own parent.
pub fn parent_path<S>(path: &[S]) -> &[S] {
    path.split_last().map_or(path, |(_, parent)| parent)
}

/// What an array makes of a path segment (WIRE-602).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayIndex {
    /// A canonical index at most 2³²−2.
    Index(u32),
    /// Canonical digits that pass 2³²−2.
    OutOfBounds,
    /// Not an index at all.
    NotAnIndex,
}

impl ArrayIndex {
    /// Classifies `segment`.
    pub fn of(segment: &str) -> ArrayIndex {
        match (crate::value::index_rank(segment.as_bytes()), segment.as_bytes()) {
            (Some(index), _) => ArrayIndex::Index(index),
            (None, [b'1'..=b'9', rest @ ..]) if rest.iter().all(u8::is_ascii_digit) => {
                ArrayIndex::OutOfBounds
            }
            (None, _) => ArrayIndex::NotAnIndex,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_602_array_segments() {
        assert_eq!(ArrayIndex::of("0"), ArrayIndex::Index(0));
        assert_eq!(ArrayIndex::of("4294967294"), ArrayIndex::Index(u32::MAX - 1));
        assert_eq!(ArrayIndex::of("4294967295"), ArrayIndex::OutOfBounds);
        assert_eq!(ArrayIndex::of("99999999999"), ArrayIndex::OutOfBounds);
        for text in ["", "-", "01", "-1", "1.0", " 1", "1e3", "٣"] {
            assert_eq!(ArrayIndex::of(text), ArrayIndex::NotAnIndex, "{text:?}");
        }
    }

    #[test]
    fn wire_601_escape_order_matters() {
        assert_eq!(parse_pointer("/~01").unwrap(), ["~1"]);
        assert_eq!(encode_pointer(&["~1", "a/b"]), "/~01/a~1b");
        assert_eq!(
            parse_pointer("a").unwrap_err().to_string(),
            "invalid JSON pointer: a"
        );
    }
}
