//! Syntax check of `/RegExp@1` in flavor `es2025` (WIRE-305): the flags exactly, the source by an ECMAScript
//! parser as far as it can judge. What it cannot judge is accepted, because refusing it would fail a whole frame.

use crate::js_string::JsString;

/// Longest source and deepest nesting given to the parser, whose effort grows faster than the source.
const MAX_JUDGED_LENGTH: usize = 4096;
const MAX_JUDGED_NESTING: usize = 64;

/// `Err` with what is wrong.
pub(super) fn check(source: &JsString, flags: &JsString) -> Result<(), String> {
    check_flags(flags)?;
    let units = source.encode_utf16();
    let nesting = units
        .iter()
        .filter(|&&unit| unit == u16::from(b'(') || unit == u16::from(b'['))
        .count();
    if units.len() > MAX_JUDGED_LENGTH || nesting > MAX_JUDGED_NESTING {
        return Ok(());
    }
    let points: Vec<u32> = char::decode_utf16(units)
        .map(|point| point.map_or_else(|lone| u32::from(lone.unpaired_surrogate()), u32::from))
        .collect();
    let mut flags = regress::Flags::new(flags.as_bytes().iter().copied().map(u32::from));
    // Only the verdict matters, not a fast matcher.
    flags.no_opt = true;
    regress::Regex::from_unicode(points.into_iter(), flags)
        .map(|_| ())
        .map_err(|error| error.text)
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
