// Byte strings as the wire spells them: UTF-8, URL-safe base64 without padding (WIRE-307), hex, and the
// order of strings by their UTF-8 bytes. Used by the codec, the hash and the identity; knows no protocol.

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const DIGITS = new Map([...ALPHABET].map((character, digit) => [character, digit]));
const encoder = new TextEncoder();

/**
 * UTF-8 bytes; an unpaired surrogate becomes U+FFFD.
 * @param {string} text
 * @returns {Uint8Array}
 */
export function utf8(text) {
  return encoder.encode(text);
}

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function toBase64Url(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 3) {
    const left = bytes.length - at;
    const triple = (bytes[at] << 16) | ((bytes[at + 1] ?? 0) << 8) | (bytes[at + 2] ?? 0);
    text += ALPHABET[triple >> 18] + ALPHABET[(triple >> 12) & 63];
    if (left > 1) text += ALPHABET[(triple >> 6) & 63];
    if (left > 2) text += ALPHABET[triple & 63];
  }
  return text;
}

/**
 * Accepts ASCII white space anywhere, correct padding and non-zero trailing bits, and nothing else beside
 * the alphabet.
 * @param {string} text
 * @returns {Uint8Array}
 */
export function fromBase64Url(text) {
  let body = text.replace(/[\t\n\f\r ]/g, "");
  if (body.includes("=")) {
    if (body.length % 4 !== 0) throw new SyntaxError("base64url: wrong padding");
    body = body.replace(/={1,2}$/, "");
  }
  if (body.length % 4 === 1) throw new SyntaxError("base64url: one leftover character");
  const bytes = new Uint8Array(Math.floor((body.length * 3) / 4));
  let bits = 0;
  let width = 0;
  let at = 0;
  for (const character of body) {
    const digit = DIGITS.get(character);
    if (digit === undefined) throw new SyntaxError(`base64url: unexpected character ${JSON.stringify(character)}`);
    bits = ((bits << 6) | digit) & 0xffff;
    width += 6;
    if (width >= 8) {
      width -= 8;
      bytes[at++] = (bits >> width) & 0xff;
    }
  }
  return bytes;
}

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Orders strings by code point, which is the order of their UTF-8 bytes. The language's own `<` compares
 * UTF-16 units and puts U+10000 before U+FF5E.
 * @param {string} a
 * @param {string} b
 * @returns {number}
 */
export function compareUtf8(a, b) {
  const shorter = Math.min(a.length, b.length);
  let at = 0;
  while (at < shorter && a.charCodeAt(at) === b.charCodeAt(at)) at++;
  if (at === shorter) return a.length - b.length;
  // The first differing unit may be the second half of a pair; both strings share the first half then, so
  // comparing from the half is comparing the pairs.
  return rank(a, at) - rank(b, at);
}

/**
 * A unit's place in code-point order: a surrogate that belongs to a pair sorts above every other unit.
 * @param {string} text
 * @param {number} at
 */
function rank(text, at) {
  const unit = text.charCodeAt(at);
  const high = unit >= 0xd800 && unit <= 0xdbff && isBetween(text.charCodeAt(at + 1), 0xdc00, 0xdfff);
  const low = isBetween(unit, 0xdc00, 0xdfff) && isBetween(text.charCodeAt(at - 1), 0xd800, 0xdbff);
  return high || low ? unit + 0x10000 : unit;
}

/**
 * @param {number} unit
 * @param {number} low
 * @param {number} high
 */
function isBetween(unit, low, high) {
  return unit >= low && unit <= high;
}
