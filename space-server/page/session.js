// One session with the server over one WebSocket at a time: hello, signed opening, watch set, pushed
// frames, acknowledgements, commits with their verdicts and catch-up markers, resume and back-off
// (wire page, sections 7 and 8; the duties are WIRE-781). It knows nothing of polls or events.

import { decode, encode, isObject } from "./codec.js";
import { signSessionOpen } from "./identity.js";
import { FrameError, parseSync } from "./replica.js";

/** @typedef {import("./wire.js").Value} Value */
/** @typedef {import("./wire.js").ObjectValue} ObjectValue */
/** @typedef {import("./wire.js").Watch} Watch */
/** @typedef {import("./wire.js").WireError} WireError */
/** @typedef {import("./wire.js").Clock} Clock */

/**
 * What outlives a page load, so that a reload is the same session: its id, the token that resumes it, and
 * counters that may never repeat within it.
 * @typedef {{ sessionId: string, sessionToken?: string, nextLocalSeq: number }} Continuity
 */
/**
 * The part of a WebSocket that is used.
 * @typedef {Pick<WebSocket, "send" | "close" | "onopen" | "onmessage" | "onclose" | "onerror">} Socket
 */
/**
 * `connecting`: until the first frame of documents. `live`: documents are current and commits flow.
 * `waiting`: the connection was lost and will be tried again. `ended`: nothing more happens by itself.
 * @typedef {"connecting" | "live" | "waiting" | "ended"} Phase
 */
/** @typedef {{ seq: number, localSeq: number }} Accepted */
/** @typedef {{ resolve(ok: ObjectValue): void, reject(error: Error): void }} Settle */

const PROTOCOL = "memory";
/** `syncSchemaTableV2` is left out on purpose: without it the server sends schemas in full (WIRE-712). */
const FLAGS = { modernCellRep: false, verdictCatchUpMarkers: true };
const FIRST_DELAY = 25;
const LONGEST_DELAY = 30_000;
const JITTER = 0.2;
/** A browser cannot see the server's pings, so a quiet connection is probed with an acknowledgement. */
const QUIET_BEFORE_PROBE = 20_000;
const PROBE_PATIENCE = 10_000;

/** An error the server answered with; `name` is its contractual name (WIRE-766). */
export class ServerError extends Error {
  /** @param {WireError} error */
  constructor({ name, message, retriable = false }) {
    super(message);
    this.name = name;
    this.retriable = retriable;
  }
}

/** The connection went away before an answer came. */
class ConnectionLost extends Error {
  constructor() {
    super("the connection was lost");
    this.name = "ConnectionLost";
  }
}

export class Session {
  /** @type {Phase} */
  phase = "connecting";
  /**
   * Why the session ended, or why the last attempt failed; gone once the session is live again.
   * @type {{ name: string, message: string } | undefined}
   */
  trouble;
  /** The largest own commit whose outcome the received documents reflect (WIRE-754). */
  caughtUpLocalSeq = 0;

  #options;
  /** @type {Continuity} */
  #continuity;
  #attempt = 0;
  #retryTimer = /** @type {unknown} */ (undefined);
  #probeTimer = /** @type {unknown} */ (undefined);
  #lastHeard = 0;

  /** @type {Socket | undefined} */
  #socket;
  #greeted = false;
  /** Is the session open on the current socket, so that requests may be sent? */
  #open = false;
  #requests = 0;
  /**
   * In sending order, which is the order of the answers (WIRE-703).
   * @type {Map<string, Settle>}
   */
  #unansweredRequests = new Map();
  /**
   * Commits without a verdict, by local seq; they outlive the connection.
   * @type {Map<number, Settle & { commit: ObjectValue }>}
   */
  #unansweredCommits = new Map();
  /** @type {{ localSeq: number, resolve(): void }[]} */
  #awaitingMarker = [];
  #acknowledging = false;
  #acknowledged = 0;

  /**
   * @param {{ space: string, audience: string, url: string, identity: import("./identity.js").Identity,
   *   watches: Watch[], replica: import("./replica.js").Replica, clock: Clock,
   *   load: () => Continuity | undefined, save: (continuity: Continuity) => void,
   *   openSocket: (url: string) => Socket, newId: () => string, random: () => number,
   *   changed: () => void }} options `changed` is called after anything visible here or in the
   *   replica did; it may come often and in the middle of things, so it should only take a note
   */
  constructor(options) {
    this.#options = options;
    this.#continuity = options.load() ?? this.#fresh();
  }

  get sessionId() {
    return this.#continuity.sessionId;
  }

  /** Commits that have no verdict yet. */
  get unanswered() {
    return this.#unansweredCommits.size;
  }

  start() {
    this.#connect();
  }

  /** Tries again at once instead of when the back-off says: the network came back, or a person asked. */
  retryNow() {
    if (this.phase !== "waiting") return;
    this.#options.clock.cancel(this.#retryTimer);
    this.#connect();
  }

  /** Goes on under a new session id after the old session ended. */
  startAfresh() {
    if (this.phase !== "ended") return;
    this.#continuity = this.#fresh();
    this.#attempt = 0;
    this.#connect();
  }

  /**
   * Commits, now or when the session is open again. Resolves with the verdict; rejects with the server's
   * error. A commit whose answer was lost is sent again with the same local seq, which the server answers
   * from its record (WIRE-733).
   * @param {ObjectValue} body everything of a commit but its local seq and its (empty) reads
   * @returns {Promise<Accepted>}
   */
  async transact(body) {
    const localSeq = this.#continuity.nextLocalSeq;
    this.#remember({ nextLocalSeq: localSeq + 1 });
    const commit = { ...body, localSeq, reads: { confirmed: [], pending: [] } };
    const verdict = await new Promise((resolve, reject) => {
      const settle = { commit, resolve, reject };
      this.#unansweredCommits.set(localSeq, settle);
      if (this.#open) this.#sendCommit(localSeq, settle);
    });
    return { seq: Number(verdict.seq), localSeq };
  }

  /**
   * Resolves when the received documents reflect the verdict of that commit; at once if they do, and also
   * when the session is replaced, since the new one starts from a full frame.
   * @param {number} localSeq
   * @returns {Promise<void>}
   */
  caughtUpWith(localSeq) {
    return new Promise((resolve) => {
      this.#awaitingMarker.push({ localSeq, resolve });
      this.#releaseMarkers();
    });
  }

  /**
   * Reads a document once, as it is now.
   * @param {string} id
   * @returns {Promise<ObjectValue | undefined>} undefined if the document is absent
   */
  async read(id) {
    const answer = await this.#request("graph.query", { query: { roots: [{ id, selector: { path: [] } }] } });
    if (!Array.isArray(answer.entities)) throw new FrameError("graph.query answers with entities");
    const entity = answer.entities.find((candidate) => isObject(candidate) && candidate.id === id);
    return isObject(entity) && isObject(entity.document) ? entity.document : undefined;
  }

  // ------------------------------------------------------------------------------------------ connection

  #connect() {
    this.#greeted = false;
    this.#become("connecting");
    const { openSocket, url, clock } = this.#options;
    const socket = openSocket(url);
    this.#socket = socket;
    this.#lastHeard = clock.now();
    const current = () => socket === this.#socket;
    socket.onopen = () => current() && this.#send({ type: "hello", protocol: PROTOCOL, flags: FLAGS });
    socket.onmessage = ({ data }) => {
      if (!current()) return;
      this.#lastHeard = clock.now();
      try {
        this.#receive(data);
      } catch (error) {
        this.#drop(/** @type {Error} */ (error));
      }
    };
    socket.onclose = () => current() && this.#drop(undefined);
    socket.onerror = () => current() && this.#drop(undefined);
    this.#armProbe(socket);
  }

  /**
   * Gives the connection up and tries again later.
   * @param {Error | undefined} why a fault worth showing; undefined for an ordinary loss
   */
  #drop(why) {
    this.#disconnect();
    if (why !== undefined) this.trouble = { name: why.name, message: why.message };
    const delay = Math.min(FIRST_DELAY * 2 ** this.#attempt, LONGEST_DELAY);
    this.#attempt++;
    this.#retryTimer = this.#options.clock.after(delay * (1 + JITTER * this.#options.random()), () => this.#connect());
    this.#become("waiting");
  }

  /** @param {{ name: string, message: string }} why */
  #end(why) {
    this.#disconnect();
    this.trouble = { name: why.name, message: why.message };
    this.#become("ended");
  }

  #disconnect() {
    const socket = this.#socket;
    this.#socket = undefined;
    this.#open = false;
    this.#acknowledging = false;
    this.#options.clock.cancel(this.#probeTimer);
    socket?.close();
    const unanswered = [...this.#unansweredRequests.values()];
    this.#unansweredRequests.clear();
    for (const { reject } of unanswered) reject(new ConnectionLost());
  }

  /** @param {Phase} phase */
  #become(phase) {
    this.phase = phase;
    this.#options.changed();
  }

  /** @param {Socket} socket */
  #armProbe(socket) {
    const { clock } = this.#options;
    const check = () => {
      if (socket !== this.#socket) return;
      const quiet = clock.now() - this.#lastHeard;
      if (quiet >= QUIET_BEFORE_PROBE + PROBE_PATIENCE) return this.#drop(undefined);
      if (quiet >= QUIET_BEFORE_PROBE && this.#open) this.#acknowledge(true);
      this.#probeTimer = clock.after(PROBE_PATIENCE, check);
    };
    this.#probeTimer = clock.after(PROBE_PATIENCE, check);
  }

  // -------------------------------------------------------------------------------------------- receiving

  /** @param {unknown} data */
  #receive(data) {
    if (typeof data !== "string") throw new FrameError("expected text frames");
    const message = decode(data);
    if (!isObject(message)) throw new FrameError("a message is an object");
    switch (message.type) {
      case "hello.ok":
        return this.#welcomed(message);
      case "response":
        return this.#answered(message);
      case "session/effect":
        if (this.#concernsUs(message)) this.#pushed(message.effect);
        return;
      case "session/revoked":
        if (this.#concernsUs(message)) this.#revoked(String(message.reason));
        return;
    }
    // A later server may say more; what is not understood changes nothing.
  }

  /** @param {ObjectValue} message */
  #concernsUs({ space, sessionId }) {
    return space === this.#options.space && sessionId === this.#continuity.sessionId;
  }

  /** @param {ObjectValue} message */
  #welcomed({ protocol, sessionOpen }) {
    if (this.#greeted) throw new FrameError("a second hello.ok");
    if (protocol !== PROTOCOL) return this.#end({ name: "UnsupportedProtocol", message: `the server speaks ${String(protocol)}` });
    const { audience, challenge } = isObject(sessionOpen) ? sessionOpen : /** @type {ObjectValue} */ ({});
    const value = isObject(challenge) ? challenge.value : undefined;
    if (typeof audience !== "string" || typeof value !== "string") {
      return this.#end({ name: "ProtocolError", message: "the server's greeting carries no challenge to sign" });
    }
    if (audience !== this.#options.audience) {
      return this.#end({ name: "AudienceMismatch", message: `expected the server ${this.#options.audience}, reached ${audience}` });
    }
    this.#greeted = true;
    void this.#openSession(value);
  }

  /** @param {ObjectValue} message */
  #answered({ requestId, ok, error }) {
    const failure = error === undefined ? undefined : serverError(error);
    if (requestId === "handshake") return this.#end(failure ?? new FrameError("the handshake was answered without an error"));
    // A request the server could not parse is answered without its id; answers come in sending order.
    const id = requestId === "invalid" ? this.#unansweredRequests.keys().next().value : requestId;
    const settle = typeof id === "string" ? this.#unansweredRequests.get(id) : undefined;
    if (settle === undefined) {
      if (failure !== undefined) throw failure;
      return;
    }
    this.#unansweredRequests.delete(/** @type {string} */ (id));
    if (failure !== undefined) {
      settle.reject(failure);
      // The session is no longer this connection's, so nothing else will get through either.
      if (this.#open && (failure.name === "SessionError" || failure.name === "SessionRevokedError")) this.#drop(failure);
    } else if (isObject(ok)) {
      settle.resolve(ok);
    } else {
      throw new FrameError("an answer is either ok or an error");
    }
  }

  /** @param {Value} effect */
  #pushed(effect) {
    const sync = parseSync(effect);
    this.#options.replica.apply(sync);
    this.#mark(sync.caughtUpLocalSeq);
    this.#acknowledge(false);
    this.#options.changed();
  }

  /** @param {string} reason */
  #revoked(reason) {
    const message =
      reason === "taken-over"
        ? "This session was taken over by another tab."
        : reason === "unauthorized"
          ? "Your access to this space was removed."
          : `The server ended this session (${reason}).`;
    this.#end({ name: reason, message });
  }

  /** @param {number | undefined} localSeq */
  #mark(localSeq) {
    if (localSeq === undefined || localSeq <= this.caughtUpLocalSeq) return;
    this.caughtUpLocalSeq = localSeq;
    this.#releaseMarkers();
  }

  #releaseMarkers() {
    const covered = this.#awaitingMarker.filter(({ localSeq }) => localSeq <= this.caughtUpLocalSeq);
    this.#awaitingMarker = this.#awaitingMarker.filter(({ localSeq }) => localSeq > this.caughtUpLocalSeq);
    for (const { resolve } of covered) resolve();
  }

  // ---------------------------------------------------------------------------------------------- opening

  /** @param {string} challenge */
  async #openSession(challenge) {
    const socket = this.#socket;
    const { identity, space, audience, clock, replica, watches } = this.#options;
    const { sessionId, sessionToken } = this.#continuity;
    const resuming = sessionToken !== undefined;
    const session = { sessionId, ...(resuming ? { sessionToken, seenSeq: replica.seq } : {}) };
    try {
      const nowSeconds = Math.floor(clock.now() / 1000);
      const signed = await signSessionOpen({ identity, space, audience, challenge, session, nowSeconds });
      if (socket !== this.#socket) return;
      const answer = await this.#request("session.open", { session, ...signed });
      this.#opened(answer);
      const { sync } = await this.#request("session.watch.set", { watches });
      // Asked for even on a resume: frames written into the dying socket count as delivered at the server
      // (SRV-314), and only a full frame is sure to hold them.
      replica.adopt(parseSync(sync));
      this.#attempt = 0;
      this.trouble = undefined;
      this.#acknowledge(false);
      this.#become("live");
    } catch (error) {
      if (socket === this.#socket) this.#openingFailed(/** @type {Error} */ (error));
    }
  }

  /** @param {ObjectValue} answer */
  #opened({ sessionId, sessionToken, resumed, caughtUpLocalSeq, sync }) {
    if (typeof sessionId !== "string" || typeof sessionToken !== "string") {
      throw new FrameError("session.open answers with a session id and a token");
    }
    this.#remember({ sessionId, sessionToken });
    this.#open = true;
    if (resumed !== true) {
      // The server kept nothing of an earlier session: its markers will never come, and the full frame
      // that follows stands in for them.
      this.caughtUpLocalSeq = 0;
      for (const { resolve } of this.#awaitingMarker.splice(0)) resolve();
    }
    if (typeof caughtUpLocalSeq === "number") this.#mark(caughtUpLocalSeq);
    if (sync !== undefined) {
      const missed = parseSync(sync);
      this.#options.replica.apply(missed);
      this.#mark(missed.caughtUpLocalSeq);
    }
    // Before anything else, and in the order of their making (SRV-316).
    for (const [localSeq, settle] of [...this.#unansweredCommits].sort(([a], [b]) => a - b)) this.#sendCommit(localSeq, settle);
  }

  /**
   * What each answer to an opening makes the client do (SRV-324).
   * @param {Error} error
   */
  #openingFailed(error) {
    if (error.name === "SessionRevokedError") {
      // The token is stale, so this session can't come back: its last answer was lost, or another tab has
      // it. The challenge is spent as well (WIRE-808), so the new session opens on a new connection.
      this.#continuity = this.#fresh();
      return this.#drop(undefined);
    }
    if (error.name === "AuthorizationError" && !(error instanceof ServerError && error.retriable)) return this.#end(error);
    this.#drop(error);
  }

  /** @returns {Continuity} */
  #fresh() {
    // Local seqs go on counting: a commit that is sent again under the new session must not meet another
    // one of its number.
    const continuity = { sessionId: this.#options.newId(), nextLocalSeq: this.#continuity?.nextLocalSeq ?? 1 };
    this.#options.save(continuity);
    return continuity;
  }

  /** @param {Partial<Continuity>} news */
  #remember(news) {
    this.#continuity = { ...this.#continuity, ...news };
    this.#options.save(this.#continuity);
  }

  // ---------------------------------------------------------------------------------------------- sending

  /** @param {ObjectValue} message */
  #send(message) {
    this.#socket?.send(encode(message));
  }

  /**
   * @param {string} type
   * @param {ObjectValue} members
   * @returns {Promise<ObjectValue>}
   */
  #request(type, members) {
    if (this.#socket === undefined || (type !== "session.open" && !this.#open)) return Promise.reject(new ConnectionLost());
    const requestId = `${type}-${++this.#requests}`;
    const { space } = this.#options;
    const whose = type === "session.open" ? {} : { sessionId: this.#continuity.sessionId };
    return new Promise((resolve, reject) => {
      this.#unansweredRequests.set(requestId, { resolve, reject });
      this.#send({ type, requestId, space, ...whose, ...members });
    });
  }

  /**
   * @param {number} localSeq
   * @param {Settle & { commit: ObjectValue }} settle
   */
  #sendCommit(localSeq, { commit, resolve, reject }) {
    this.#request("transact", { commit }).then(
      (verdict) => {
        this.#unansweredCommits.delete(localSeq);
        resolve(verdict);
      },
      (/** @type {Error} */ error) => {
        if (error instanceof ConnectionLost) return; // still unanswered: the next opening sends it again
        this.#unansweredCommits.delete(localSeq);
        reject(error);
      },
    );
  }

  /**
   * Tells the server how far frames were applied (WIRE-761); one at a time, always the newest.
   * @param {boolean} probe send even if there is no news, to hear from the server
   */
  #acknowledge(probe) {
    const seenSeq = this.#options.replica.seq;
    if (!this.#open || this.#acknowledging || (seenSeq === this.#acknowledged && !probe)) return;
    this.#acknowledging = true;
    const over = () => {
      this.#acknowledging = false;
      this.#acknowledge(false);
    };
    this.#acknowledged = seenSeq;
    this.#request("session.ack", { seenSeq }).then(over, (/** @type {Error} */ error) => {
      if (!(error instanceof ConnectionLost)) over();
    });
  }
}

/**
 * @param {Value} error
 * @returns {ServerError}
 */
function serverError(error) {
  if (!isObject(error) || typeof error.name !== "string") throw new FrameError("an error carries a name");
  const { name, message, retriable } = error;
  return new ServerError({ name, message: String(message ?? ""), retriable: retriable === true });
}
