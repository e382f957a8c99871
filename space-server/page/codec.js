// The value model and its text form `fvj1:` (WIRE-301 to WIRE-312): every frame on the socket is one value.
//
// Most kinds are the language's own: null, undefined, booleans, numbers (with NaN, the infinities and -0),
// strings, bigints, registered symbols, arrays (holes stay holes), plain objects, Uint8Array for bytes.
// What the language lacks (dates, hashes, links, errors, tags of a later revision) is a `Tagged`, which
// keeps the state in its canonical written form and so survives a round trip.

import { compareUtf8, fromBase64Url, toBase64Url } from "./bytes.js";

/** @typedef {import("./wire.js").Value} Value */
/** @typedef {import("./wire.js").ObjectValue} ObjectValue */
/** @typedef {import("./wire.js").Json} Json */

export const PREFIX = "fvj1:";
const TAG = /^[A-Z][A-Za-z0-9]*@[1-9][0-9]*$/;
const MAX_DEPTH = 2048;
/** Slots that hole runs may claim in one text (WIRE-314): a few bytes must not claim gigabytes. */
const MAX_HOLES = 1_000_000;

/** A text that is not a value, or a value that has no text. */
export class CodecError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "CodecError";
  }
}

/** A value of a kind that JavaScript has no type for. `state` is canonical: equal values have equal states. */
export class Tagged {
  /**
   * @param {string} tag such as `EpochNsec@1`, without the leading slash
   * @param {Value} state
   */
  constructor(tag, state) {
    if (!TAG.test(tag)) throw new CodecError(`malformed tag ${JSON.stringify(tag)}`);
    this.tag = tag;
    this.state = state;
    Object.freeze(this);
  }
}

/**
 * @param {Value} value
 * @returns {string} the text, prefix included
 */
export function encode(value) {
  return PREFIX + JSON.stringify(encodeNode(value, 0));
}

/**
 * @param {string} text
 * @returns {Value}
 */
export function decode(text) {
  if (!text.startsWith(PREFIX)) throw new CodecError(`expected a text beginning with ${PREFIX}`);
  /** @type {Json} */
  let node;
  try {
    node = JSON.parse(text.slice(PREFIX.length));
  } catch (error) {
    throw new CodecError(`not JSON: ${/** @type {Error} */ (error).message}`);
  }
  return decodeNode(node, { holes: 0 }, 0);
}

/**
 * @param {Value} value
 * @returns {value is ObjectValue}
 */
export function isObject(value) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/**
 * Minimal two's complement, most significant byte first; zero is one byte.
 * @param {bigint} value
 * @returns {Uint8Array}
 */
export function bigintBytes(value) {
  /** @type {number[]} */
  const bytes = [];
  let rest = value;
  do {
    bytes.unshift(Number(BigInt.asUintN(8, rest)));
    rest >>= 8n;
  } while (!(rest === 0n && bytes[0] < 0x80) && !(rest === -1n && bytes[0] >= 0x80));
  return Uint8Array.from(bytes);
}

// ---------------------------------------------------------------------------------------------- encoding

/**
 * @param {Value} value
 * @param {number} depth
 * @returns {Json}
 */
function encodeNode(value, depth) {
  // Also what ends a value that contains itself.
  if (depth > MAX_DEPTH) throw new CodecError(`a value nested deeper than ${MAX_DEPTH} levels has no text`);
  switch (typeof value) {
    case "undefined":
      return { "/Undefined@1": null };
    case "boolean":
    case "string":
      return value;
    case "number":
      return encodeNumber(value);
    case "bigint":
      return { "/BigInt@1": toBase64Url(bigintBytes(value)) };
    case "symbol": {
      const key = Symbol.keyFor(value);
      if (key === undefined) throw new CodecError("only a registered symbol has a text");
      return { "/Symbol@1": key };
    }
  }
  if (value === null) return null;
  if (value instanceof Uint8Array) return { "/Bytes@1": toBase64Url(value) };
  if (value instanceof Tagged) return { [`/${value.tag}`]: encodeNode(value.state, depth + 1) };
  if (Array.isArray(value)) return encodeArray(value, depth);
  if (isObject(value)) return encodeObject(value, depth);
  throw new CodecError(`a value of type ${Object.prototype.toString.call(value)} has no text`);
}

/**
 * @param {number} value
 * @returns {Json}
 */
function encodeNumber(value) {
  if (Number.isNaN(value)) return { "/SpecialNumber@1": "NaN" };
  if (Object.is(value, -0)) return { "/SpecialNumber@1": "-0" };
  if (value === Infinity) return { "/SpecialNumber@1": "+Infinity" };
  if (value === -Infinity) return { "/SpecialNumber@1": "-Infinity" };
  return value;
}

/**
 * @param {Value[]} array
 * @param {number} depth
 * @returns {Json}
 */
function encodeArray(array, depth) {
  /** @type {Json[]} */
  const nodes = [];
  let run = 0;
  let holes = 0;
  for (let index = 0; index < array.length; index++) {
    if (!(index in array)) {
      run++;
      if (++holes > MAX_HOLES) throw new CodecError(`an array with more than ${MAX_HOLES} holes has no text`);
      continue;
    }
    if (run > 0) nodes.push({ "/hole": run });
    run = 0;
    nodes.push(encodeNode(array[index], depth + 1));
  }
  if (run > 0) nodes.push({ "/hole": run });
  return nodes;
}

/**
 * @param {ObjectValue} object
 * @param {number} depth
 * @returns {Json}
 */
function encodeObject(object, depth) {
  // Array-index keys come first in numeric order whatever we do: that is how a JavaScript object
  // enumerates, and the canonical order of WIRE-303 is defined by it.
  const keys = Object.keys(object).sort(compareUtf8);
  /** @type {{ [key: string]: Json }} */
  const node = {};
  let slashed = false;
  for (const key of keys) {
    refuseUnsafeKey(key);
    slashed ||= key.startsWith("/");
    node[key] = encodeNode(object[key], depth + 1);
  }
  if (!slashed) return node;
  // WIRE-309: user data that looks like a tag is wrapped.
  return Object.values(node).every(isQuoteSafe) ? { "/quote": mapObject(node, unquote) } : { "/object": node };
}

/**
 * Can this encoded node stand literally inside a `/quote`?
 * @param {Json} node
 * @returns {boolean}
 */
function isQuoteSafe(node) {
  if (node === null || typeof node !== "object") return true;
  if (Array.isArray(node)) return node.every(isQuoteSafe);
  const tag = soleSlashKey(node);
  return tag === undefined ? Object.values(node).every(isQuoteSafe) : tag === "/quote";
}

/**
 * Replaces each `/quote` wrapper by its content; the content is literal and stays as it is.
 * @param {Json} node
 * @returns {Json}
 */
function unquote(node) {
  if (node === null || typeof node !== "object") return node;
  if (Array.isArray(node)) return node.map(unquote);
  return soleSlashKey(node) === "/quote" ? node["/quote"] : mapObject(node, unquote);
}

/**
 * @param {{ [key: string]: Json }} node
 * @param {(node: Json) => Json} change
 */
function mapObject(node, change) {
  return Object.fromEntries(Object.entries(node).map(([key, member]) => [key, change(member)]));
}

/**
 * @param {{ [key: string]: Json }} node
 * @returns {string | undefined}
 */
function soleSlashKey(node) {
  const keys = Object.keys(node);
  return keys.length === 1 && keys[0].startsWith("/") ? keys[0] : undefined;
}

/** @param {string} key */
function refuseUnsafeKey(key) {
  if (key === "__proto__" || key === "constructor") throw new CodecError(`the key ${key} may not be part of a value`);
}

// ---------------------------------------------------------------------------------------------- decoding

/**
 * @param {Json} node
 * @param {{ holes: number }} spent
 * @param {number} depth
 * @returns {Value}
 */
function decodeNode(node, spent, depth) {
  if (depth > MAX_DEPTH) throw new CodecError(`nested deeper than ${MAX_DEPTH} levels`);
  if (node === null || typeof node !== "object") return node;
  if (Array.isArray(node)) return decodeArray(node, spent, depth);
  const keys = Object.keys(node);
  const slashed = keys.filter((key) => key.startsWith("/"));
  if (slashed.length === 0) return decodeMembers(node, spent, depth);
  if (keys.length > 1) throw new CodecError(`a tagged value has one key, found ${keys.join(", ")}`);
  return decodeTagged(slashed[0], node[slashed[0]], spent, depth);
}

/**
 * @param {Json[]} nodes
 * @param {{ holes: number }} spent
 * @param {number} depth
 */
function decodeArray(nodes, spent, depth) {
  /** @type {Value[]} */
  const array = [];
  for (const node of nodes) {
    if (node !== null && typeof node === "object" && !Array.isArray(node) && soleSlashKey(node) === "/hole") {
      const run = node["/hole"];
      if (typeof run !== "number" || !Number.isInteger(run) || run < 1) {
        throw new CodecError(`a hole run is a positive integer, found ${JSON.stringify(run)}`);
      }
      spent.holes += run;
      if (spent.holes > MAX_HOLES) throw new CodecError(`more than ${MAX_HOLES} holes`);
      array.length += run;
    } else {
      array.push(decodeNode(node, spent, depth + 1));
    }
  }
  return array;
}

/**
 * @param {{ [key: string]: Json }} node
 * @param {{ holes: number }} spent
 * @param {number} depth
 * @returns {ObjectValue}
 */
function decodeMembers(node, spent, depth) {
  /** @type {ObjectValue} */
  const object = {};
  for (const [key, member] of Object.entries(node)) {
    refuseUnsafeKey(key);
    object[key] = decodeNode(member, spent, depth + 1);
  }
  return object;
}

/**
 * @param {string} key
 * @param {Json} state
 * @param {{ holes: number }} spent
 * @param {number} depth
 * @returns {Value}
 */
function decodeTagged(key, state, spent, depth) {
  switch (key) {
    case "/quote":
      return literal(state, depth);
    case "/object":
      if (state === null || typeof state !== "object" || Array.isArray(state)) {
        throw new CodecError("/object holds an object");
      }
      return decodeMembers(state, spent, depth);
    case "/Undefined@1":
      if (state !== null) throw new CodecError("/Undefined@1 holds null");
      return undefined;
    case "/SpecialNumber@1":
      return specialNumber(state);
    case "/BigInt@1":
      return bigintOf(text(state, key));
    case "/Symbol@1":
      return Symbol.for(text(state, key));
    case "/Bytes@1":
      return base64(text(state, key), key);
    case "/Map@1":
    case "/Set@1":
      throw new CodecError(`${key} is reserved`);
  }
  const tag = key.slice(1);
  if (!TAG.test(tag)) throw new CodecError(`malformed tag ${JSON.stringify(key)}`);
  return new Tagged(tag, canonicalState(tag, decodeNode(state, spent, depth + 1)));
}

/**
 * The content of a `/quote`, taken as it stands.
 * @param {Json} node
 * @param {number} depth
 * @returns {Value}
 */
function literal(node, depth) {
  if (depth > MAX_DEPTH) throw new CodecError(`nested deeper than ${MAX_DEPTH} levels`);
  if (node === null || typeof node !== "object") return node;
  if (Array.isArray(node)) return node.map((member) => literal(member, depth + 1));
  /** @type {ObjectValue} */
  const object = {};
  for (const [key, member] of Object.entries(node)) {
    refuseUnsafeKey(key);
    object[key] = literal(member, depth + 1);
  }
  return object;
}

/**
 * @param {Json} state
 * @returns {number}
 */
function specialNumber(state) {
  switch (state) {
    case "-0":
      return -0;
    case "NaN":
      return NaN;
    case "+Infinity":
      return Infinity;
    case "-Infinity":
      return -Infinity;
  }
  throw new CodecError(`unknown special number ${JSON.stringify(state)}`);
}

/**
 * Checks a tag's state and brings it to the one form that equal values share (WIRE-305, WIRE-306).
 * @param {string} tag
 * @param {Value} state
 * @returns {Value}
 */
function canonicalState(tag, state) {
  switch (tag) {
    case "EpochNsec@1":
    case "EpochDay@1":
      return toBase64Url(bigintBytes(bigintOf(text(state, tag))));
    case "Hash@1": {
      const { hash, tag: hashTag } = members(state, tag);
      return { hash: rewritten(hash, tag), tag: text(hashTag, tag) };
    }
    case "KeyPair@1": {
      const { algorithm, privateKey, publicKey } = members(state, tag);
      if (text(algorithm, tag) === "") throw new CodecError(`${tag} names no algorithm`);
      return { algorithm, privateKey: rewritten(privateKey, tag), publicKey: rewritten(publicKey, tag) };
    }
    case "RegExp@1": {
      const { source = "", flags = "", flavor = "es2025" } = members(state, tag);
      const pattern = { flags: text(flags, tag), flavor: text(flavor, tag), source: text(source, tag) };
      if (pattern.flavor === "es2025") checkRegExp(pattern.source, pattern.flags);
      return pattern;
    }
    case "Error@1": {
      const { type, name, message, stack, cause, ...extras } = members(state, tag);
      const kind = type ?? name ?? "Error";
      const called = name ?? kind;
      return {
        ...extras,
        type: kind,
        name: Object.is(called, kind) ? null : called,
        message: message ?? "",
        ...(stack === undefined ? {} : { stack }),
        ...(cause === undefined ? {} : { cause }),
      };
    }
    case "Problematic@1": {
      const whole = members(state, tag);
      if (!("state" in whole)) throw new CodecError(`${tag} holds no state`);
      return { error: text(whole.error, tag), state: whole.state, tag: text(whole.tag, tag) };
    }
    case "Link@1":
      return members(state, tag);
    default:
      return state;
  }
}

/**
 * @param {string} source
 * @param {string} flags
 */
function checkRegExp(source, flags) {
  try {
    new RegExp(source, flags);
  } catch (error) {
    throw new CodecError(`RegExp@1: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * @param {Value} state
 * @param {string} tag
 * @returns {ObjectValue}
 */
function members(state, tag) {
  if (!isObject(state)) throw new CodecError(`${tag} holds an object`);
  return state;
}

/**
 * @param {Value} state
 * @param {string} tag
 * @returns {string}
 */
function text(state, tag) {
  if (typeof state !== "string") throw new CodecError(`${tag} holds a string`);
  return state;
}

/**
 * @param {string} state
 * @param {string} tag
 * @returns {Uint8Array}
 */
function base64(state, tag) {
  try {
    return fromBase64Url(state);
  } catch (error) {
    throw new CodecError(`${tag}: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * @param {Value} state
 * @param {string} tag
 */
function rewritten(state, tag) {
  return toBase64Url(base64(text(state, tag), tag));
}

/**
 * @param {string} state
 * @returns {bigint}
 */
function bigintOf(state) {
  const bytes = base64(state, "/BigInt@1");
  if (bytes.length === 0) throw new CodecError("an integer has at least one byte");
  let value = 0n;
  for (const byte of bytes) value = (value << 8n) | BigInt(byte);
  return BigInt.asIntN(bytes.length * 8, value);
}
