// A small server that speaks enough of the protocol to run the page in a real browser without the real
// server: it checks signatures, keeps documents per instance, handles the poll's three events and pushes
// frames. It proves the page, not the server; the real one is tested against the page elsewhere.

import { createHash, randomBytes, randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { decode, encode } from "../codec.js";
import { streamSidecarId } from "../hash.js";
import { fromPassphrase, isSigned } from "./people.js";

export const FILES = [
  "index.html", "style.css", "main.js", "bytes.js", "codec.js", "hash.js", "identity.js", "replica.js",
  "session.js", "events.js", "draft.js", "poll.js", "panel.js",
];
const TYPES = { html: "text/html; charset=utf-8", css: "text/css; charset=utf-8", js: "text/javascript; charset=utf-8" };
const WATERMARK = "of:server-execution-watermark";
const SPACE = fromPassphrase("lunch").did;
const DEMO = {
  space: SPACE,
  piece: "of:fid1:piece0000000000000000000000000000000000000000",
  audience: fromPassphrase("stand-in").did,
  docs: {
    options: "of:fid1:options00000000000000000000000000000000000000",
    tally: "computed:fid1:tally0000000000000000000000000000000000",
    myVote: "of:fid1:myvote000000000000000000000000000000000000000",
    draft: "of:fid1:draft0000000000000000000000000000000000000000",
  },
  streams: {},
};
for (const [stream, scope] of [["addOption", "space"], ["vote", "space"], ["type", "session"]]) {
  DEMO.streams[stream] = { id: DEMO.piece, path: [stream], scope };
}

export class StandIn {
  head = 0;
  /** Instance (`scopeKey id`) to what it holds. */
  documents = new Map();
  sessions = new Map();
  connections = new Set();
  /** Set to answer every commit with this error instead of admitting it. */
  refusal = undefined;
  /** Set to leave verdicts and frames unsent, as a network that swallows them would. */
  mute = false;
  #votes = new Map();

  async listen(port = 0) {
    this.write("authored", "space", DEMO.piece, { value: { title: "Lunch poll" } });
    this.write("authored", "space", DEMO.docs.options, { value: ["Ramen at Kumo", "Green Kitchen", "Soup & bread"] });
    this.write("derived", "space", DEMO.docs.tally, { value: [] });
    this.#advanceWatermark();
    this.http = createServer((request, response) => this.#serve(request, response));
    this.http.on("upgrade", (request, socket) => this.#upgrade(request, socket));
    await new Promise((resolve) => this.http.listen(port, "127.0.0.1", resolve));
    this.origin = `http://127.0.0.1:${this.http.address().port}`;
    return this;
  }

  close() {
    for (const connection of this.connections) connection.socket.destroy();
    this.http.close();
    this.http.closeAllConnections();
  }

  /** Cuts every connection without a word. */
  cut() {
    for (const connection of this.connections) connection.socket.destroy();
  }

  async #serve({ url }, response) {
    const path = new URL(url, "http://x").pathname;
    if (path === "/demo.json") return void response.setHeader("content-type", "application/json").end(JSON.stringify(DEMO));
    const file = path === "/" ? "index.html" : path.slice(1);
    if (!FILES.includes(file)) return void response.writeHead(404).end();
    response.setHeader("content-type", TYPES[file.split(".").at(-1)]);
    response.end(await readFile(new URL(`../${file}`, import.meta.url)));
  }

  // ------------------------------------------------------------------------------------------- documents

  write(coverClass, scopeKey, id, doc) {
    this.documents.set(`${scopeKey} ${id}`, { seq: ++this.head, doc, coverClass });
  }

  read(scopeKey, id) {
    return this.documents.get(`${scopeKey} ${id}`)?.doc.value;
  }

  #advanceWatermark() {
    const seq = this.head;
    this.write("derived", "space", WATERMARK, { value: { seq } });
  }

  /** The wave: runs the handler of every entry that was not consequenced, then derives and publishes. */
  #wave() {
    for (const [stream, address] of Object.entries(DEMO.streams)) {
      const id = streamSidecarId(address);
      const entries = this.read("space", id)?.entries ?? [];
      for (const entry of entries.filter(({ consequenced }) => consequenced !== true)) {
        const error = this.#handle(stream, entry);
        Object.assign(entry, { consequenced: true, ...(error === undefined ? {} : { error }) });
      }
    }
    const options = this.read("space", DEMO.docs.options);
    const cast = [...this.#votes.values()];
    const tally = options.map((option) => ({ option, votes: cast.filter((vote) => vote === option).length }));
    if (encode(tally) !== encode(this.read("space", DEMO.docs.tally))) {
      this.write("derived", "space", DEMO.docs.tally, { value: tally });
    }
    this.#advanceWatermark();
    this.#publish();
  }

  #handle(stream, { payload, firedAt }) {
    const user = `user:${encodeURIComponent(firedAt.user)}`;
    const session = `session:${encodeURIComponent(firedAt.user)}:${firedAt.session}`;
    const options = this.read("space", DEMO.docs.options);
    switch (stream) {
      case "type":
        this.write("derived", session, DEMO.docs.draft, { value: payload.text });
        return undefined;
      case "addOption":
        if (options.includes(payload.title)) return `${payload.title} is on the list already`;
        this.write("derived", "space", DEMO.docs.options, { value: [...options, payload.title] });
        this.write("derived", session, DEMO.docs.draft, { value: "" });
        return undefined;
      case "vote":
        if (payload.option !== null && !options.includes(payload.option)) return `there is no ${payload.option} here`;
        this.write("derived", user, DEMO.docs.myVote, { value: payload.option });
        this.#votes.set(firedAt.user, payload.option);
        return undefined;
    }
  }

  #publish() {
    for (const session of this.sessions.values()) {
      if (session.connection === undefined || session.watches === undefined) continue;
      const { upserts } = this.#view(session);
      const news = upserts.filter((upsert) => session.sent.get(`${upsert.scope} ${upsert.id}`) !== upsert.seq);
      for (const upsert of news) session.sent.set(`${upsert.scope} ${upsert.id}`, upsert.seq);
      const { space, id: sessionId } = session;
      const effect = { type: "sync", fromSeq: 0, toSeq: this.head, caughtUpLocalSeq: session.marker, upserts: news, removes: [] };
      this.#say(session.connection, { type: "session/effect", space, sessionId, effect });
    }
  }

  #view(session) {
    const keys = {
      space: "space",
      user: `user:${encodeURIComponent(session.principal)}`,
      session: `session:${encodeURIComponent(session.principal)}:${session.id}`,
    };
    const roots = session.watches.flatMap(({ query }) => query.roots);
    const upserts = roots.map(({ id, scope = "space" }) => {
      const held = this.documents.get(`${keys[scope]} ${id}`);
      const instance = { branch: "", id, scope };
      return held === undefined ? { ...instance, seq: 0, deleted: true } : { ...instance, ...held };
    });
    return { type: "sync", fromSeq: 0, toSeq: this.head, upserts, removes: [] };
  }

  // -------------------------------------------------------------------------------------------- protocol

  #receive(connection, text) {
    const message = decode(text);
    const ok = (value) => this.#say(connection, { type: "response", requestId: message.requestId, ok: value });
    const refuse = (name, why) => this.#say(connection, { type: "response", requestId: message.requestId, error: { name, message: why } });
    const session = this.sessions.get(message.sessionId);
    switch (message.type) {
      case "hello":
        return this.#say(connection, { type: "hello.ok", protocol: "memory", flags: {}, sessionOpen: this.#challenge(connection) });
      case "session.open": {
        const { invocation, authorization, session: descriptor } = message;
        const sound =
          invocation.challenge === connection.challenge && invocation.aud === DEMO.audience && invocation.sub === SPACE &&
          encode(invocation.args.session) === encode(descriptor) && isSigned(invocation, authorization.signature);
        if (!sound) return refuse("AuthorizationError", "Invalid signature");
        const known = this.sessions.get(descriptor.sessionId);
        if (known !== undefined && known.token !== descriptor.sessionToken) {
          return refuse("SessionRevokedError", `session ${known.id} resume token is no longer valid`);
        }
        if (known?.connection !== undefined && known.connection !== connection) {
          this.#say(known.connection, { type: "session/revoked", space: SPACE, sessionId: known.id, reason: "taken-over" });
        }
        const opened = known ?? { id: descriptor.sessionId, space: SPACE, principal: invocation.iss, marker: 0, sent: new Map(), commits: new Map() };
        Object.assign(opened, { token: randomUUID(), connection });
        this.sessions.set(opened.id, opened);
        return ok({
          sessionId: opened.id, sessionToken: opened.token, serverSeq: this.head, caughtUpLocalSeq: opened.marker,
          ...(known === undefined ? {} : { resumed: true }), sessionOpen: this.#challenge(connection),
        });
      }
      case "session.watch.set": {
        session.watches = message.watches;
        const sync = this.#view(session);
        session.sent = new Map(sync.upserts.map(({ scope, id, seq }) => [`${scope} ${id}`, seq]));
        return ok({ serverSeq: this.head, sync });
      }
      case "session.ack":
        return ok({ serverSeq: this.head });
      case "graph.query":
        return ok({
          serverSeq: this.head,
          entities: message.query.roots.map(({ id }) => {
            const held = this.documents.get(`space ${id}`);
            return { branch: "", id, seq: held?.seq ?? 0, document: held?.doc ?? null };
          }),
        });
      case "transact":
        return this.#transact(session, message.commit, ok, refuse);
    }
  }

  #transact(session, commit, ok, refuse) {
    if (this.refusal !== undefined) return refuse(this.refusal.name, this.refusal.message);
    const earlier = session.commits.get(commit.localSeq);
    if (earlier !== undefined) {
      if (earlier.text !== encode(commit)) return refuse("ProtocolError", `commit replay mismatch for localSeq ${commit.localSeq}`);
      return ok({ ...earlier.verdict, replayed: true });
    }
    const [{ id, patches }] = commit.operations;
    const [{ values }] = patches;
    const entries = this.read("space", id)?.entries ?? [];
    const firedAt = { user: session.principal, session: session.id };
    const stamped = values.map((entry) => ({ ...entry, firedAt, seq: this.head + 1 }));
    this.write("authored", "space", id, { value: { entries: [...entries, ...stamped] } });
    const verdict = { seq: this.head, branch: "", revisions: [] };
    session.commits.set(commit.localSeq, { text: encode(commit), verdict });
    session.marker = Math.max(session.marker, commit.localSeq);
    ok(verdict);
    setTimeout(() => this.#wave(), 5);
  }

  #challenge(connection) {
    connection.challenge = randomBytes(32).toString("hex");
    return { audience: DEMO.audience, challenge: { value: connection.challenge, expiresAt: Math.floor(Date.now() / 1000) + 300 } };
  }

  #say(connection, message) {
    if (!this.mute) connection.send(encode(message));
  }

  // ------------------------------------------------------------------------------------------- WebSocket

  #upgrade({ headers }, socket) {
    const accept = createHash("sha1").update(`${headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
    const connection = { socket, send: (text) => socket.destroyed || socket.write(textFrame(text)) };
    this.connections.add(connection);
    let buffered = Buffer.alloc(0);
    socket.on("data", (chunk) => {
      buffered = Buffer.concat([buffered, chunk]);
      for (let frame = readFrame(buffered); frame !== undefined; frame = readFrame(buffered)) {
        buffered = buffered.subarray(frame.length);
        if (frame.opcode === 1) this.#receive(connection, frame.payload.toString("utf8"));
        if (frame.opcode === 8) socket.end();
      }
    });
    socket.on("error", () => socket.destroy());
    socket.on("close", () => {
      this.connections.delete(connection);
      for (const session of this.sessions.values()) if (session.connection === connection) session.connection = undefined;
    });
  }
}

function textFrame(text) {
  const payload = Buffer.from(text, "utf8");
  const head = Buffer.alloc(payload.length < 126 ? 2 : payload.length < 65536 ? 4 : 10);
  head[0] = 0x81;
  if (payload.length < 126) head[1] = payload.length;
  else if (payload.length < 65536) (head[1] = 126), head.writeUInt16BE(payload.length, 2);
  else (head[1] = 127), head.writeBigUInt64BE(BigInt(payload.length), 2);
  return Buffer.concat([head, payload]);
}

/** One masked client frame at the start of the buffer, or undefined if it is not whole yet. */
function readFrame(buffer) {
  if (buffer.length < 2) return undefined;
  let size = buffer[1] & 0x7f;
  let at = 2;
  if (size === 126) (size = buffer.length < 4 ? Infinity : buffer.readUInt16BE(2)), (at = 4);
  else if (size === 127) (size = buffer.length < 10 ? Infinity : Number(buffer.readBigUInt64BE(2))), (at = 10);
  if (buffer.length < at + 4 + size) return undefined;
  const mask = buffer.subarray(at, at + 4);
  const payload = Buffer.from(buffer.subarray(at + 4, at + 4 + size)).map((byte, index) => byte ^ mask[index % 4]);
  return { opcode: buffer[0] & 0x0f, payload, length: at + 4 + size };
}

// `node test/stand_in.js 8080` serves the page for a person to look at.
if (process.argv[1] === fileURLToPath(import.meta.url) && process.argv[2] !== undefined) {
  console.log((await new StandIn().listen(Number(process.argv[2]))).origin);
}
