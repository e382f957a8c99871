// What people do on the page: each click is an event, appended to its stream's sidecar document for the
// server to handle (WIRE-911, RUN-75 to RUN-79). Nothing is computed here; an event is over when the
// watermark passed it (SS-587) and its entry says how the handler ended.

import { isObject } from "./codec.js";
import { streamSidecarId } from "./hash.js";
import { ServerError } from "./session.js";

/** @typedef {import("./wire.js").Value} Value */
/** @typedef {import("./wire.js").ObjectValue} ObjectValue */
/** @typedef {import("./wire.js").StreamName} StreamName */
/**
 * `queued`: waits its turn. `sending`: on its way, or being tried again. `accepted`: durably in the stream.
 * `settled`: the handler ran and its consequences are in the received documents. `refused`: the server did
 * not take the event. `failed`: the event was taken and its handler ended with an error, or never ran.
 * @typedef {"queued" | "sending" | "accepted" | "settled" | "refused" | "failed"} EventPhase
 */
/**
 * `reports`: ask for the handler's outcome once the event is settled. `asking`: that question is out.
 * `caughtUp`: the received documents reflect the commit. `trouble`: why it was refused, failed, or is tried again.
 * @typedef {{ eventId: string, stream: StreamName, payload: Value, phase: EventPhase, reports: boolean,
 *   asking: boolean, caughtUp: boolean, seq: number | undefined,
 *   trouble: { name: string, message: string } | undefined }} FiredEvent
 */

/** Sending again cannot change these answers. Every other failure is tried again: the event id makes that safe. */
const FINAL = new Set(["ProtocolError", "RowLabelCommitError", "PreconditionFailedError", "InvalidMessageError"]);
const FIRST_DELAY = 250;
const LONGEST_DELAY = 10_000;

export class Events {
  /**
   * Events that are not over, oldest first.
   * @type {FiredEvent[]}
   */
  open = [];
  /**
   * Events that ended badly, until somebody has read it.
   * @type {FiredEvent[]}
   */
  problems = [];

  #options;
  #delivering = false;

  /**
   * @param {{ session: import("./session.js").Session, replica: import("./replica.js").Replica,
   *   streams: import("./wire.js").Demo["streams"], clock: import("./wire.js").Clock,
   *   newId: () => string, changed: () => void }} options
   */
  constructor(options) {
    this.#options = options;
  }

  /**
   * @param {StreamName} stream
   * @param {Value} payload
   * @param {boolean} [reports] false for events whose handler nobody waits for
   * @returns {FiredEvent} lives: its phase follows the event
   */
  fire(stream, payload, reports = true) {
    /** @type {FiredEvent} */
    const event = {
      eventId: this.#options.newId(),
      stream,
      payload,
      phase: "queued",
      reports,
      asking: false,
      caughtUp: false,
      seq: undefined,
      trouble: undefined,
    };
    this.open.push(event);
    void this.#deliverAll();
    this.#options.changed();
    return event;
  }

  /** Takes note of the received documents; to be called whenever they changed. */
  observe() {
    const watermark = this.#options.replica.watermark();
    for (const event of [...this.open]) {
      if (event.phase !== "accepted" || !event.caughtUp || event.asking) continue;
      if (event.seq !== undefined && watermark < event.seq) continue;
      if (event.reports) void this.#askOutcome(event);
      else this.#finish(event, "settled", undefined);
    }
  }

  /** @param {string} eventId */
  dismiss(eventId) {
    this.problems = this.problems.filter((event) => event.eventId !== eventId);
    this.#options.changed();
  }

  /** One append in flight at a time, so that events of one person keep their order (RUN-77). */
  async #deliverAll() {
    if (this.#delivering) return;
    this.#delivering = true;
    for (let event = this.#nextQueued(); event !== undefined; event = this.#nextQueued()) await this.#deliver(event);
    this.#delivering = false;
  }

  #nextQueued() {
    return this.open.find((event) => event.phase === "queued");
  }

  /** @param {FiredEvent} event */
  async #deliver(event) {
    const { session, clock, changed } = this.#options;
    event.phase = "sending";
    for (let failures = 1; ; failures++) {
      try {
        const { seq, localSeq } = await session.transact(this.#append(event));
        this.#accepted(event, seq);
        void session.caughtUpWith(localSeq).then(() => this.#caughtUp(event));
        return;
      } catch (thrown) {
        const error = /** @type {Error} */ (thrown);
        if (error.name === "EventAppendDuplicateError") {
          // An earlier attempt got through. Which seq it has, its entry will say.
          this.#accepted(event, undefined);
          this.#caughtUp(event);
          return;
        }
        const denied = error.name === "AuthorizationError" && !(error instanceof ServerError && error.retriable);
        if (denied || FINAL.has(error.name)) return this.#finish(event, "refused", error);
        event.trouble = { name: error.name, message: error.message };
        changed();
        const delay = Math.min(FIRST_DELAY * 2 ** (failures - 1), LONGEST_DELAY);
        await new Promise((resolve) => clock.after(delay, () => resolve(undefined)));
      }
    }
  }

  /**
   * The commit that fires an event. An append also makes the sidecar if this is the stream's first event,
   * so two people who fire first at once do not get in each other's way.
   * @param {FiredEvent} event
   * @returns {ObjectValue}
   */
  #append({ eventId, stream, payload }) {
    const address = this.#options.streams[stream];
    const id = streamSidecarId(address);
    const entry = { eventId, stream: address, payload };
    return {
      operations: [{ op: "patch", id, patches: [{ op: "append", path: "/value/entries", values: [entry] }] }],
      eventAppends: [{ id, eventId }],
    };
  }

  /**
   * @param {FiredEvent} event
   * @param {number | undefined} seq
   */
  #accepted(event, seq) {
    event.phase = "accepted";
    event.seq = seq;
    event.trouble = undefined;
    this.#options.changed();
  }

  /** @param {FiredEvent} event */
  #caughtUp(event) {
    event.caughtUp = true;
    this.observe();
    this.#options.changed();
  }

  /** @param {FiredEvent} event */
  async #askOutcome(event) {
    event.asking = true;
    try {
      const sidecar = await this.#options.session.read(streamSidecarId(this.#options.streams[event.stream]));
      const entry = entryOf(sidecar, event.eventId);
      if (event.seq === undefined && typeof entry?.seq === "number") event.seq = entry.seq;
      if ((event.seq ?? 0) > this.#options.replica.watermark()) return;
      const failure = failureOf(entry);
      this.#finish(event, failure === undefined ? "settled" : "failed", failure);
    } catch (error) {
      // A server that will not say leaves the event as done as the watermark says it is. After a lost
      // connection the question is asked again when the session is back.
      if (error instanceof ServerError) this.#finish(event, "settled", undefined);
    } finally {
      event.asking = false;
    }
  }

  /**
   * @param {FiredEvent} event
   * @param {"settled" | "refused" | "failed"} phase
   * @param {{ name: string, message: string } | undefined} trouble
   */
  #finish(event, phase, trouble) {
    event.phase = phase;
    event.trouble = trouble && { name: trouble.name, message: trouble.message };
    this.open = this.open.filter((other) => other !== event);
    if (phase !== "settled") this.problems.push(event);
    this.#options.changed();
  }
}

/**
 * @param {ObjectValue | undefined} sidecar
 * @param {string} eventId
 * @returns {ObjectValue | undefined}
 */
function entryOf(sidecar, eventId) {
  const entries = isObject(sidecar?.value) ? sidecar?.value.entries : undefined;
  if (!Array.isArray(entries)) return undefined;
  return entries.filter(isObject).reverse().find((entry) => entry.eventId === eventId);
}

/**
 * @param {ObjectValue | undefined} entry absent once the stream was compacted below its watermark
 * @returns {{ name: string, message: string } | undefined}
 */
function failureOf(entry) {
  if (entry?.status === "dropped") return { name: "EventDropped", message: String(entry.reason ?? "no handler ran") };
  if (typeof entry?.error === "string") return { name: "HandlerError", message: entry.error };
  return undefined;
}
