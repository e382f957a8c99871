// The poll as people see it: options with their tallies and my mark, the field for a new option, what went
// wrong. Reads the received documents, reports clicks; decides nothing.

import { isObject } from "./codec.js";
import { shortDid } from "./identity.js";

/** @typedef {import("./wire.js").Value} Value */
/** @typedef {import("./events.js").FiredEvent} FiredEvent */
/** @typedef {{ title: string, votes: number, mine: boolean }} Option */
/**
 * `choose` gets the option's title, or null to take a vote back.
 * @typedef {{ choose(title: string | null): void, type(text: string): void, add(title: string): void,
 *   dismiss(eventId: string): void, reconnect(): void }} Actions
 */
/**
 * @typedef {{ options: Option[] | undefined, draft: string, open: FiredEvent[], problems: FiredEvent[],
 *   link: { phase: import("./session.js").Phase, trouble: { name: string, message: string } | undefined } }} PollState
 * `options` undefined: not received yet.
 */

/**
 * The options with their votes, from the values of the three documents (their shapes are in README.md).
 * Whatever does not have the shape counts as absent.
 * @param {Value} options
 * @param {Value} tally
 * @param {Value} myVote
 * @returns {Option[]}
 */
export function tallied(options, tally, myVote) {
  const titles = new Set((Array.isArray(options) ? options : []).filter(isText));
  /** @type {Map<string, number>} */
  const votes = new Map();
  for (const line of Array.isArray(tally) ? tally : []) {
    if (isObject(line) && isText(line.option) && typeof line.votes === "number") votes.set(line.option, line.votes);
  }
  return [...titles].map((title) => ({ title, votes: votes.get(title) ?? 0, mine: title === myVote }));
}

/**
 * @param {Value} value
 * @returns {value is string}
 */
function isText(value) {
  return typeof value === "string" && value !== "";
}

export class PollView {
  #actions;
  /** @type {Map<string, OptionRow>} */
  #rows = new Map();
  #list = byId("options", HTMLUListElement);
  #problems = byId("problems", HTMLUListElement);
  #draft = byId("draft", HTMLInputElement);
  #linkAction = byId("link-action", HTMLButtonElement);
  #lost = false;

  /** @param {Actions} actions */
  constructor(actions) {
    this.#actions = actions;
    const hint = byId("draft-hint", HTMLElement);
    const usualHint = hint.textContent ?? "";
    this.#draft.addEventListener("input", () => {
      hint.textContent = usualHint;
      actions.type(this.#draft.value);
    });
    byId("add-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      const title = this.#draft.value.trim();
      if (title === "") hint.textContent = "Type a name first.";
      else actions.add(title);
      this.#draft.focus();
    });
    this.#linkAction.addEventListener("click", () => actions.reconnect());
  }

  /**
   * @param {{ name: string, did: string, next: string }} person `next`: the name to offer for a second person
   */
  introduce({ name, did, next }) {
    const identity = byId("identity", HTMLElement);
    identity.dataset.did = did;
    const key = element("code", { textContent: shortDid(did), title: did });
    const another = element("a", { href: `?as=${encodeURIComponent(next)}`, target: "_blank", rel: "noopener" });
    another.textContent = "Join as someone else";
    identity.replaceChildren("You are ", element("strong", { textContent: name }), " ", key, " · ", another);
  }

  /** @param {PollState} state */
  render(state) {
    this.#renderLink(state.link);
    this.#renderOptions(state.options, state.open);
    this.#renderProblems(state.problems);
    if (this.#draft.value !== state.draft) this.#draft.value = state.draft;
    const waiting = state.open.filter((event) => event.stream !== "type" && event.phase !== "accepted").length;
    const pending = waiting === 0 || state.link.phase === "live" ? "" : `${count(waiting, "change")} waiting to be sent.`;
    setText(byId("pending", HTMLElement), pending);
  }

  /** @param {PollState["link"]} link */
  #renderLink({ phase, trouble }) {
    byId("link", HTMLElement).dataset.phase = phase;
    const detail = trouble === undefined ? "" : ` ${trouble.message}`;
    // Attempts come and go quickly; to the reader they are one state, said once.
    this.#lost = phase === "waiting" || (phase === "connecting" && this.#lost);
    const lost = [`Connection lost, trying again…${detail}`, "Try now"];
    const [text, action] = {
      connecting: this.#lost ? lost : ["Connecting…", ""],
      live: ["Connected", ""],
      waiting: lost,
      ended: [`Disconnected.${detail}`, "Start a new session"],
    }[phase];
    setText(byId("link-text", HTMLElement), text);
    setText(this.#linkAction, action);
    this.#linkAction.hidden = action === "";
  }

  /**
   * @param {Option[] | undefined} options
   * @param {FiredEvent[]} open
   */
  #renderOptions(options, open) {
    const votes = open.filter((event) => event.stream === "vote");
    const choice = votes.at(-1)?.payload;
    const chosen = isObject(choice) ? choice.option : undefined;
    const total = (options ?? []).reduce((sum, option) => sum + option.votes, 0);
    const most = Math.max(1, ...(options ?? []).map((option) => option.votes));
    for (const [title, row] of this.#rows) {
      if (!options?.some((option) => option.title === title)) {
        row.node.remove();
        this.#rows.delete(title);
      }
    }
    (options ?? []).forEach((option, place) => {
      let row = this.#rows.get(option.title);
      if (row === undefined) {
        row = new OptionRow(option.title, this.#actions);
        this.#rows.set(option.title, row);
      }
      row.render(option, option.votes / most, chosen === option.title || (chosen === null && option.mine));
      // Moving a node takes its focus away, so only what is out of place is moved.
      if (this.#list.children[place] !== row.node) this.#list.insertBefore(row.node, this.#list.children[place] ?? null);
    });
    const totalNode = byId("total", HTMLElement);
    totalNode.dataset.votes = String(total);
    setText(totalNode, options === undefined ? "" : count(total, "vote"));
    const empty = byId("empty", HTMLElement);
    empty.hidden = options !== undefined && options.length > 0;
    setText(empty, options === undefined ? "Waiting for the poll…" : "Nothing suggested yet. Add the first place below.");
  }

  /** @param {FiredEvent[]} problems */
  #renderProblems(problems) {
    const shown = new Set([...this.#problems.children].map((node) => /** @type {HTMLElement} */ (node).dataset.event));
    if (shown.size === problems.length && problems.every(({ eventId }) => shown.has(eventId))) return;
    this.#problems.replaceChildren(...problems.map((problem) => this.#problemNode(problem)));
  }

  /** @param {FiredEvent} event */
  #problemNode(event) {
    const { name, message } = event.trouble ?? { name: "Error", message: "" };
    const node = element("li", { className: "problem" });
    node.dataset.testid = "problem";
    node.dataset.event = event.eventId;
    node.dataset.name = name;
    const text = element("p", {});
    text.append(inPlainWords(event), " ", element("small", { textContent: `${name}: ${message}` }));
    const dismiss = element("button", { type: "button", className: "quiet", textContent: "Dismiss" });
    dismiss.dataset.testid = "dismiss";
    dismiss.addEventListener("click", () => {
      this.#actions.dismiss(event.eventId);
      this.#draft.focus();
    });
    node.append(text, dismiss);
    return node;
  }
}

class OptionRow {
  node = element("li", {});
  #button = element("button", { type: "button", className: "option" });
  #bar = element("span", { className: "bar" });
  #mark = element("span", { className: "mark", textContent: "Your vote" });
  #votes = element("span", { className: "votes" });
  #mine = false;

  /**
   * @param {string} title
   * @param {Actions} actions
   */
  constructor(title, actions) {
    this.#bar.setAttribute("aria-hidden", "true");
    this.#button.dataset.testid = "option";
    this.#mark.dataset.testid = "my-vote";
    this.#votes.dataset.testid = "tally";
    for (const node of [this.#button, this.#mark, this.#votes]) node.dataset.option = title;
    this.#button.append(this.#bar, element("span", { className: "name", textContent: title }), this.#mark, this.#votes);
    this.#button.addEventListener("click", () => actions.choose(this.#mine ? null : title));
    this.node.append(this.#button);
  }

  /**
   * @param {Option} option
   * @param {number} share of the largest tally, 0 to 1
   * @param {boolean} pending a vote that changes this row is under way
   */
  render({ votes, mine }, share, pending) {
    this.#mine = mine;
    this.#button.setAttribute("aria-pressed", String(mine));
    this.#button.setAttribute("aria-busy", String(pending));
    this.#mark.hidden = !mine;
    this.#bar.style.setProperty("--share", String(share));
    this.#votes.dataset.votes = String(votes);
    setText(this.#votes, count(votes, "vote"));
  }
}

/**
 * What happened to an event, for somebody who knows nothing of events.
 * @param {FiredEvent} event
 */
function inPlainWords({ stream, payload, phase, trouble }) {
  const { title, option } = /** @type {{ title?: string, option?: string | null }} */ (isObject(payload) ? payload : {});
  const what = {
    addOption: `Adding “${title}”`,
    vote: option === null ? "Taking your vote back" : `Your vote for “${option}”`,
    type: "Keeping what you typed",
  }[stream];
  if (phase === "failed") return `${what} did not work.`;
  return trouble?.name === "AuthorizationError" ? `${what} is not allowed for you here.` : `${what} was refused by the server.`;
}

/**
 * @param {number} number
 * @param {string} noun
 */
function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/**
 * Leaves equal text alone: writing it again would make a screen reader say it again.
 * @param {HTMLElement} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function byId(id, kind) {
  const node = document.getElementById(id);
  if (node instanceof kind) return node;
  throw new Error(`the page has no ${kind.name} with the id ${id}`);
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Partial<HTMLElementTagNameMap[K]>} properties
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}
