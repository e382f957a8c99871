//! base64url as the codec reads and writes it (WIRE-307): written without padding; read with optional correct
//! padding, ASCII whitespace anywhere, and whatever trailing bits. `+` and `/` are no part of the alphabet.

use data_encoding::BASE64URL_NOPAD;

/// Encodes without padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

/// Decodes; `None` for a character outside the alphabet, a single leftover character, or wrong padding.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut held, mut symbols, mut padding) = (0u32, 0u32, 0usize, 0usize);
    for &byte in text {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            b'=' => {
                padding += 1;
                continue;
            }
            b' ' | b'\t' | b'\n' | b'\r' | 0x0C => continue,
            _ => return None,
        };
        if padding > 0 {
            return None;
        }
        symbols += 1;
        bits = bits << 6 | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    let complete = match symbols % 4 {
        0 => padding == 0,
        2 => matches!(padding, 0 | 2),
        3 => matches!(padding, 0 | 1),
        _ => false,
    };
    complete.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_307_lenient_where_the_reference_is() {
        for (text, bytes) in [
            ("", Some(&[][..])),
            ("AA", Some(&[0][..])),
            ("AB", Some(&[0][..])),
            ("AA==", Some(&[0][..])),
            ("A A\n", Some(&[0][..])),
            ("AA=", None),
            ("AA===", None),
            ("A=A=", None),
            ("A", None),
            ("+/8", None),
            ("AAA=", Some(&[0, 0][..])),
            ("=", None),
        ] {
            assert_eq!(decode(text.as_bytes()).as_deref(), bytes, "{text:?}");
        }
    }
}
