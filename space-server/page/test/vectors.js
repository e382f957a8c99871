// Reads the golden vectors of the workspace and turns their typed notation (wire page, section 11) into
// values of the page's codec and back.

import { readFileSync } from "node:fs";
import { bigintBytes, Tagged } from "../codec.js";
import { fromBase64Url, toBase64Url, toHex } from "../bytes.js";

export function vectors(file) {
  const text = readFileSync(new URL(`../../../tests/vectors/${file}`, import.meta.url), "utf8");
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line, index) => ({ line: index + 1, ...JSON.parse(line) }));
}

export function fromHex(hex) {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

const string = (s) => (typeof s === "string" ? s : String.fromCharCode(...s.utf16));
const hexToText = (hex) => toBase64Url(fromHex(hex));
const textToHex = (text) => toHex(fromBase64Url(text));

/** The page's value for a typed vector value. */
export function value(typed) {
  const [kind, ...rest] = typed;
  switch (kind) {
    case "null":
      return null;
    case "undef":
      return undefined;
    case "bool":
      return rest[0];
    case "num":
      return new DataView(fromHex(rest[0]).buffer).getFloat64(0);
    case "str":
      return string(rest[0]);
    case "big":
      return BigInt(rest[0]);
    case "sym":
      return Symbol.for(string(rest[0]));
    case "arr": {
      const array = [];
      for (const member of rest[0]) {
        if (member[0] === "hole") array.length += member[1];
        else array.push(value(member));
      }
      return array;
    }
    case "obj":
      return Object.fromEntries(rest[0].map(([key, member]) => [string(key), value(member)]));
    case "bytes":
      return fromHex(rest[0]);
    case "nsec":
      return new Tagged("EpochNsec@1", toBase64Url(bigintBytes(BigInt(rest[0]))));
    case "day":
      return new Tagged("EpochDay@1", toBase64Url(bigintBytes(BigInt(rest[0]))));
    case "hash":
      return new Tagged("Hash@1", { hash: hexToText(rest[1]), tag: rest[0] });
    case "regexp":
      return new Tagged("RegExp@1", { flags: rest[1], flavor: rest[2], source: rest[0] });
    case "keypair":
      return new Tagged("KeyPair@1", {
        algorithm: rest[0],
        privateKey: hexToText(rest[2]),
        publicKey: hexToText(rest[1]),
      });
    case "error": {
      const { type, name, message, stack, cause, extras } = Object.fromEntries(rest[0]);
      const state = Object.fromEntries((extras ?? []).map(([key, member]) => [string(key), value(member)]));
      state.type = value(type);
      state.name = Object.is(value(name), value(type)) ? null : value(name);
      state.message = value(message);
      if (stack[0] !== "undef") state.stack = value(stack);
      if (cause[0] !== "undef") state.cause = value(cause);
      return new Tagged("Error@1", state);
    }
    case "link":
      return new Tagged("Link@1", value(rest[0]));
    case "unknown":
      return new Tagged(rest[0], value(rest[1]));
    case "problematic":
      return new Tagged("Problematic@1", { error: rest[2], state: value(rest[1]), tag: rest[0] });
  }
  throw new Error(`unknown vector kind ${kind}`);
}

const BY_KEY = ([a], [b]) => (a < b ? -1 : 1);

/**
 * A plain, comparable picture of a value that keeps apart what `deepEqual` would merge: holes from
 * undefined, -0 from 0, keys in no order.
 */
export function picture(v) {
  if (v === null) return "null";
  if (typeof v === "number") return Object.is(v, -0) ? "number -0" : `number ${v}`;
  if (typeof v === "symbol") return `symbol ${Symbol.keyFor(v)}`;
  if (typeof v !== "object") return `${typeof v} ${JSON.stringify(v?.toString())}`;
  if (v instanceof Uint8Array) return `bytes ${toHex(v)}`;
  if (v instanceof Tagged) return [`tagged ${v.tag}`, picture(v.state)];
  if (Array.isArray(v)) return ["array", ...Array.from({ length: v.length }, (_, i) => (i in v ? picture(v[i]) : "hole"))];
  return ["object", ...Object.entries(v).map(([key, member]) => [JSON.stringify(key), picture(member)]).sort(BY_KEY)];
}

