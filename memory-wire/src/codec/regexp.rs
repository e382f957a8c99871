//! Syntax check of `/RegExp@1` in flavor `es2025` (WIRE-305): the flags exactly, the source by an ECMAScript
//! parser as far as it can judge. What it cannot judge is accepted, because refusing it would fail a whole frame.

use crate::js_string::JsString;

/// Deepest nesting given to the parser, which recurses.
const MAX_JUDGED_NESTING: usize = 64;

/// What the expressions of one text may cost together. A byte costs one; the constructs that stand for large sets
/// of characters cost [`SET_COST`], because a few bytes of them keep the parser busy for milliseconds.
const BUDGET: usize = 8192;
const SET_COST: usize = 256;

/// The judge of one text's expressions, with what is left of its budget.
pub(super) struct Judge {
    left: usize,
}

impl Judge {
    pub(super) fn new() -> Judge {
        Judge { left: BUDGET }
    }

    /// `Err` with what is wrong.
    pub(super) fn check(&mut self, source: &JsString, flags: &JsString) -> Result<(), String> {
        check_flags(flags)?;
        // What counts is ASCII, so that the bytes tell; a source that is not judged is not even copied.
        let bytes = source.as_bytes();
        let nesting = bytes.iter().filter(|byte| matches!(byte, b'(' | b'[')).count();
        let cost = cost(bytes);
        if nesting > MAX_JUDGED_NESTING || cost > self.left {
            return Ok(());
        }
        self.left -= cost;
        let points: Vec<u32> = char::decode_utf16(source.encode_utf16())
            .map(|point| point.map_or_else(|lone| u32::from(lone.unpaired_surrogate()), u32::from))
            .collect();
        // Case does not matter to the syntax, and folding it is most of the work.
        let judged = flags.as_bytes().iter().filter(|&&flag| flag != b'i');
        let mut flags = regress::Flags::new(judged.copied().map(u32::from));
        // Only the verdict matters, not a fast matcher.
        flags.no_opt = true;
        regress::Regex::from_unicode(points.into_iter(), flags)
            .map(|_| ())
            .map_err(|error| error.text)
    }
}

/// Property escapes (`\p`, `\P`) name whole scripts, and modifiers (`(?i:`) fold what they hold.
fn cost(source: &[u8]) -> usize {
    let sets = source
        .windows(2)
        .filter(|pair| matches!(pair, [b'\\', b'p' | b'P'] | [b'(', b'?']))
        .count();
    source.len() + sets * SET_COST
}

/// Flags come from `dgimsuvy`, none twice, `u` and `v` not together.
fn check_flags(flags: &JsString) -> Result<(), String> {
    let bytes = flags.as_bytes();
    for (at, flag) in bytes.iter().enumerate() {
        if !b"dgimsuvy".contains(flag) {
            return Err(format!("unknown regular expression flag in {flags:?}"));
        }
        if bytes[..at].contains(flag) {
            return Err(format!("repeated regular expression flag in {flags:?}"));
        }
    }
    if bytes.contains(&b'u') && bytes.contains(&b'v') {
        return Err(format!("regular expression flags u and v together in {flags:?}"));
    }
    Ok(())
}
