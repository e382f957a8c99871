// Rows and frames (WIRE-752, RUN-50 to RUN-52).

import assert from "node:assert/strict";
import { test } from "node:test";
import { decode } from "../codec.js";
import { FrameError, parseSync, Replica } from "../replica.js";
import { row } from "./scripted.js";
import { vectors } from "./vectors.js";

const frame = (toSeq, upserts, removes = []) => parseSync({ type: "sync", fromSeq: 0, toSeq, upserts, removes });

test("wire_752 every sync frame of the transcripts that is not compressed is understood", () => {
  let count = 0;
  for (const { line, kind, dir, note, text } of vectors("wire-frames.jsonl")) {
    if (kind !== "frame" || dir !== "s2c" || note === "not a value text") continue;
    const message = decode(text);
    const sync = message.effect ?? message.ok?.sync;
    if (sync === undefined) continue;
    if (sync.schemaTable === undefined) assert.equal(parseSync(sync).toSeq, sync.toSeq, `line ${line}`);
    else assert.throws(() => parseSync(sync), FrameError, `line ${line}`);
    count++;
  }
  assert.ok(count > 10, `${count} frames`);
});

test("run_51 an overtaken upsert is ignored, an equal seq replaces and keeps the class it has", () => {
  const replica = new Replica();
  replica.apply(frame(5, [row("of:a", 5, "five", { coverClass: "derived" })]));
  replica.apply(frame(6, [row("of:a", 4, "four")]));
  assert.equal(replica.value("of:a", "space"), "five");
  replica.apply(frame(6, [row("of:a", 5, "again")]));
  assert.equal(replica.value("of:a", "space"), "again");
  assert.equal(replica.row("of:a", "space").coverClass, "derived");
  replica.apply(frame(7, [row("of:a", 7, "seven")]));
  assert.equal(replica.row("of:a", "space").coverClass, undefined);
  assert.equal(replica.seq, 7);
});

test("wire_752 a tombstone stays a row, a remove takes the row away", () => {
  const replica = new Replica();
  replica.apply(frame(2, [row("of:a", 1, 1), row("of:b", 2, 2)]));
  replica.apply(frame(3, [{ branch: "", id: "of:a", scope: "space", seq: 3, deleted: true }]));
  assert.equal(replica.row("of:a", "space").doc, undefined);
  assert.equal(replica.row("of:a", "space").seq, 3);
  replica.apply(frame(4, [], [{ branch: "", id: "of:b", scope: "space" }]));
  assert.equal(replica.row("of:b", "space"), undefined);
  // Tracking that stopped leaves no memory of a seq: the next delivery may be older.
  replica.apply(frame(5, [row("of:b", 1, "one")]));
  assert.equal(replica.value("of:b", "space"), "one");
});

test("run_50 a frame with one bad entry changes nothing", () => {
  const replica = new Replica();
  replica.apply(frame(1, [row("of:a", 1, "kept")]));
  for (const bad of [{ ...row("of:b", 2, 0), seq: "2" }, { ...row("of:b", 2, 0), doc: 7 }, { ...row("of:b", 2, 0), id: 1 }, null]) {
    assert.throws(() => replica.apply(frame(2, [row("of:a", 2, "lost"), bad])), FrameError);
    assert.equal(replica.value("of:a", "space"), "kept");
    assert.equal(replica.seq, 1);
  }
});

test("run_52 instances of one document in three scopes, and keyed ones, stand beside each other", () => {
  const replica = new Replica();
  replica.apply(frame(1, ["space", "user", "session"].map((scope) => row("of:a", 1, scope, { scope }))));
  replica.apply(frame(2, [row("of:a", 2, "somebody else's", { scope: "user", scopeKey: "user:x" })]));
  for (const scope of ["space", "user", "session"]) assert.equal(replica.value("of:a", scope), scope);
  assert.equal(replica.rows().length, 4);
  replica.apply(frame(3, [], [{ branch: "", id: "of:a", scope: "user", scopeKey: "user:x" }]));
  assert.equal(replica.rows().length, 3);
});

test("wire_751 a full frame replaces what it does not list, even by smaller seqs", () => {
  const replica = new Replica();
  replica.apply(frame(90, [row("of:a", 90, "old"), row("of:b", 80, "old")]));
  replica.adopt(frame(3, [row("of:a", 2, "new")]));
  assert.equal(replica.value("of:a", "space"), "new");
  assert.equal(replica.row("of:b", "space"), undefined);
  assert.equal(replica.seq, 3);
});

test("wire_503 links are followed through rows, paths and scopes; a circle ends", () => {
  const link = (payload) => ({ "/": { "link@1": payload } });
  const replica = new Replica();
  replica.apply(
    frame(1, [
      row("of:root", 1, { list: [link({ id: "of:x", path: ["name"] }), "plain"], mine: link({ scope: "user", path: ["mine"] }) }),
      row("of:root", 1, { mine: "my own" }, { scope: "user" }),
      row("of:x", 1, link({ id: "of:y", path: ["deep"] })),
      row("of:y", 1, { deep: { name: "found" } }),
      row("of:circle", 1, [link({ path: [] }), link({ path: [] })]),
    ]),
  );
  assert.deepEqual(replica.value("of:root", "space"), { list: ["found", "plain"], mine: "my own" });
  assert.ok(Array.isArray(replica.value("of:circle", "space")));
  assert.equal(replica.value("of:absent", "space"), undefined);
});

test("ss_587 the watermark is read from its document and is 0 before there is one", () => {
  const replica = new Replica();
  assert.equal(replica.watermark(), 0);
  replica.apply(frame(9, [row("of:server-execution-watermark", 9, { seq: 8 })]));
  assert.equal(replica.watermark(), 8);
  replica.apply(frame(10, [row("of:server-execution-watermark", 10, { seq: "many" })]));
  assert.equal(replica.watermark(), 0);
});
