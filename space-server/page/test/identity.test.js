// Names of keys and signed openings, against wire-auth.jsonl (WIRE-201, WIRE-209, WIRE-802).

import assert from "node:assert/strict";
import { test } from "node:test";
import { toHex } from "../bytes.js";
import { decode, encode } from "../codec.js";
import { sha256, taggedHash } from "../hash.js";
import { signSessionOpen } from "../identity.js";
import { fromPassphrase, fromSeed, isSigned } from "./people.js";
import { fromHex, vectors } from "./vectors.js";
import { utf8 } from "../bytes.js";

const lines = vectors("wire-auth.jsonl");
const ofKind = (kind) => lines.filter((line) => line.kind === kind);

test("wire_201 the did of every known key", () => {
  for (const { line, passphrase, seedHex, did } of ofKind("passphrase")) {
    assert.equal(toHex(sha256(utf8(passphrase))), seedHex, `line ${line}`);
    assert.equal(fromPassphrase(passphrase).did, did, `line ${line}`);
  }
  for (const { line, seedHex, did } of [...ofKind("raw"), ...ofKind("derive"), ...ofKind("mnemonic")]) {
    assert.equal(fromSeed(fromHex(seedHex)).did, did, `line ${line}`);
  }
  assert.equal(ofKind("passphrase").length + ofKind("raw").length + ofKind("derive").length, 12);
});

test("wire_209 a derived seed is the hash of the parent's signature", async () => {
  for (const { line, from, name, signatureHex, seedHex } of ofKind("derive")) {
    const signature = await fromPassphrase(from).sign(utf8(name));
    assert.equal(toHex(signature), signatureHex, `line ${line}`);
    assert.equal(toHex(sha256(signature)), seedHex, `line ${line}`);
  }
});

test("wire_802 the invocation hash of every vector, and the signature where the vector accepts it", () => {
  let signed = 0;
  for (const { line, name, message, invocationHash, signatureHex, principal, error } of ofKind("verify")) {
    const { invocation, authorization } = decode(message);
    assert.equal(encode(decode(message)), message, `line ${line} (${name})`);
    if (error === undefined) {
      assert.equal(taggedHash(invocation), invocationHash, `line ${line} (${name})`);
      assert.equal(toHex(authorization.signature), signatureHex, `line ${line} (${name})`);
      assert.equal(invocation.iss, principal, `line ${line} (${name})`);
      assert.ok(isSigned(invocation, authorization.signature), `line ${line} (${name})`);
      signed++;
    } else if (error.message === "Invalid signature" && authorization.signature.length === 64) {
      assert.ok(!isSigned(invocation, authorization.signature), `line ${line} (${name})`);
    }
  }
  assert.equal(ofKind("verify").length, 44);
  assert.ok(signed > 10, `${signed} accepted`);
});

test("wire_801 signing reproduces the openings of the vectors byte for byte", async () => {
  const alice = fromPassphrase("alice");
  let reproduced = 0;
  for (const { line, name, message, signatureHex, challenge, now, audience, error } of ofKind("verify")) {
    const { invocation, session, space } = decode(message);
    if (error !== undefined || invocation.iss !== alice.did) continue;
    const opening = { identity: alice, space, audience, challenge: challenge.value, session, nowSeconds: now };
    const mine = await signSessionOpen(opening);
    if (encode(mine.invocation) !== encode(invocation)) continue; // vectors with fields this page does not send
    assert.equal(toHex(mine.authorization.signature), signatureHex, `line ${line} (${name})`);
    reproduced++;
  }
  assert.ok(reproduced >= 3, `${reproduced} reproduced`);
});
