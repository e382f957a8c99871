// Key pairs of known people for the tests, and the check a server makes of an opening.

import { createPrivateKey, createPublicKey, sign, verify } from "node:crypto";
import { didOfPublicKey } from "../identity.js";
import { hashValue, sha256 } from "../hash.js";
import { fromHex } from "./vectors.js";
import { utf8 } from "../bytes.js";

const PKCS8_HEAD = fromHex("302e020100300506032b657004220420");
const SPKI_HEAD = fromHex("302a300506032b6570032100");
const BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/** An identity with the interface the page uses, from a 32-byte seed. */
export function fromSeed(seed) {
  const privateKey = createPrivateKey({ key: Buffer.concat([PKCS8_HEAD, seed]), format: "der", type: "pkcs8" });
  const spki = createPublicKey(privateKey).export({ format: "der", type: "spki" });
  return {
    did: didOfPublicKey(new Uint8Array(spki.subarray(SPKI_HEAD.length))),
    sign: async (bytes) => new Uint8Array(sign(null, bytes, privateKey)),
  };
}

export function fromPassphrase(passphrase) {
  return fromSeed(sha256(utf8(passphrase)));
}

/** Was the invocation signed by the person it names? */
export function isSigned(invocation, signature) {
  const publicKey = createPublicKey({
    key: Buffer.concat([SPKI_HEAD, publicKeyOf(invocation.iss)]),
    format: "der",
    type: "spki",
  });
  return verify(null, hashValue(invocation), publicKey, signature);
}

function publicKeyOf(did) {
  let number = 0n;
  for (const character of did.slice("did:key:z".length)) number = number * 58n + BigInt(BASE58.indexOf(character));
  return fromHex(number.toString(16).padStart(68, "0")).subarray(2);
}
