// The value hash against every line of wire-hash.jsonl, and SHA-256 against the platform's.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { toHex } from "../bytes.js";
import { encode } from "../codec.js";
import { hashString, hashValue, preimage, sha256, streamSidecarId, taggedHash } from "../hash.js";
import { value, vectors } from "./vectors.js";

const lines = vectors("wire-hash.jsonl");
const ofKind = (kind) => lines.filter((line) => line.kind === kind);

test("wire_402 preimage, digest and tagged hash of every vector", () => {
  for (const { line, value: typed, preimageHex, preimageLength, digestHex, hash } of ofKind("hash")) {
    const bytes = preimage(value(typed));
    if (preimageHex !== undefined) assert.equal(toHex(bytes), preimageHex, `line ${line}`);
    if (preimageLength !== undefined) assert.equal(bytes.length, preimageLength, `line ${line}`);
    assert.equal(toHex(hashValue(value(typed))), digestHex, `line ${line}`);
    assert.equal(taggedHash(value(typed)), hash, `line ${line}`);
  }
  assert.equal(ofKind("hash").length, 74);
});

test("wire_313 containers are equal exactly when their hashes are", () => {
  for (const { line, a, b, equal } of ofKind("equal")) {
    if (a[0] === "str" || b[0] === "str") continue; // top-level strings compare by code unit, not by hash
    if (a[0] === "unknown" && a[1] === "Link@1") continue; // one kind here: a read tag of that name is a link
    assert.equal(taggedHash(value(a)) === taggedHash(value(b)), equal, `line ${line}`);
  }
  assert.equal(ofKind("equal").length, 25);
});

test("wire_405 the precondition hash covers the encoded text", () => {
  for (const { line, value: typed, encoded, hash } of ofKind("preconditionValueHash")) {
    assert.equal(encode(value(typed)), encoded, `line ${line}`);
    assert.equal(hashString(encoded), hash, `line ${line}`);
  }
  assert.equal(ofKind("preconditionValueHash").length, 7);
});

test("wire_206 sidecar ids of streams", () => {
  for (const { line, stream, docId } of ofKind("streamEntriesDocId")) {
    assert.equal(streamSidecarId(stream), docId, `line ${line}`);
  }
  assert.equal(ofKind("streamEntriesDocId").length, 5);
});

test("wire_206 effect nonces", () => {
  for (const { line, eventId, instance, nonce } of ofKind("effectIntentNonce")) {
    assert.equal(`nav:${hashString({ eventId, instance })}`, nonce, `line ${line}`);
  }
  assert.equal(ofKind("effectIntentNonce").length, 2);
});

test("sha-256 agrees with the platform over every length around its block size", () => {
  for (let length = 0; length <= 200; length++) {
    const message = Uint8Array.from({ length }, (_, at) => (at * 7 + length) & 0xff);
    assert.equal(toHex(sha256(message)), createHash("sha256").update(message).digest("hex"), `length ${length}`);
  }
});
