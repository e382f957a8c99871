// The rows this session received: documents by instance, with the seq and the class of the commit that
// covers them. Frames are applied whole or not at all (RUN-50, WIRE-752); nothing here writes.

import { isObject } from "./codec.js";

/** @typedef {import("./wire.js").Value} Value */
/** @typedef {import("./wire.js").ObjectValue} ObjectValue */
/** @typedef {import("./wire.js").Sync} Sync */
/** @typedef {import("./wire.js").Upsert} Upsert */
/**
 * @typedef {{ branch: string, id: string, scope: string, scopeKey: string | undefined, seq: number,
 *   doc: ObjectValue | undefined, coverClass: string | undefined }} Row
 * `doc` undefined: never written (seq 0) or deleted (its real seq).
 */

/** The document whose `value.seq` says through which seq everything derived is current (SS-580). */
export const WATERMARK_DOCUMENT = "of:server-execution-watermark";
/** Links followed for one value: a bound on what a document that links in circles can cost. */
const MAX_HOPS = 1000;

/** A frame that does not follow the protocol; nothing of it was applied. */
export class FrameError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "FrameError";
  }
}

/**
 * Checks a frame's shape before any of it is applied.
 * @param {Value} value
 * @returns {Sync}
 */
export function parseSync(value) {
  if (!isObject(value)) throw new FrameError("a sync frame is an object");
  const { toSeq, caughtUpLocalSeq, upserts, removes, schemaTable } = value;
  if (!isSeq(toSeq)) throw new FrameError(`a sync frame ends at a seq, found ${String(toSeq)}`);
  if (caughtUpLocalSeq !== undefined && !isSeq(caughtUpLocalSeq)) {
    throw new FrameError(`caughtUpLocalSeq is a local seq, found ${String(caughtUpLocalSeq)}`);
  }
  if (!Array.isArray(upserts) || !Array.isArray(removes)) throw new FrameError("a sync frame lists upserts and removes");
  // The hello did not ask for schema tables (WIRE-770), so references into one cannot be understood.
  if (schemaTable !== undefined) throw new FrameError("the frame was compressed although compression was not agreed on");
  for (const upsert of upserts) checkUpsert(upsert);
  for (const remove of removes) checkInstance(remove);
  return /** @type {Sync} */ (/** @type {unknown} */ ({ toSeq, caughtUpLocalSeq, upserts, removes }));
}

/** @param {Value} upsert */
function checkUpsert(upsert) {
  checkInstance(upsert);
  const { id, seq, doc, deleted, coverClass } = /** @type {ObjectValue} */ (upsert);
  if (!isSeq(seq)) throw new FrameError(`the upsert of ${String(id)} has no seq`);
  if (deleted !== true && !isObject(doc)) throw new FrameError(`the upsert of ${String(id)} has no document`);
  if (coverClass !== undefined && typeof coverClass !== "string") {
    throw new FrameError(`the upsert of ${String(id)} has a class that is not a string`);
  }
}

/** @param {Value} entry */
function checkInstance(entry) {
  if (!isObject(entry)) throw new FrameError("an entry of a sync frame is an object");
  const { branch, id, scope, scopeKey } = entry;
  if (typeof branch !== "string" || typeof id !== "string" || typeof scope !== "string") {
    throw new FrameError("an entry of a sync frame names branch, id and scope");
  }
  if (scopeKey !== undefined && typeof scopeKey !== "string") throw new FrameError(`the scope key of ${id} is not a string`);
}

/**
 * @param {Value} value
 * @returns {value is number}
 */
function isSeq(value) {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}

export class Replica {
  /** @type {Map<string, Row>} */
  #rows = new Map();
  /** The seq that the last applied frame reached. */
  seq = 0;

  /**
   * Applies one pushed frame.
   * @param {Sync} sync checked by `parseSync`
   */
  apply(sync) {
    for (const upsert of sync.upserts) merge(this.#rows, upsert);
    for (const remove of sync.removes) this.#rows.delete(instance(remove.branch, remove.id, remove.scopeKey ?? remove.scope));
    this.seq = Math.max(this.seq, sync.toSeq);
  }

  /**
   * Takes a frame that lists everything watched (the answer to `session.watch.set`): what it does not list
   * is gone, and its seqs hold even where they are smaller, since the store may have been replaced.
   * @param {Sync} sync checked by `parseSync`
   */
  adopt(sync) {
    /** @type {Map<string, Row>} */
    const rows = new Map();
    for (const upsert of sync.upserts) merge(rows, upsert);
    this.#rows = rows;
    this.seq = sync.toSeq;
  }

  /** @returns {Row[]} by scope from broad to narrow, then by id */
  rows() {
    const breadth = ["space", "user", "session"];
    return [...this.#rows.values()].sort(
      (a, b) => breadth.indexOf(a.scope) - breadth.indexOf(b.scope) || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0),
    );
  }

  /**
   * @param {string} id
   * @param {string} scope
   * @returns {Row | undefined}
   */
  row(id, scope) {
    return this.#rows.get(instance("", id, scope));
  }

  /**
   * The value of a document with the links inside it followed as far as the received rows go; undefined
   * where the document is absent.
   * @param {string} id
   * @param {string} scope
   * @returns {Value}
   */
  value(id, scope) {
    return this.#follow({ id, scope, path: [] }, { hops: MAX_HOPS });
  }

  /** The watermark: derived state is current through this seq; 0 before the server settled anything. */
  watermark() {
    const value = this.value(WATERMARK_DOCUMENT, "space");
    return isObject(value) && isSeq(value.seq) ? value.seq : 0;
  }

  /**
   * @param {{ id: string, scope: string, path: string[] }} address
   * @param {{ hops: number }} budget links that may still be followed, which is what ends a cycle
   * @returns {Value}
   */
  #follow(address, budget) {
    if (budget.hops-- <= 0) return undefined;
    /** @type {Value} */
    let value = this.row(address.id, address.scope)?.doc?.value;
    for (let depth = 0; ; depth++) {
      const link = linkOf(value, address);
      if (link !== undefined) {
        return this.#follow({ ...link, path: [...link.path, ...address.path.slice(depth)] }, budget);
      }
      if (depth === address.path.length) return this.#expand(value, address, budget);
      const segment = address.path[depth];
      if (value === null || typeof value !== "object" || !Object.hasOwn(value, segment)) return undefined;
      value = /** @type {ObjectValue} */ (value)[segment];
    }
  }

  /**
   * @param {Value} value
   * @param {{ id: string, scope: string }} base
   * @param {{ hops: number }} budget
   * @returns {Value}
   */
  #expand(value, base, budget) {
    const link = linkOf(value, base);
    if (link !== undefined) return this.#follow(link, budget);
    if (Array.isArray(value)) return value.map((member) => this.#expand(member, base, budget));
    if (!isObject(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, this.#expand(member, base, budget)]));
  }
}

/**
 * @param {Map<string, Row>} rows
 * @param {Upsert} upsert
 */
function merge(rows, { branch, id, scope, scopeKey, seq, doc, deleted, coverClass }) {
  const key = instance(branch, id, scopeKey ?? scope);
  const known = rows.get(key);
  if (known !== undefined && seq < known.seq) return; // a refresh that was overtaken (RUN-51)
  const standing = known?.seq === seq ? known.coverClass : undefined;
  rows.set(key, { branch, id, scope, scopeKey, seq, doc: deleted ? undefined : doc, coverClass: coverClass ?? standing });
}

/**
 * @param {string} branch
 * @param {string} id
 * @param {string} keyOrScope
 */
function instance(branch, id, keyOrScope) {
  return JSON.stringify([branch, keyOrScope, id]);
}

/**
 * The address a stored link points to (WIRE-501, WIRE-503), or undefined if the value is no link.
 * @param {Value} value
 * @param {{ id: string, scope: string }} base
 * @returns {{ id: string, scope: string, path: string[] } | undefined}
 */
function linkOf(value, base) {
  if (!isObject(value)) return undefined;
  const envelope = Object.keys(value).length === 1 ? value["/"] : undefined;
  const payload = isObject(envelope) ? envelope["link@1"] : undefined;
  if (!isObject(payload)) return undefined;
  const { id, scope, path } = payload;
  return {
    id: typeof id === "string" && id !== "" ? id : base.id,
    scope: typeof scope === "string" && scope !== "inherit" ? scope : base.scope,
    path: Array.isArray(path) ? path.map(String) : [],
  };
}
