// "What the server derived": how far the received frames reach, the watermark, and the rows this session
// holds. Each row was sent to this session because its scope key applies to it (WIRE-107).

import { WATERMARK_DOCUMENT } from "./replica.js";
import { byId, element, setText } from "./poll.js";

/** @typedef {import("./replica.js").Row} Row */
/**
 * @typedef {{ seq: number, watermark: number, rows: Row[], sessionId: string,
 *   events: import("./events.js").FiredEvent[] }} PanelState
 * `events`: my own that are not over.
 */

export class PanelView {
  #names;
  /** @type {Map<string, HTMLTableRowElement>} */
  #nodes = new Map();
  #body = byId("panel-rows", HTMLTableSectionElement);
  #everFired = false;

  /** @param {import("./wire.js").Demo} demo */
  constructor({ piece, docs }) {
    this.#names = new Map([
      [piece, "piece"],
      [docs.options, "options"],
      [docs.tally, "tally"],
      [docs.myVote, "my vote"],
      [docs.draft, "draft"],
      [WATERMARK_DOCUMENT, "watermark"],
    ]);
  }

  /** @param {PanelState} state */
  render({ seq, watermark, rows, sessionId, events }) {
    setText(byId("panel-seq", HTMLElement), String(seq));
    setText(byId("panel-watermark", HTMLElement), String(watermark));
    setText(byId("session-id", HTMLElement), sessionId);
    this.#everFired ||= events.length > 0;
    const settled = byId("panel-settled", HTMLElement);
    settled.dataset.open = String(events.length);
    setText(settled, events.length > 0 ? "waiting" : this.#everFired ? "settled" : "none yet");
    this.#renderRows(rows);
  }

  /** @param {Row[]} rows */
  #renderRows(rows) {
    /** @type {Map<string, HTMLTableRowElement>} */
    const nodes = new Map();
    rows.forEach((row, place) => {
      const key = JSON.stringify([row.branch, row.scopeKey ?? row.scope, row.id]);
      const standing = this.#nodes.get(key);
      // A new node for a new seq, and none for the rest: arriving is what the style sheet lights up.
      const node = standing?.dataset.version === versionOf(row) ? standing : this.#rowNode(row);
      if (standing !== undefined && standing !== node) standing.replaceWith(node);
      if (this.#body.children[place] !== node) this.#body.insertBefore(node, this.#body.children[place] ?? null);
      nodes.set(key, node);
    });
    for (const [key, node] of this.#nodes) if (!nodes.has(key)) node.remove();
    this.#nodes = nodes;
  }

  /** @param {Row} row */
  #rowNode(row) {
    const { id, scope, seq, doc, coverClass } = row;
    const node = element("tr", {});
    const cover = coverClass ?? "";
    Object.assign(node.dataset, { testid: "panel-row", id, scope, seq: String(seq), cover, version: versionOf(row) });
    node.dataset.state = doc !== undefined ? "present" : seq === 0 ? "never written" : "deleted";
    const name = element("th", { scope: "row", title: id });
    name.append(
      element("span", { className: "doc", textContent: this.#names.get(id) ?? "linked document" }),
      element("code", { textContent: shortId(id) }),
    );
    const covered = doc === undefined ? node.dataset.state : cover;
    node.append(
      name,
      cell(element("span", { className: `chip ${scope}`, textContent: scope })),
      element("td", { className: "number", textContent: String(seq) }),
      cell(element("span", { className: `class ${cover}`, textContent: covered === "" ? "—" : covered })),
    );
    return node;
  }
}

/** @param {Row} row */
function versionOf({ seq, coverClass, doc }) {
  return `${seq} ${coverClass} ${doc !== undefined}`;
}

/** @param {HTMLElement} content */
function cell(content) {
  const node = element("td", {});
  node.append(content);
  return node;
}

/** @param {string} id */
function shortId(id) {
  return id.length <= 22 ? id : `${id.slice(0, 13)}…${id.slice(-4)}`;
}
