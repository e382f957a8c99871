// The session's state machine against a scripted server (WIRE-711 to WIRE-781, SRV-314 to SRV-324).

import assert from "node:assert/strict";
import { test } from "node:test";
import { alice, AUDIENCE, row, scripted, settle, SPACE, WATCHES } from "./scripted.js";
import { isSigned } from "./people.js";

const COMMIT = { operations: [{ op: "set", id: "of:a", value: { value: 1 } }] };
const verdict = (seq) => ({ seq, branch: "", revisions: [] });

test("wire_712 the hello asks for no schema tables and keeps the default regime", async () => {
  const { sockets } = scripted();
  const { protocol, flags } = await sockets[0].greet();
  assert.equal(protocol, "memory");
  assert.equal(flags.syncSchemaTableV2, undefined);
  assert.equal(flags.modernCellRep, false);
  assert.equal(flags.verdictCatchUpMarkers, true);
});

test("wire_801 the opening is signed over exactly what is sent, for this space, server and challenge", async () => {
  const { sockets } = scripted();
  await sockets[0].greet("the challenge");
  const { space, session, invocation, authorization } = await sockets[0].next("session.open");
  assert.equal(space, SPACE);
  assert.deepEqual(session, { sessionId: "s-1" });
  assert.deepEqual(invocation.args, { protocol: "memory", session });
  assert.equal(invocation.iss, alice.did);
  assert.equal(invocation.sub, SPACE);
  assert.equal(invocation.aud, AUDIENCE);
  assert.equal(invocation.challenge, "the challenge");
  assert.equal(invocation.exp - invocation.iat, 300);
  assert.ok(isSigned(invocation, authorization.signature));
});

test("wire_751 the session is live when the watched documents have arrived, and not before", async () => {
  const { session, replica, sockets } = scripted();
  assert.equal(session.phase, "connecting");
  const { watch } = await sockets[0].live({ seq: 3, upserts: [row("of:a", 3, "hello")] });
  assert.deepEqual(watch.watches, WATCHES);
  assert.equal(watch.sessionId, "s-1");
  assert.equal(session.phase, "live");
  assert.equal(replica.value("of:a", "space"), "hello");
});

test("wire_753 pushed frames are applied and acknowledged, one acknowledgement at a time", async () => {
  const { replica, sockets } = scripted();
  await sockets[0].live({ seq: 1 });
  const first = await sockets[0].next("session.ack");
  assert.equal(first.seenSeq, 1);
  await sockets[0].push({ toSeq: 2, upserts: [row("of:a", 2, "two")] });
  await sockets[0].push({ toSeq: 3, upserts: [row("of:a", 3, "three")] });
  assert.equal(replica.value("of:a", "space"), "three");
  await sockets[0].nothingMore();
  await sockets[0].answer(first, { serverSeq: 3 });
  assert.equal((await sockets[0].next("session.ack")).seenSeq, 3);
  await sockets[0].nothingMore();
});

test("wire_753 a frame of another session or space changes nothing", async () => {
  const { replica, sockets } = scripted();
  await sockets[0].live({ seq: 1 });
  await sockets[0].push({ toSeq: 2, upserts: [row("of:a", 2, "not ours")] }, "another");
  assert.equal(replica.value("of:a", "space"), undefined);
});

test("wire_754 a commit is caught up with when its marker comes, not when its verdict does", async () => {
  const { session, sockets } = scripted();
  await sockets[0].live();
  const committed = session.transact(COMMIT);
  const request = await sockets[0].next("transact");
  assert.deepEqual(request.commit.reads, { confirmed: [], pending: [] });
  await sockets[0].answer(request, verdict(4));
  const { seq, localSeq } = await committed;
  assert.deepEqual({ seq, localSeq }, { seq: 4, localSeq: 1 });
  let caughtUp = false;
  void session.caughtUpWith(localSeq).then(() => (caughtUp = true));
  await sockets[0].push({ toSeq: 4, upserts: [] });
  assert.equal(caughtUp, false);
  await sockets[0].push({ toSeq: 4, caughtUpLocalSeq: 1, upserts: [] });
  assert.equal(caughtUp, true);
  await sockets[0].push({ toSeq: 5, caughtUpLocalSeq: 0, upserts: [] });
  assert.equal(session.caughtUpLocalSeq, 1, "markers never go back");
});

test("wire_721 a lost connection is resumed with the token, and commits without a verdict go out again as they were", async () => {
  const { session, replica, clock, sockets } = scripted();
  await sockets[0].live({ seq: 7, upserts: [row("of:a", 7, "seven")] });
  await sockets[0].next("session.ack");
  const answers = [session.transact(COMMIT), session.transact({ ...COMMIT, codeCID: "second" })];
  const sent = [await sockets[0].next("transact"), await sockets[0].next("transact")];
  await sockets[0].lose();
  assert.equal(session.phase, "waiting");
  const whileAway = session.transact({ ...COMMIT, codeCID: "third" });
  await clock.advance(25);
  assert.equal(sockets.length, 2);

  const { opening, resent } = await sockets[1].live({ token: "t-2", resumed: true, seq: 9, upserts: [row("of:a", 9, "nine")] });
  assert.deepEqual(opening.session, { sessionId: "s-1", sessionToken: "t-1", seenSeq: 7 });
  assert.deepEqual(resent.map(({ commit }) => commit.localSeq), [1, 2, 3], "in the order of their making, before the watches");
  assert.deepEqual(resent[0].commit, sent[0].commit);
  assert.deepEqual(resent[1].commit, sent[1].commit);
  assert.equal(session.phase, "live");
  assert.equal(replica.value("of:a", "space"), "nine");

  await sockets[1].answer(resent[0], { ...verdict(8), replayed: true });
  await sockets[1].answer(resent[1], verdict(9));
  await sockets[1].answer(resent[2], verdict(10));
  assert.deepEqual((await Promise.all([...answers, whileAway])).map(({ seq }) => seq), [8, 9, 10]);
});

test("wire_723 what a resume brings is applied before the watches are answered", async () => {
  const { session, replica, clock, sockets } = scripted();
  await sockets[0].live({ seq: 1, upserts: [row("of:a", 1, "one")] });
  await sockets[0].lose();
  await clock.advance(25);
  await sockets[1].greet();
  const opening = await sockets[1].next("session.open");
  const sync = { type: "sync", fromSeq: 1, toSeq: 2, caughtUpLocalSeq: 5, upserts: [row("of:a", 2, "two")], removes: [] };
  await sockets[1].answer(opening, { sessionId: "s-1", sessionToken: "t-2", serverSeq: 2, resumed: true, sync });
  assert.equal(replica.value("of:a", "space"), "two");
  assert.equal(session.caughtUpLocalSeq, 5);
  assert.equal(session.phase, "connecting");
});

test("f6 a server that forgot the session gets every commit once more, and markers start anew", async () => {
  const { session, clock, sockets } = scripted();
  await sockets[0].live({ seq: 1 });
  const accepted = session.transact(COMMIT);
  await sockets[0].next("session.ack");
  await sockets[0].answer(await sockets[0].next("transact"), verdict(2));
  const { localSeq } = await accepted;
  let released = false;
  void session.caughtUpWith(localSeq).then(() => (released = true));
  await settle();
  assert.equal(released, false);
  const unanswered = session.transact(COMMIT);
  await sockets[0].lose();
  await clock.advance(25);
  const { resent } = await sockets[1].live({ token: "t-2", seq: 2 });
  assert.equal(released, true, "the marker of a forgotten session never comes; the full frame stands in for it");
  assert.deepEqual(resent.map(({ commit }) => commit.localSeq), [2]);
  await sockets[1].answer(resent[0], verdict(3));
  assert.equal((await unanswered).seq, 3);
});

test("wire_731 local seqs are never used twice, not even over a reload", async () => {
  const kept = {};
  const before = scripted(kept);
  await before.sockets[0].live();
  void before.session.transact(COMMIT);
  void before.session.transact(COMMIT);
  await settle();
  const after = scripted(kept);
  const { opening } = await after.sockets[0].live({ resumed: true });
  assert.equal(opening.session.sessionToken, "t-1");
  assert.equal(opening.session.seenSeq, 0, "a reloaded page holds nothing");
  void after.session.transact(COMMIT);
  assert.equal((await after.sockets[0].next("transact")).commit.localSeq, 3);
});

test("srv_108 attempts are spaced 25 ms times powers of two, up to 30 s, and start over once live", async () => {
  const { session, clock, sockets } = scripted();
  for (const delay of [25, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]) {
    const attempts = sockets.length;
    await sockets.at(-1).lose();
    await clock.advance(delay - 1);
    assert.equal(sockets.length, attempts, `not before ${delay} ms`);
    await clock.advance(1);
    assert.equal(sockets.length, attempts + 1, `after ${delay} ms`);
  }
  await sockets.at(-1).live();
  assert.equal(session.trouble, undefined);
  const attempts = sockets.length;
  await sockets.at(-1).lose();
  await clock.advance(25);
  assert.equal(sockets.length, attempts + 1);
});

test("a person can ask for the next attempt at once", async () => {
  const { session, sockets } = scripted();
  await sockets[0].lose();
  session.retryNow();
  assert.equal(sockets.length, 2);
  session.retryNow();
  assert.equal(sockets.length, 2, "not while an attempt is under way");
});

test("srv_324 a retriable refusal reconnects, any other authorization error ends the session in words", async () => {
  const { session, clock, sockets } = scripted();
  await sockets[0].greet();
  await sockets[0].refuse(await sockets[0].next("session.open"), {
    name: "AuthorizationError",
    message: "memory session.open challenge expired",
    retriable: true,
  });
  assert.equal(session.phase, "waiting");
  assert.ok(sockets[0].closed);
  await clock.advance(25);
  await sockets[1].greet();
  await sockets[1].refuse(await sockets[1].next("session.open"), {
    name: "AuthorizationError",
    message: `Principal ${alice.did} lacks READ on space ${SPACE}`,
  });
  assert.equal(session.phase, "ended");
  assert.equal(session.trouble.name, "AuthorizationError");
  await clock.advance(60_000);
  assert.equal(sockets.length, 2, "no more attempts");
});

test("srv_308 a stale token starts a new session on a new connection and takes the unanswered commits along", async () => {
  const { session, clock, sockets, kept } = scripted();
  await sockets[0].live();
  const committed = session.transact(COMMIT);
  await sockets[0].lose();
  await clock.advance(25);
  await sockets[1].greet();
  await sockets[1].refuse(await sockets[1].next("session.open"), {
    name: "SessionRevokedError",
    message: "session s-1 resume token is no longer valid",
  });
  assert.equal(session.sessionId, "s-2");
  await clock.advance(50);
  const { opening, resent } = await sockets[2].live({ sessionId: "s-2", token: "t-9" });
  assert.deepEqual(opening.session, { sessionId: "s-2" });
  assert.deepEqual(resent.map(({ commit }) => commit.localSeq), [1]);
  await sockets[2].answer(resent[0], verdict(1));
  assert.equal((await committed).seq, 1);
  assert.equal(kept.continuity.sessionToken, "t-9");
});

test("wire_762 a session taken over ends here and goes on afresh only when asked", async () => {
  const { session, clock, sockets } = scripted();
  await sockets[0].live();
  await sockets[0].say({ type: "session/revoked", space: SPACE, sessionId: "s-1", reason: "taken-over" });
  assert.equal(session.phase, "ended");
  assert.match(session.trouble.message, /taken over/);
  await clock.advance(60_000);
  assert.equal(sockets.length, 1);
  session.startAfresh();
  const { opening } = await sockets[1].live({ sessionId: "s-2" });
  assert.deepEqual(opening.session, { sessionId: "s-2" });
  assert.equal(session.phase, "live");
});

test("wire_763 a session that is not this connection's any more is opened again", async () => {
  const { session, clock, sockets } = scripted();
  await sockets[0].live();
  const rejected = assert.rejects(session.transact(COMMIT), { name: "SessionError" });
  await sockets[0].refuse(await sockets[0].next("transact"), {
    name: "SessionError",
    message: "Session is not open on this connection",
  });
  await rejected;
  assert.equal(session.phase, "waiting");
  await clock.advance(25);
  await sockets[1].live({ resumed: true });
  assert.equal(session.phase, "live");
});

test("wire_734 a refused commit is rejected with the server's name and message", async () => {
  const { session, sockets } = scripted();
  await sockets[0].live();
  const rejected = assert.rejects(session.transact(COMMIT), { name: "ProtocolError", message: "no such thing" });
  await sockets[0].refuse(await sockets[0].next("transact"), { name: "ProtocolError", message: "no such thing" });
  await rejected;
  assert.equal(session.unanswered, 0);
  assert.equal(session.phase, "live");
});

test("wire_704 an answer without the request's id is the oldest request's", async () => {
  const { session, sockets } = scripted();
  await sockets[0].live();
  const rejected = assert.rejects(session.transact(COMMIT), { name: "InvalidMessageError" });
  const second = session.transact(COMMIT);
  await sockets[0].next("transact");
  const answerable = await sockets[0].next("transact");
  await sockets[0].refuse({ requestId: "invalid" }, { name: "InvalidMessageError", message: "Unable to parse memory message" });
  await rejected;
  await sockets[0].answer(answerable, verdict(1));
  assert.equal((await second).seq, 1);
});

test("wire_711 a refused hello, a foreign server and a missing challenge end the session", async () => {
  const refused = scripted();
  refused.sockets[0].onopen({});
  await refused.sockets[0].say({ type: "response", requestId: "handshake", error: { name: "UnsupportedProtocol", message: "Unsupported protocol: memory" } });
  assert.equal(refused.session.phase, "ended");

  const foreign = scripted();
  await foreign.sockets[0].greet("c", "did:key:zSomebodyElse");
  assert.equal(foreign.session.phase, "ended");
  assert.equal(foreign.session.trouble.name, "AudienceMismatch");
  await foreign.sockets[0].nothingMore();

  const bare = scripted();
  bare.sockets[0].onopen({});
  await bare.sockets[0].next("hello");
  await bare.sockets[0].say({ type: "hello.ok", protocol: "memory", flags: {} });
  assert.equal(bare.session.phase, "ended");
});

test("a frame that cannot be read is not applied, is shown, and the connection is made anew", async () => {
  const bad = { toSeq: 2, schemaTable: { h: true }, upserts: [row("of:a", 2, "compressed")] };
  for (const poison of [(socket) => socket.push(bad), (socket) => socket.sayText("{}"), (socket) => socket.sayText("fvj1:{")]) {
    const { session, replica, clock, sockets } = scripted();
    await sockets[0].live({ seq: 1, upserts: [row("of:a", 1, "kept")] });
    await poison(sockets[0]);
    assert.equal(replica.value("of:a", "space"), "kept");
    assert.equal(session.phase, "waiting");
    assert.notEqual(session.trouble, undefined);
    assert.ok(sockets[0].closed);
    await clock.advance(25);
    await sockets[1].live({ resumed: true });
    assert.equal(session.trouble, undefined);
  }
});

test("f7 a connection that went silent is probed and then given up", async () => {
  const { session, clock, sockets } = scripted();
  await sockets[0].live();
  await clock.advance(20_000);
  const probe = await sockets[0].next("session.ack");
  await sockets[0].answer(probe, { serverSeq: 0 });
  await clock.advance(20_000);
  await sockets[0].next("session.ack");
  assert.equal(session.phase, "live");
  await clock.advance(10_000);
  assert.ok(sockets[0].closed, "no answer in ten seconds");
  assert.notEqual(session.phase, "live");
});

test("words of a connection that was given up are not heard", async () => {
  const { session, replica, clock, sockets } = scripted();
  await sockets[0].live({ seq: 1, upserts: [row("of:a", 1, "kept")] });
  await sockets[0].lose();
  await sockets[0].push({ toSeq: 9, upserts: [row("of:a", 9, "late")] });
  assert.equal(replica.value("of:a", "space"), "kept");
  await clock.advance(25);
  await sockets[0].lose();
  assert.equal(session.phase, "connecting", "nor is its end");
  assert.equal(sockets.length, 2);
});
