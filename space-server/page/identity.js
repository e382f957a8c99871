// Who the page speaks as: an Ed25519 key pair made in the browser and kept there (the private half never
// leaves the key store), its `did:key` name (WIRE-201), and the signature that opens a session (WIRE-801,
// WIRE-802). One browser profile holds as many people as there are names in `?as=<name>`.

import { hashValue } from "./hash.js";

/** @typedef {import("./wire.js").ObjectValue} ObjectValue */
/** @typedef {{ did: string, sign(bytes: Uint8Array): Promise<Uint8Array> }} Identity */
/** @typedef {{ name: string, privateKey: CryptoKey, did: string }} StoredIdentity */

const DATABASE = "lunch-poll";
const STORE = "identities";
const BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
/** Seconds that a signed opening stays valid. */
const VALID_FOR = 300;

/**
 * The identity of that name in this browser profile, made on first use.
 * @param {string} name
 * @returns {Promise<Identity>}
 */
export async function loadIdentity(name) {
  if (!globalThis.isSecureContext || globalThis.crypto?.subtle === undefined) {
    throw new Error("Keys can only be kept on a secure page: open it over https, or as http://localhost.");
  }
  const database = await openDatabase();
  try {
    const stored = (await find(database, name)) ?? (await keep(database, await generate(name)));
    return { did: stored.did, sign: (bytes) => sign(stored.privateKey, bytes) };
  } finally {
    database.close();
  }
}

/**
 * @param {Uint8Array} publicKey 32 bytes
 * @returns {string}
 */
export function didOfPublicKey(publicKey) {
  return `did:key:z${base58(Uint8Array.of(0xed, 0x01, ...publicKey))}`;
}

/**
 * The two members that authenticate a `session.open` (WIRE-801).
 * @param {{ identity: Identity, space: string, audience: string, challenge: string, session: ObjectValue,
 *   nowSeconds: number }} opening `session` is the descriptor exactly as it will be sent
 * @returns {Promise<{ invocation: ObjectValue, authorization: ObjectValue }>}
 */
export async function signSessionOpen({ identity, space, audience, challenge, session, nowSeconds }) {
  const invocation = {
    iss: identity.did,
    cmd: "session.open",
    sub: space,
    aud: audience,
    args: { protocol: "memory", session },
    challenge,
    iat: nowSeconds,
    exp: nowSeconds + VALID_FOR,
  };
  return { invocation, authorization: { signature: await identity.sign(hashValue(invocation)) } };
}

/**
 * @param {CryptoKey} privateKey
 * @param {Uint8Array} bytes
 */
async function sign(privateKey, bytes) {
  return new Uint8Array(await crypto.subtle.sign("Ed25519", privateKey, bytes));
}

/**
 * @param {string} name
 * @returns {Promise<StoredIdentity>}
 */
async function generate(name) {
  const extractable = false;
  const pair = /** @type {CryptoKeyPair} */ (
    await crypto.subtle.generateKey("Ed25519", extractable, ["sign", "verify"])
  );
  const publicKey = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  return { name, privateKey: pair.privateKey, did: didOfPublicKey(publicKey) };
}

/** @returns {Promise<IDBDatabase>} */
function openDatabase() {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "name" });
  return result(request);
}

/**
 * @param {IDBDatabase} database
 * @param {string} name
 * @returns {Promise<StoredIdentity | undefined>}
 */
function find(database, name) {
  return result(database.transaction(STORE).objectStore(STORE).get(name));
}

/**
 * Stores the identity unless another tab was first; the one that is stored wins.
 * @param {IDBDatabase} database
 * @param {StoredIdentity} identity
 * @returns {Promise<StoredIdentity>}
 */
async function keep(database, identity) {
  const store = database.transaction(STORE, "readwrite").objectStore(STORE);
  const first = await result(store.get(identity.name));
  if (first !== undefined) return first;
  await result(store.put(identity));
  return identity;
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @param {Uint8Array} bytes */
function base58(bytes) {
  let number = 0n;
  for (const byte of bytes) number = (number << 8n) | BigInt(byte);
  let text = "";
  for (; number > 0n; number /= 58n) text = BASE58[Number(number % 58n)] + text;
  const leadingZeros = bytes.findIndex((byte) => byte !== 0);
  return BASE58[0].repeat(leadingZeros < 0 ? bytes.length : leadingZeros) + text;
}

/**
 * A short form of a DID for reading aloud and for small screens.
 * @param {string} did
 */
export function shortDid(did) {
  const key = did.replace(/^did:key:/, "");
  return `${key.slice(0, 8)}…${key.slice(-4)}`;
}
