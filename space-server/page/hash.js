// The value hash `fid1` (WIRE-401 to WIRE-404): SHA-256 over the canonical byte stream of a value. Signs a
// session open (WIRE-802) and names a stream's sidecar document (WIRE-206). SHA-256 is written out here
// because the browser's is asynchronous and the stream needs digests of long strings in its middle.

import { compareUtf8, fromBase64Url, toBase64Url, utf8 } from "./bytes.js";
import { bigintBytes, CodecError, isObject, Tagged } from "./codec.js";

/** @typedef {import("./wire.js").Value} Value */
/** @typedef {import("./wire.js").ObjectValue} ObjectValue */

/** A string longer than this many bytes enters the stream as its digest. */
const LONGEST_INLINE_STRING = 64;
const MAX_DEPTH = 2048;

/**
 * @param {Value} value
 * @returns {Uint8Array} 32 bytes
 */
export function hashValue(value) {
  return sha256(preimage(value));
}

/**
 * @param {Value} value
 * @returns {string} `H` of WIRE-404: base64url without a tag
 */
export function hashString(value) {
  return toBase64Url(hashValue(value));
}

/**
 * @param {Value} value
 * @returns {string} `fid1:` and the base64url digest
 */
export function taggedHash(value) {
  return `fid1:${hashString(value)}`;
}

/**
 * The document that carries a stream's events (WIRE-206). It lies in the space scope whatever the stream's
 * own scope is, which only enters the hash.
 * @param {{ id: string, path: string[], scope?: string }} stream
 * @returns {string}
 */
export function streamSidecarId({ id, path, scope }) {
  return `of:stream-events:${hashString({ id, path, scope: scope ?? "space" })}`;
}

/**
 * The bytes that are hashed; exported so that a wrong digest can be traced to the byte.
 * @param {Value} value
 * @returns {Uint8Array}
 */
export function preimage(value) {
  const stream = new ByteStream();
  writeValue(stream, value, 0);
  return stream.bytes();
}

class ByteStream {
  #bytes = new Uint8Array(256);
  #length = 0;

  /** @param {Uint8Array | number[]} bytes */
  push(bytes) {
    if (this.#length + bytes.length > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(this.#bytes.length * 2, this.#length + bytes.length));
      larger.set(this.#bytes.subarray(0, this.#length));
      this.#bytes = larger;
    }
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
  }

  /** @param {number} value an unsigned LEB128 number */
  pushLength(value) {
    const bytes = [];
    let rest = value;
    do {
      bytes.push(rest % 128);
      rest = Math.floor(rest / 128);
    } while (rest > 0);
    this.push(bytes.map((byte, at) => (at + 1 < bytes.length ? byte | 0x80 : byte)));
  }

  /**
   * @param {number} marker
   * @param {Uint8Array} bytes
   */
  pushSized(marker, bytes) {
    this.push([marker]);
    this.pushLength(bytes.length);
    this.push(bytes);
  }

  /** @param {string} text */
  pushString(text) {
    const bytes = utf8(text);
    if (bytes.length <= LONGEST_INLINE_STRING) {
      this.pushSized(0x24, bytes);
    } else {
      this.push([0xf0]);
      this.push(sha256(bytes));
    }
  }

  bytes() {
    return this.#bytes.slice(0, this.#length);
  }
}

/**
 * @param {ByteStream} stream
 * @param {Value} value
 * @param {number} depth
 * @returns {void}
 */
function writeValue(stream, value, depth) {
  if (depth > MAX_DEPTH) throw new CodecError(`a value nested deeper than ${MAX_DEPTH} levels has no hash`);
  switch (typeof value) {
    case "undefined":
      return stream.push([0x21]);
    case "boolean":
      return stream.push([0x22, value ? 1 : 0]);
    case "number":
      return writeNumber(stream, value);
    case "string":
      return stream.pushString(value);
    case "bigint":
      return stream.pushSized(0x26, bigintBytes(value));
    case "symbol":
      stream.push([0x2a]);
      return stream.pushString(Symbol.keyFor(value) ?? unhashable(value));
  }
  if (value === null) return stream.push([0x20]);
  if (value instanceof Uint8Array) return stream.pushSized(0x25, value);
  if (value instanceof Tagged) return writeTagged(stream, value, depth);
  if (Array.isArray(value)) return writeArray(stream, value, depth);
  if (isObject(value)) return writeObject(stream, value, depth);
  unhashable(value);
}

/**
 * @param {unknown} value
 * @returns {never}
 */
function unhashable(value) {
  throw new CodecError(`a value of type ${Object.prototype.toString.call(value)} has no hash`);
}

/**
 * @param {ByteStream} stream
 * @param {number} value
 */
function writeNumber(stream, value) {
  const bytes = new Uint8Array(9);
  bytes[0] = 0x23;
  const view = new DataView(bytes.buffer);
  if (Number.isNaN(value)) view.setUint32(1, 0x7ff80000);
  else view.setFloat64(1, value);
  stream.push(bytes);
}

/**
 * @param {ByteStream} stream
 * @param {Value[]} array
 * @param {number} depth
 */
function writeArray(stream, array, depth) {
  stream.push([0x10]);
  for (let index = 0; index < array.length; ) {
    if (index in array) {
      writeValue(stream, array[index++], depth + 1);
      continue;
    }
    const from = index;
    while (index < array.length && !(index in array)) index++;
    stream.push([0x01]);
    stream.pushLength(index - from);
  }
  stream.push([0x00]);
}

/**
 * @param {ByteStream} stream
 * @param {ObjectValue} object
 * @param {number} depth
 */
function writeObject(stream, object, depth) {
  stream.push([0x11]);
  for (const key of Object.keys(object).sort(compareUtf8)) {
    stream.pushString(key);
    writeValue(stream, object[key], depth + 1);
  }
  stream.push([0x00]);
}

/**
 * @param {ByteStream} stream
 * @param {Tagged} tagged
 * @param {number} depth
 * @returns {void}
 */
function writeTagged(stream, { tag, state }, depth) {
  // The states of these kinds hold exactly the strings named here: the codec made them canonical.
  const strings = /** @type {{ [key: string]: string }} */ (state);
  switch (tag) {
    case "EpochNsec@1":
      return stream.pushSized(0x27, fromBase64Url(/** @type {string} */ (state)));
    case "EpochDay@1":
      return stream.pushSized(0x28, fromBase64Url(/** @type {string} */ (state)));
    case "Hash@1": {
      stream.push([0x29]);
      stream.pushString(strings.tag);
      const bytes = fromBase64Url(strings.hash);
      stream.pushLength(bytes.length);
      return stream.push(bytes);
    }
    case "RegExp@1":
      stream.push([0x2b]);
      stream.pushString(strings.source);
      stream.pushString(strings.flags);
      return stream.pushString(strings.flavor);
    case "KeyPair@1":
      stream.push([0x2c]);
      stream.pushString(strings.algorithm);
      stream.pushSized(0x25, fromBase64Url(strings.publicKey));
      return stream.pushSized(0x25, fromBase64Url(strings.privateKey));
    default:
      stream.push([0x12]);
      stream.pushString(tag);
      return writeValue(stream, state, depth + 1);
  }
}

// ----------------------------------------------------------------------------------------------- SHA-256

/** @param {number} count */
function primes(count) {
  /** @type {number[]} */
  const found = [];
  for (let candidate = 2; found.length < count; candidate++) {
    if (found.every((prime) => candidate % prime !== 0)) found.push(candidate);
  }
  return found;
}

/** @param {number} root the first 32 bits of its fraction */
const fraction = (root) => ((root - Math.floor(root)) * 0x100000000) >>> 0;

const INITIAL = Uint32Array.from(primes(8), (prime) => fraction(Math.sqrt(prime)));
const ROUND = Uint32Array.from(primes(64), (prime) => fraction(Math.cbrt(prime)));

/**
 * @param {Uint8Array} message
 * @returns {Uint8Array} 32 bytes
 */
export function sha256(message) {
  const padded = new Uint8Array((((message.length + 8) >> 6) + 1) << 6);
  padded.set(message);
  padded[message.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(message.length / 0x20000000));
  view.setUint32(padded.length - 4, (message.length << 3) >>> 0);

  const state = INITIAL.slice();
  const schedule = new Uint32Array(64);
  for (let block = 0; block < padded.length; block += 64) {
    for (let t = 0; t < 16; t++) schedule[t] = view.getUint32(block + t * 4);
    for (let t = 16; t < 64; t++) {
      const early = schedule[t - 15];
      const late = schedule[t - 2];
      const s0 = rotate(early, 7) ^ rotate(early, 18) ^ (early >>> 3);
      const s1 = rotate(late, 17) ^ rotate(late, 19) ^ (late >>> 10);
      schedule[t] = schedule[t - 16] + s0 + schedule[t - 7] + s1;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let t = 0; t < 64; t++) {
      const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const choice = (e & f) ^ (~e & g);
      const first = (h + s1 + choice + ROUND[t] + schedule[t]) | 0;
      const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      const majority = (a & b) ^ (a & c) ^ (b & c);
      const second = (s0 + majority) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((word, at) => (state[at] += word));
  }

  const digest = new Uint8Array(32);
  const out = new DataView(digest.buffer);
  state.forEach((word, at) => out.setUint32(at * 4, word));
  return digest;
}

/**
 * @param {number} word
 * @param {number} by
 */
function rotate(word, by) {
  return (word >>> by) | (word << (32 - by));
}
