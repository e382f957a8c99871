// The codec against every line of wire-codec.jsonl (WIRE-302 to WIRE-312).

import assert from "node:assert/strict";
import { test } from "node:test";
import { CodecError, decode, encode } from "../codec.js";
import { picture, value, vectors } from "./vectors.js";

const lines = vectors("wire-codec.jsonl");

test("wire_303 every encode vector gives its text and comes back", () => {
  let count = 0;
  for (const { line, kind, name, value: typed, text, roundtrip } of lines) {
    if (kind !== "encode") continue;
    const where = `line ${line} (${name})`;
    assert.equal(encode(value(typed)), text, where);
    const back = value(roundtrip === true ? typed : roundtrip);
    assert.deepEqual(picture(decode(text)), picture(back), where);
    count++;
  }
  assert.equal(count, 113);
});

test("wire_310 every decode vector is read or refused as it says", () => {
  let count = 0;
  for (const { line, kind, text, value: typed, reencoded, error, reencodeError, arrayLength } of lines) {
    if (kind !== "decode") continue;
    const where = `line ${line} ${text}`;
    // Two of our own bounds refuse what the reference lets through: keys inside a quote that could never
    // be written again, and hole runs that claim more slots than a page will hold (WIRE-314).
    if (error || reencodeError || arrayLength > 1_000_000) {
      assert.throws(() => decode(text), CodecError, where);
    } else {
      assert.deepEqual(picture(decode(text)), picture(value(typed)), where);
      assert.equal(encode(decode(text)), reencoded, where);
    }
    count++;
  }
  assert.equal(count, 165);
});

test("wire_311 what has no text is refused", () => {
  const unregistered = Symbol("only here");
  const cycle = [];
  cycle.push(cycle);
  const unsafe = JSON.parse('{"a":{"__proto__":1}}');
  for (const refused of [new Map(), new Set(), unregistered, cycle, unsafe, { constructor: 1 }, new Date(0), () => 1]) {
    assert.throws(() => encode(refused), CodecError);
  }
});

test("wire_312 a thousand levels are read, five thousand are refused by name", () => {
  const nested = (levels) => "fvj1:" + "[".repeat(levels) + "]".repeat(levels);
  assert.equal(encode(decode(nested(1024))), nested(1024));
  assert.throws(() => decode(nested(5000)), /nested deeper than 2048/);
});

test("wire_1003 every frame of the transcripts is canonical and comes back byte for byte", () => {
  let count = 0;
  for (const { line, kind, note, text } of vectors("wire-frames.jsonl")) {
    if (kind !== "frame" || note === "not a value text") continue;
    assert.equal(encode(decode(text)), text, `line ${line}`);
    count++;
  }
  assert.ok(count > 100, `${count} frames`);
});
