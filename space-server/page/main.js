// Starts the page: reads what the server says about the demo space, finds out who is here, opens the
// session and keeps the views in step with it.

import { Draft } from "./draft.js";
import { Events } from "./events.js";
import { isObject } from "./codec.js";
import { loadIdentity } from "./identity.js";
import { PanelView } from "./panel.js";
import { byId, PollView, setText, tallied } from "./poll.js";
import { Replica, WATERMARK_DOCUMENT } from "./replica.js";
import { Session } from "./session.js";

/** @typedef {import("./wire.js").Demo} Demo */
/** @typedef {import("./wire.js").Scope} Scope */
/** @typedef {import("./wire.js").Watch} Watch */
/** @typedef {import("./session.js").Continuity} Continuity */

/** Whose value each document is: everyone's, one per person, one per session. */
const SCOPES = /** @type {const} */ ({ options: "space", tally: "space", myVote: "user", draft: "session" });
/** How long a reload waits for the page it replaces to let go of the session. */
const PATIENCE_WITH_OTHER_TAB = 1000;
const LONGEST_NAME = 40;

/** @type {import("./wire.js").Clock} */
const clock = {
  now: () => Date.now(),
  after: (milliseconds, run) => setTimeout(run, milliseconds),
  cancel: (timer) => clearTimeout(/** @type {number} */ (timer)),
};

start().catch((error) => {
  byId("link", HTMLElement).dataset.phase = "ended";
  setText(byId("link-text", HTMLElement), `The page could not start. ${error.message}`);
  const again = byId("link-action", HTMLButtonElement);
  setText(again, "Try again");
  again.hidden = false;
  again.addEventListener("click", () => location.reload());
});

async function start() {
  const name = (new URLSearchParams(location.search).get("as") ?? "").trim().slice(0, LONGEST_NAME) || "guest";
  const [demo, identity] = await Promise.all([fetchDemo(), loadIdentity(name)]);
  const kept = continuity(demo.space, identity.did);
  await kept.claim();

  const replica = new Replica();
  let scheduled = false;
  const changed = () => {
    if (scheduled) return;
    scheduled = true;
    // Not an animation frame: those stand still in a tab that is not in front.
    queueMicrotask(() => {
      scheduled = false;
      events.observe();
      draft.observe(textOf(replica.value(demo.docs.draft, SCOPES.draft)));
      render();
    });
  };
  const newId = () => crypto.randomUUID();
  const session = new Session({
    space: demo.space,
    audience: demo.audience,
    url: socketUrl(demo.space),
    identity,
    watches: watchesOf(demo),
    replica,
    clock,
    load: kept.load,
    save: kept.save,
    openSocket: (url) => new WebSocket(url),
    newId,
    random: Math.random,
    changed,
  });
  const events = new Events({ session, replica, streams: demo.streams, clock, newId, changed });
  const draft = new Draft({ fire: (text) => events.fire("type", { text }, false), clock });

  const poll = new PollView({
    choose: (option) => void events.fire("vote", { option }),
    type: (text) => draft.input(text),
    add: (title) => {
      events.fire("addOption", { title });
      draft.input("");
      render();
    },
    dismiss: (eventId) => events.dismiss(eventId),
    reconnect: () => (session.phase === "ended" ? session.startAfresh() : session.retryNow()),
  });
  const panel = new PanelView(demo);

  function render() {
    const { phase, trouble, sessionId } = session;
    const options = replica.value(demo.docs.options, SCOPES.options);
    const tally = replica.value(demo.docs.tally, SCOPES.tally);
    const myVote = replica.value(demo.docs.myVote, SCOPES.myVote);
    const known = replica.row(demo.docs.options, SCOPES.options) !== undefined;
    poll.render({
      options: known ? tallied(options, tally, myVote) : undefined,
      draft: draft.text,
      open: events.open,
      problems: events.problems,
      link: { phase, trouble },
    });
    panel.render({ seq: replica.seq, watermark: replica.watermark(), rows: replica.rows(), sessionId, events: events.open });
  }

  poll.introduce({ name, did: identity.did, next: nextGuest(name) });
  addEventListener("online", () => session.retryNow());
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && session.retryNow());
  session.start();
}

/** @returns {Promise<Demo>} */
async function fetchDemo() {
  const answer = await fetch("/demo.json", { cache: "no-store" });
  if (!answer.ok) throw new Error(`The server has no demo to show (/demo.json answered ${answer.status}).`);
  const demo = await answer.json();
  const { space, piece, audience, docs, streams } = isObject(demo) ? demo : /** @type {any} */ ({});
  for (const [member, value] of Object.entries({ space, piece, audience })) {
    if (typeof value !== "string") throw new Error(`/demo.json: ${member} should be a string.`);
  }
  for (const doc of Object.keys(SCOPES)) {
    if (typeof docs?.[doc] !== "string") throw new Error(`/demo.json: docs.${doc} should be an entity id.`);
  }
  for (const stream of ["addOption", "vote", "type"]) {
    const { id, path } = streams?.[stream] ?? {};
    if (typeof id !== "string" || !Array.isArray(path)) throw new Error(`/demo.json: streams.${stream} should name an id and a path.`);
  }
  return demo;
}

/**
 * The documents to be sent. Scoped ones are asked for by the kind of scope; whose instance that is, the
 * server knows from the session (WIRE-108).
 * @param {Demo} demo
 * @returns {Watch[]}
 */
function watchesOf(demo) {
  /** @type {(id: string, root: string, scope: Scope) => Watch} */
  const watch = (id, root, scope) => ({
    id,
    kind: "graph",
    query: { roots: [{ id: root, scope, selector: { path: [], schema: true } }] },
  });
  const docs = /** @type {(keyof typeof SCOPES)[]} */ (Object.keys(SCOPES));
  return [
    watch("piece", demo.piece, "space"),
    ...docs.map((doc) => watch(doc, demo.docs[doc], SCOPES[doc])),
    watch("watermark", WATERMARK_DOCUMENT, "space"),
  ];
}

/** @param {string} space */
function socketUrl(space) {
  const url = new URL("/api/storage/memory", location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.searchParams.set("space", space);
  return url.href;
}

/**
 * What makes a reload the same session, kept for as long as the tab lives.
 * @param {string} space
 * @param {string} did
 */
function continuity(space, did) {
  const key = `lunch-poll/${space}/${did}`;
  const load = () => {
    const text = sessionStorage.getItem(key);
    return text === null ? undefined : /** @type {Continuity} */ (JSON.parse(text));
  };
  let held = "";
  /**
   * Marks the session as this tab's for as long as the page lives.
   * @param {string} sessionId
   * @param {AbortSignal} [signal] gives up waiting for another tab
   * @returns {Promise<boolean>} is it ours?
   */
  const hold = (sessionId, signal) =>
    new Promise((resolve) => {
      held = sessionId;
      const whileThePageLives = () => new Promise(() => resolve(true));
      navigator.locks.request(`lunch-poll/${sessionId}`, { signal }, whileThePageLives).catch(() => resolve(false));
    });
  return {
    load,
    /** @param {Continuity} continuity */
    save: (continuity) => {
      sessionStorage.setItem(key, JSON.stringify(continuity));
      if (continuity.sessionId !== held) void hold(continuity.sessionId);
    },
    /**
     * A duplicated tab starts with a copy of the storage. Two tabs must not be one session, so the copy
     * gives way: whoever holds the lock keeps the session, the other begins a new one.
     */
    claim: async () => {
      const kept = load();
      if (kept === undefined) return;
      const patience = new AbortController();
      setTimeout(() => patience.abort(), PATIENCE_WITH_OTHER_TAB);
      if (!(await hold(kept.sessionId, patience.signal))) sessionStorage.removeItem(key);
    },
  };
}

/** @param {import("./wire.js").Value} value */
function textOf(value) {
  return typeof value === "string" ? value : "";
}

/**
 * A name for the next person at the same browser: guest, guest-2, guest-3…
 * @param {string} name
 */
function nextGuest(name) {
  const number = /^guest(?:-(\d+))?$/.exec(name);
  return number === null ? "guest" : `guest-${Number(number[1] ?? 1) + 1}`;
}
