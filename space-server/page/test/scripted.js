// A scripted other end for the session: sockets whose frames the test reads and writes by hand, and a clock
// that stands still until it is told to move.

import assert from "node:assert/strict";
import { decode, encode } from "../codec.js";
import { Replica } from "../replica.js";
import { Session } from "../session.js";
import { fromPassphrase } from "./people.js";

export const SPACE = "did:key:z6Mkevtpi4saGgBjBVP6k8nqvk8tZKa7a3VSSYEC3Aom5tyH";
export const AUDIENCE = "did:key:z6MkvdgR5HbDqVvPcxewMHdAMC6yoB3uUAVBioskPoRxqeq3";
export const WATCHES = [{ id: "w", kind: "graph", query: { roots: [{ id: "of:a", selector: { path: [], schema: true } }] } }];
export const alice = fromPassphrase("alice");

/** Lets every promise that can settle do so. */
export const settle = () => new Promise((resolve) => setImmediate(resolve));

export class StillClock {
  #now = 1_800_000_000_000;
  #timers = [];

  now = () => this.#now;
  after = (milliseconds, run) => {
    const timer = { at: this.#now + milliseconds, run };
    this.#timers.push(timer);
    return timer;
  };
  cancel = (timer) => {
    this.#timers = this.#timers.filter((other) => other !== timer);
  };

  async advance(milliseconds) {
    const until = this.#now + milliseconds;
    for (;;) {
      const due = this.#timers.filter(({ at }) => at <= until).sort((a, b) => a.at - b.at)[0];
      if (due === undefined) break;
      this.cancel(due);
      this.#now = due.at;
      due.run();
      await settle();
    }
    this.#now = until;
  }
}

export class ScriptedSocket {
  closed = false;
  #sent = [];

  constructor(url) {
    this.url = url;
  }

  send(text) {
    assert.ok(!this.closed, "nothing may be sent on a closed socket");
    this.#sent.push(decode(text));
  }

  close() {
    this.closed = true;
  }

  /** The oldest message that was not looked at yet; it must be of that type. */
  async next(type) {
    await settle();
    const message = this.#sent.shift();
    assert.equal(message?.type, type, `expected ${type}, found ${message && encode(message)}`);
    return message;
  }

  async nothingMore() {
    await settle();
    assert.deepEqual(this.#sent.map(({ type }) => type), []);
  }

  async say(message) {
    await this.sayText(encode(message));
  }

  async sayText(text) {
    this.onmessage({ data: text });
    await settle();
  }

  async answer({ requestId }, ok) {
    await this.say({ type: "response", requestId, ok });
  }

  async refuse({ requestId }, error) {
    await this.say({ type: "response", requestId, error });
  }

  async push(effect, sessionId = "s-1") {
    await this.say({ type: "session/effect", space: SPACE, sessionId, effect: { type: "sync", fromSeq: 0, removes: [], ...effect } });
  }

  /** The connection dies without a word. */
  async lose() {
    this.onclose({});
    await settle();
  }

  /** hello and its answer. */
  async greet(challenge = "c0", audience = AUDIENCE) {
    this.onopen({});
    const hello = await this.next("hello");
    await this.say({ type: "hello.ok", protocol: "memory", flags: {}, sessionOpen: { audience, challenge: { value: challenge, expiresAt: 1_800_000_300 } } });
    return hello;
  }

  /** Everything up to a live session; returns the opening and the watch request. */
  async live({ token = "t-1", resumed = false, seq = 0, upserts = [], sessionId = "s-1", opened = {} } = {}) {
    await this.greet();
    const opening = await this.next("session.open");
    await this.answer(opening, {
      sessionId,
      sessionToken: token,
      serverSeq: seq,
      caughtUpLocalSeq: 0,
      ...(resumed ? { resumed: true } : {}),
      sessionOpen: { audience: AUDIENCE, challenge: { value: "c1", expiresAt: 1_800_000_300 } },
      ...opened,
    });
    const resent = [];
    let message = await this.#take();
    for (; message?.type === "transact"; message = await this.#take()) resent.push(message);
    assert.equal(message?.type, "session.watch.set");
    await this.answer(message, { serverSeq: seq, sync: { type: "sync", fromSeq: 0, toSeq: seq, upserts, removes: [] } });
    return { opening, resent, watch: message };
  }

  async #take() {
    await settle();
    return this.#sent.shift();
  }
}

/** A session with everything scripted. `kept` is what a browser tab would keep. */
export function scripted(kept = {}) {
  const sockets = [];
  const clock = new StillClock();
  const replica = new Replica();
  let ids = 0;
  const session = new Session({
    space: SPACE,
    audience: AUDIENCE,
    url: "ws://test/api/storage/memory",
    identity: alice,
    watches: WATCHES,
    replica,
    clock,
    load: () => kept.continuity,
    save: (continuity) => (kept.continuity = continuity),
    openSocket: (url) => {
      sockets.push(new ScriptedSocket(url));
      return sockets.at(-1);
    },
    newId: () => `s-${++ids}`,
    random: () => 0,
    changed: () => kept.changed?.(),
  });
  session.start();
  return { session, replica, clock, sockets, kept };
}

/** An upsert of a space document. */
export const row = (id, seq, value, more = {}) => ({ branch: "", id, scope: "space", seq, doc: { value }, ...more });
