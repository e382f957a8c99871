//! Half-open ranges of raw keys, and the two directions in which one is walked. Facts: §6.1, §6.8.

/// In which order a cursor walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Smallest key first.
    Ascending,
    /// Largest key first.
    Descending,
}

/// The keys `start <= key < end`; without an end, all from `start` on.
///
/// An inverted or empty range is allowed and holds nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KeyRange {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        KeyRange::default()
    }

    /// From `start`, included, to `end`, excluded.
    pub fn new(start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        KeyRange {
            start: start.into(),
            end: Some(end.into()),
        }
    }

    /// From `start`, included, to the last key.
    pub fn from(start: impl Into<Vec<u8>>) -> Self {
        KeyRange {
            start: start.into(),
            end: None,
        }
    }

    /// All keys that begin with `prefix`. A prefix of nothing but 0xFF bytes has no upper bound that is a key, and
    /// gets none.
    pub fn prefix(prefix: &[u8]) -> Self {
        KeyRange {
            start: prefix.to_vec(),
            end: successor(prefix),
        }
    }

    /// The part of this range that lies at or after `start`.
    #[must_use]
    pub fn starting_at(mut self, start: &[u8]) -> Self {
        if start > self.start.as_slice() {
            self.start = start.to_vec();
        }
        self
    }

    /// First key that may be in the range.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// First key after the range, if there is one.
    pub fn end(&self) -> Option<&[u8]> {
        self.end.as_deref()
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Whether the key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }
}

/// The smallest byte string above every string that begins with `prefix`; none if there is no such string.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut bound = prefix[..=last].to_vec();
    bound[last] += 1;
    Some(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_of_all_ff_keeps_keys_that_the_padded_bound_would_lose() {
        let range = KeyRange::prefix(&[0xff, 0xff]);
        assert!(range.contains(&[0xff, 0xff]));
        assert!(range.contains(&[0xff, 0xff, 0xff, 0xff, 0x01]));
        assert!(!range.contains(&[0xff, 0xfe, 0xff]));
        assert_eq!(KeyRange::prefix(&[]), KeyRange::all());
    }

    #[test]
    fn inverted_ranges_are_empty() {
        assert!(KeyRange::new(*b"c", *b"a").is_empty());
        assert!(KeyRange::new(*b"a", *b"a").is_empty());
        assert!(!KeyRange::new(*b"c", *b"a").contains(b"b"));
        assert!(!KeyRange::all().is_empty());
        assert!(KeyRange::all().contains(b""));
    }
}
