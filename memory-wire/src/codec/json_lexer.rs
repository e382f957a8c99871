//! The tokens of JSON (WIRE-304): strings that may hold unpaired surrogates, and correctly rounded numbers. Reads a
//! `&str` in one pass; positions are byte offsets into it.

use super::decode::{DecodeError, DecodeReason};
use crate::js_string::JsString;

pub(super) struct JsonLexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> JsonLexer<'a> {
    pub(super) fn new(text: &'a str, at: usize) -> JsonLexer<'a> {
        JsonLexer { text, at }
    }

    pub(super) fn fail<T>(&self, reason: DecodeReason) -> Result<T, DecodeError> {
        Err(DecodeError { at: self.at, reason })
    }

    /// The next byte that is not white space, which stays unread.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    /// Passes the byte that [`JsonLexer::peek`] showed.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.at += 1;
    }

    /// Passes a keyword whose first letter was peeked.
    pub(super) fn keyword(&mut self, word: &'static str) -> Result<(), DecodeError> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(())
        } else {
            self.fail(DecodeReason::Expected("a value"))
        }
    }

    /// A string whose opening quote was peeked.
    #[inline]
    pub(super) fn string(&mut self) -> Result<JsString, DecodeError> {
        let start = self.at + 1;
        let end = start + plain_run(&self.text.as_bytes()[start..]);
        self.at = end;
        match self.text.as_bytes().get(end) {
            Some(b'"') => {
                self.at += 1;
                Ok(JsString::from(&self.text[start..end]))
            }
            Some(b'\\') => self.escaped_string(start),
            Some(_) => self.fail(DecodeReason::ControlCharacter),
            None => self.fail(DecodeReason::Unterminated),
        }
    }

    /// The rest of a string whose first escape stands at the current position.
    #[cold]
    fn escaped_string(&mut self, start: usize) -> Result<JsString, DecodeError> {
        let bytes = self.text.as_bytes();
        let mut out = bytes[start..self.at].to_vec();
        let mut well_formed = true;
        loop {
            let run = plain_run(&bytes[self.at..]);
            out.extend_from_slice(&bytes[self.at..self.at + run]);
            self.at += run;
            match bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    let text = if well_formed {
                        String::from_utf8(out).map_err(|error| error.into_bytes())
                    } else {
                        Err(out)
                    };
                    return Ok(text.map_or_else(JsString::from_wtf8, JsString::from));
                }
                Some(b'\\') => well_formed &= self.escape(&mut out)?,
                Some(_) => return self.fail(DecodeReason::ControlCharacter),
                None => return self.fail(DecodeReason::Unterminated),
            }
        }
    }

    /// One escape, or two that form a surrogate pair. False when it is an unpaired surrogate.
    fn escape(&mut self, out: &mut Vec<u8>) -> Result<bool, DecodeError> {
        let bytes = self.text.as_bytes();
        let plain = match bytes.get(self.at + 1) {
            Some(&byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'b') => 0x08,
            Some(b't') => 0x09,
            Some(b'n') => 0x0A,
            Some(b'f') => 0x0C,
            Some(b'r') => 0x0D,
            Some(b'u') => {
                let first = self.unit()?;
                let second = match first {
                    0xD800..=0xDBFF if bytes[self.at..].starts_with(b"\\u") => {
                        let before = self.at;
                        let unit = self.unit()?;
                        let pairs = (0xDC00..=0xDFFF).contains(&unit);
                        if !pairs {
                            self.at = before;
                        }
                        pairs.then_some(unit)
                    }
                    _ => None,
                };
                let point = match second {
                    Some(low) => 0x10000 + ((u32::from(first) - 0xD800) << 10) + (u32::from(low) - 0xDC00),
                    None => u32::from(first),
                };
                return Ok(match char::from_u32(point) {
                    Some(point) => {
                        out.extend_from_slice(point.encode_utf8(&mut [0; 4]).as_bytes());
                        true
                    }
                    None => {
                        out.extend_from_slice(&crate::js_string::surrogate_bytes(first));
                        false
                    }
                });
            }
            _ => return self.fail(DecodeReason::BadEscape),
        };
        self.at += 2;
        out.push(plain);
        Ok(true)
    }

    /// The code unit of a `\uXXXX` at the current position.
    fn unit(&mut self) -> Result<u16, DecodeError> {
        let digits = self
            .text
            .as_bytes()
            .get(self.at + 2..self.at + 6)
            .unwrap_or_default();
        let mut unit = 0u16;
        for &digit in digits {
            match char::from(digit).to_digit(16) {
                Some(value) => unit = unit << 4 | value as u16,
                None => return self.fail(DecodeReason::BadEscape),
            }
        }
        if digits.len() < 4 {
            return self.fail(DecodeReason::BadEscape);
        }
        self.at += 6;
        Ok(unit)
    }

    /// A number whose first character was peeked.
    #[inline]
    pub(super) fn number(&mut self) -> Result<f64, DecodeError> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let negative = bytes[start] == b'-';
        let mut at = start + usize::from(negative);
        let mut mantissa = 0u64;
        let integer_start = at;
        while let Some(digit) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
            mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            at += 1;
        }
        let digits = at - integer_start;
        if digits == 0 || (digits > 1 && bytes[integer_start] == b'0') {
            return self.fail(DecodeReason::BadNumber);
        }
        let exact = match bytes.get(at) {
            Some(b'.' | b'e' | b'E') => {
                let (end, exact) = self.fraction(at, mantissa, digits)?;
                at = end;
                exact
            }
            // At most 19 digits fit a u64, and its conversion rounds correctly.
            _ => (digits <= 19).then_some(mantissa as f64),
        };
        self.at = at;
        match exact {
            Some(n) => Ok(if negative { -n } else { n }),
            None => match self.text[start..at].parse() {
                Ok(n) => Ok(n),
                Err(_) => self.fail(DecodeReason::BadNumber),
            },
        }
    }

    /// The part after the integer digits: its end, and the magnitude when a single rounding yields it.
    fn fraction(
        &mut self,
        mut at: usize,
        mut mantissa: u64,
        mut digits: usize,
    ) -> Result<(usize, Option<f64>), DecodeError> {
        let bytes = self.text.as_bytes();
        let mut exponent = 0i32;
        if bytes[at] == b'.' {
            at += 1;
            let first = at;
            while let Some(digit) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
                mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
                at += 1;
            }
            if at == first {
                return self.fail(DecodeReason::BadNumber);
            }
            digits += at - first;
            exponent = -i32::try_from(at - first).unwrap_or(i32::MAX);
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            at += 1;
            let negative = bytes.get(at) == Some(&b'-');
            at += usize::from(matches!(bytes.get(at), Some(b'+' | b'-')));
            let first = at;
            let mut written = 0i32;
            while let Some(digit) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
                written = written.saturating_mul(10).saturating_add(i32::from(digit - b'0'));
                at += 1;
            }
            if at == first {
                return self.fail(DecodeReason::BadNumber);
            }
            exponent = exponent.saturating_add(if negative { -written } else { written });
        }
        Ok((at, exact_scaled(mantissa, digits, exponent)))
    }
}

/// `mantissa × 10^exponent` when both factors are exact doubles, so that the product or quotient is rounded once.
fn exact_scaled(mantissa: u64, digits: usize, exponent: i32) -> Option<f64> {
    const POWERS: [f64; 23] = [
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17,
        1e18, 1e19, 1e20, 1e21, 1e22,
    ];
    if digits > 19 || mantissa > 1 << 53 {
        return None;
    }
    let power = POWERS.get(usize::try_from(exponent.unsigned_abs()).ok()?)?;
    Some(if exponent < 0 {
        mantissa as f64 / power
    } else {
        mantissa as f64 * power
    })
}

/// Length of the run at the start of `bytes` without `"`, `\` and control characters; eight bytes at a time.
#[inline]
pub(super) fn plain_run(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<8>() {
        match first_hit(u64::from_le_bytes(*word)) {
            8 => at += 8,
            hit => return at + hit,
        }
    }
    let tail = bytes.len() - at;
    if tail == 0 {
        return at;
    }
    match bytes.last_chunk::<8>() {
        // The last eight bytes overlap what is already known to be plain.
        Some(word) => bytes.len() - 8 + first_hit(u64::from_le_bytes(*word)),
        None => bytes
            .iter()
            .take_while(|&&byte| byte >= 0x20 && byte != b'"' && byte != b'\\')
            .count(),
    }
}

/// Index of the first byte of a little-endian word that ends a plain run, or 8.
#[inline]
fn first_hit(word: u64) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    // The high bit of a byte is set when the byte matches; a borrow spoils only bytes above a match.
    let hits = (quote.wrapping_sub(ONES) & !quote
        | backslash.wrapping_sub(ONES) & !backslash
        | word.wrapping_sub(ONES * 0x20) & !word)
        & HIGH;
    hits.trailing_zeros() as usize / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_runs_end_at_the_first_byte_that_matters() {
        for stop in [b'"', b'\\', 0, 0x1F, b'\n'] {
            for at in 0..39 {
                let mut bytes = "é~ \u{7F}\u{2028}!#[]".repeat(4).into_bytes();
                bytes.truncate(40);
                assert_eq!(plain_run(&bytes), 40);
                bytes[at] = stop;
                bytes[39] = b'"';
                assert_eq!(plain_run(&bytes), at, "{stop} at {at}");
            }
        }
    }

    #[test]
    fn wire_304_numbers_are_correctly_rounded() {
        for text in [
            "0",
            "-0",
            "7",
            "9007199254740993",
            "9007199254740992",
            "18446744073709551615",
            "9999999999999999999",
            "123456789012345678901234567890",
            "0.1",
            "1e22",
            "1e23",
            "1e-22",
            "8.5e-7",
            "2.2250738585072011e-308",
            "5e-324",
            "1.7976931348623157e308",
            "1e400",
            "-1e400",
            "1e-400",
            "0.1000000000000000055511151231257827",
            "9007199254740993e3",
            "1e2147483649",
            "0e99999999999999999999",
            "1E+2",
            "3.0",
        ] {
            let read = JsonLexer::new(text, 0).number().unwrap();
            let expected: f64 = text.parse().unwrap();
            assert_eq!(read.to_bits(), expected.to_bits(), "{text}");
        }
        for text in ["-", "01", "1.", ".5", "1e", "1e+", "-01", "--1"] {
            let mut lexer = JsonLexer::new(text, 0);
            assert!(lexer.number().is_err(), "{text}");
        }
    }
}
