// Events from the click to the outcome (WIRE-911, RUN-75 to RUN-79, SS-587), and the draft that rides on them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Draft, PAUSE } from "../draft.js";
import { Events } from "../events.js";
import { streamSidecarId } from "../hash.js";
import { row, scripted, settle } from "./scripted.js";

const STREAMS = {
  addOption: { id: "of:poll", path: ["addOption"], scope: "space" },
  vote: { id: "of:poll", path: ["vote"], scope: "space" },
  type: { id: "of:poll", path: ["type"], scope: "session" },
};
const VOTE = streamSidecarId(STREAMS.vote);
const WATERMARK = "of:server-execution-watermark";

async function poll() {
  const base = scripted();
  let ids = 0;
  const events = new Events({
    ...base,
    streams: STREAMS,
    newId: () => `evt-${++ids}`,
    changed: () => base.kept.changed?.(),
  });
  base.kept.changed = () => events.observe();
  const [socket] = base.sockets;
  await socket.live();
  return { ...base, events, socket };
}

/** Accepts the commit and says what the server would say until its handler has run. */
async function accept(socket, request, seq, { watermark = seq } = {}) {
  await socket.answer(request, { seq, branch: "", revisions: [] });
  await socket.push({ toSeq: seq, caughtUpLocalSeq: request.commit.localSeq, upserts: [] });
  await settled(socket, watermark);
}

async function settled(socket, watermark) {
  await socket.push({ toSeq: watermark + 1, upserts: [row(WATERMARK, watermark + 1, { seq: watermark }, { coverClass: "derived" })] });
}

/** The next message that is not an acknowledgement. */
async function nextOf(socket, type) {
  for (;;) {
    try {
      return await socket.next(type);
    } catch (error) {
      if (!/found fvj1:.*"session\.ack"/.test(error.message)) throw error;
    }
  }
}

async function outcome(socket, entry) {
  const query = await nextOf(socket, "graph.query");
  assert.deepEqual(query.query, { roots: [{ id: VOTE, selector: { path: [] } }] });
  await socket.answer(query, { serverSeq: 9, entities: [{ branch: "", id: VOTE, seq: 9, document: { value: { entries: [entry] } } }] });
}

test("wire_911 a click is one declared append to the stream's sidecar and nothing else", async () => {
  const { events, socket } = await poll();
  const event = events.fire("vote", { option: "Ramen" });
  assert.equal(event.phase, "sending");
  const { commit } = await socket.next("transact");
  const entry = { eventId: "evt-1", stream: STREAMS.vote, payload: { option: "Ramen" } };
  assert.deepEqual(commit, {
    localSeq: 1,
    reads: { confirmed: [], pending: [] },
    operations: [{ op: "patch", id: VOTE, patches: [{ op: "append", path: "/value/entries", values: [entry] }] }],
    eventAppends: [{ id: VOTE, eventId: "evt-1" }],
  });
});

test("wire_206 a session-scoped stream has its own sidecar in the space scope", async () => {
  const { events, socket } = await poll();
  events.fire("type", { text: "Ra" }, false);
  const { operations, eventAppends } = (await socket.next("transact")).commit;
  assert.equal(operations[0].id, streamSidecarId(STREAMS.type));
  assert.equal(operations[0].scope, undefined);
  assert.equal(eventAppends[0].scope, undefined);
  assert.notEqual(operations[0].id, streamSidecarId({ ...STREAMS.type, scope: "space" }));
});

test("ss_587 an event is over when the watermark passed it and its entry says it went well", async () => {
  const { events, socket } = await poll();
  const event = events.fire("vote", { option: "Ramen" });
  const request = await socket.next("transact");
  await socket.answer(request, { seq: 5, branch: "", revisions: [] });
  assert.equal(event.phase, "accepted");
  await settled(socket, 5);
  assert.equal(event.asking, false, "the watermark passed, but the received documents do not reflect the commit yet");
  await socket.push({ toSeq: 6, caughtUpLocalSeq: 1, upserts: [] });
  await outcome(socket, { eventId: "evt-1", seq: 5, consequenced: true });
  assert.equal(event.phase, "settled");
  assert.deepEqual([events.open.length, events.problems.length], [0, 0]);
});

test("ss_587 an event waits for the watermark", async () => {
  const { events, socket } = await poll();
  const event = events.fire("type", { text: "Ra" }, false);
  await accept(socket, await socket.next("transact"), 5, { watermark: 4 });
  assert.equal(event.phase, "accepted");
  await settled(socket, 5);
  assert.equal(event.phase, "settled", "and an event nobody waits for asks no question");
});

test("ss_817 a handler that failed or never ran is a problem until it is dismissed", async () => {
  const { events, socket } = await poll();
  for (const [fate, name, message] of [
    [{ error: "no such option" }, "HandlerError", "no such option"],
    [{ status: "dropped", reason: "no runnable handler" }, "EventDropped", "no runnable handler"],
  ]) {
    const event = events.fire("vote", { option: "Nowhere" });
    await accept(socket, await nextOf(socket, "transact"), 5);
    await outcome(socket, { eventId: event.eventId, seq: 5, consequenced: true, ...fate });
    assert.equal(event.phase, "failed");
    assert.deepEqual(event.trouble, { name, message });
    assert.deepEqual(events.problems, [event]);
    events.dismiss(event.eventId);
    assert.deepEqual(events.problems, []);
  }
});

test("run_79 a refusal that sending again cannot change is shown and not repeated", async () => {
  const { events, clock, socket } = await poll();
  for (const name of ["ProtocolError", "RowLabelCommitError", "PreconditionFailedError", "AuthorizationError"]) {
    const event = events.fire("vote", { option: "Ramen" });
    await socket.refuse(await socket.next("transact"), { name, message: "no" });
    assert.equal(event.phase, "refused");
    assert.deepEqual(event.trouble, { name, message: "no" });
    await clock.advance(15_000);
    await socket.nothingMore();
  }
  assert.equal(events.problems.length, 4);
});

test("run_79 anything else is tried again after 250 ms, 500 ms and so on, as the same event", async () => {
  const { events, clock, socket } = await poll();
  const event = events.fire("vote", { option: "Ramen" });
  let request = await socket.next("transact");
  for (const delay of [250, 500, 1000]) {
    await socket.refuse(request, { name: "TransactionError", message: "busy" });
    assert.deepEqual(event.trouble, { name: "TransactionError", message: "busy" });
    await clock.advance(delay - 1);
    await socket.nothingMore();
    await clock.advance(1);
    const again = await socket.next("transact");
    assert.deepEqual(again.commit.operations, request.commit.operations);
    assert.ok(again.commit.localSeq > request.commit.localSeq, "under a local seq of its own");
    request = again;
  }
  await accept(socket, request, 8);
  await outcome(socket, { eventId: "evt-1", seq: 8, consequenced: true });
  assert.equal(event.phase, "settled");
});

test("run_79 a duplicate counts as delivered and is over when its entry's seq is settled", async () => {
  const { events, socket } = await poll();
  const event = events.fire("vote", { option: "Ramen" });
  await socket.refuse(await socket.next("transact"), { name: "EventAppendDuplicateError", message: "seen" });
  assert.equal(event.phase, "accepted");
  await outcome(socket, { eventId: "evt-1", seq: 5 });
  assert.equal(event.phase, "accepted");
  await settled(socket, 5);
  await outcome(socket, { eventId: "evt-1", seq: 5, consequenced: true });
  assert.equal(event.phase, "settled");
});

test("run_77 events go out one at a time, in the order they were fired", async () => {
  const { events, socket } = await poll();
  const fired = ["a", "b", "c"].map((option) => events.fire("vote", { option }));
  for (const [index, event] of fired.entries()) {
    const request = await nextOf(socket, "transact");
    assert.equal(request.commit.eventAppends[0].eventId, event.eventId);
    assert.deepEqual(fired.slice(index + 1).map(({ phase }) => phase), fired.slice(index + 1).map(() => "queued"));
    await socket.nothingMore();
    await socket.answer(request, { seq: index + 1, branch: "", revisions: [] });
  }
});

test("f4 an event whose answer was lost is sent again as it was and happens once", async () => {
  const { events, clock, sockets, socket } = await poll();
  const event = events.fire("vote", { option: "Ramen" });
  const first = await socket.next("transact");
  const second = events.fire("vote", { option: "Soup" });
  await socket.lose();
  await clock.advance(25);
  const { resent } = await sockets[1].live({ resumed: true });
  assert.deepEqual(resent.map(({ commit }) => commit), [first.commit]);
  assert.equal(second.phase, "queued");
  await accept(sockets[1], resent[0], 3);
  assert.equal((await nextOf(sockets[1], "transact")).commit.eventAppends[0].eventId, second.eventId);
  await outcome(sockets[1], { eventId: event.eventId, seq: 3, consequenced: true });
  assert.equal(event.phase, "settled");
});

test("an outcome that the connection lost is asked for again", async () => {
  const { events, clock, sockets, socket } = await poll();
  const event = events.fire("vote", { option: "Ramen" });
  await accept(socket, await socket.next("transact"), 3);
  await nextOf(socket, "graph.query");
  await socket.lose();
  assert.equal(event.phase, "accepted");
  await clock.advance(25);
  await sockets[1].live({ resumed: true, seq: 4, upserts: [row(WATERMARK, 4, { seq: 3 })] });
  await outcome(sockets[1], { eventId: "evt-1", seq: 3, error: "late word" });
  assert.deepEqual(event.trouble, { name: "HandlerError", message: "late word" });
});

// ------------------------------------------------------------------------------------------------- draft

async function typing() {
  const base = await poll();
  const draft = new Draft({ fire: (text) => base.events.fire("type", { text }, false), clock: base.clock });
  let received = "";
  let scheduled = false;
  base.kept.changed = () => {
    if (scheduled) return;
    scheduled = true;
    queueMicrotask(() => {
      scheduled = false;
      base.events.observe();
      draft.observe(received);
    });
  };
  const receive = (text) => {
    received = text;
    draft.observe(text);
  };
  const sent = async () => (await nextOf(base.socket, "transact")).commit;
  const textOf = (commit) => commit.operations[0].patches[0].values[0].payload.text;
  return { ...base, draft, receive, sent, textOf };
}

test("typing is sent when it pauses, not per key", async () => {
  const { draft, clock, socket, sent, textOf } = await typing();
  await socket.nothingMore();
  for (const text of ["R", "Ra", "Ram"]) {
    draft.input(text);
    await clock.advance(PAUSE - 1);
  }
  await socket.nothingMore();
  await clock.advance(1);
  assert.equal(textOf(await sent()), "Ram");
  await socket.nothingMore();
});

test("a draft of this session fills an untouched field, as after a reload", async () => {
  const { draft, receive } = await typing();
  receive("half a wo");
  assert.equal(draft.text, "half a wo");
});

test("an older draft does not overwrite what is being typed; the settled one is the truth", async () => {
  const { draft, clock, socket, receive } = await typing();
  draft.input("Ramen");
  receive("Ra");
  assert.equal(draft.text, "Ramen");
  await clock.advance(PAUSE);
  const request = await nextOf(socket, "transact");
  receive("Ram");
  assert.equal(draft.text, "Ramen");
  receive("RAMEN");
  assert.equal(draft.text, "Ramen", "not settled yet");
  await accept(socket, request, 4);
  assert.equal(draft.text, "RAMEN", "the handler made this of it");
});

test("the newest text follows when the one before it was taken", async () => {
  const { draft, clock, socket, sent, textOf } = await typing();
  draft.input("R");
  await clock.advance(PAUSE);
  const first = await nextOf(socket, "transact");
  draft.input("Ra");
  await clock.advance(PAUSE);
  draft.input("Ram");
  await clock.advance(PAUSE);
  await socket.nothingMore();
  await accept(socket, first, 2);
  assert.equal(textOf(await sent()), "Ram");
});

test("clearing a field that the server knows to be empty sends nothing", async () => {
  const { draft, clock, socket, receive } = await typing();
  receive("");
  draft.input("x");
  draft.input("");
  await clock.advance(PAUSE);
  await settle();
  await socket.nothingMore();
  receive("from elsewhere");
  assert.equal(draft.text, "from elsewhere");
});

test("a draft that was refused stays in the field and goes out again with the next change", async () => {
  const { draft, clock, socket, receive, sent, textOf } = await typing();
  draft.input("Ramen");
  await clock.advance(PAUSE);
  await socket.refuse(await nextOf(socket, "transact"), { name: "ProtocolError", message: "no" });
  receive("");
  await clock.advance(1000);
  assert.equal(draft.text, "Ramen");
  await socket.nothingMore();
  draft.input("Ramen!");
  await clock.advance(PAUSE);
  assert.equal(textOf(await sent()), "Ramen!");
});
