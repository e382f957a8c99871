// The half-typed option. What is typed shows at once, goes to the server as an event when typing pauses,
// and comes back as a document of this session, so that a reload finds it. While an edit is under way the
// document does not overwrite the field; when the edit has settled, it does.

/** @typedef {import("./events.js").FiredEvent} FiredEvent */

/** A pause in typing, in milliseconds. */
export const PAUSE = 150;

export class Draft {
  /** What the field shows. */
  text = "";

  #fire;
  #clock;
  #received = "";
  #edited = false;
  /** Text of the newest event, and the event. */
  #sent = "";
  /** @type {FiredEvent | undefined} */
  #event;
  /** @type {unknown} */
  #timer;

  /**
   * @param {{ fire: (text: string) => FiredEvent, clock: import("./wire.js").Clock }} options
   */
  constructor({ fire, clock }) {
    this.#fire = fire;
    this.#clock = clock;
  }

  /**
   * A person changed the field.
   * @param {string} text
   */
  input(text) {
    this.text = text;
    this.#edited = true;
    if (isOver(this.#event)) this.#event = undefined;
    if (this.#timer !== undefined) this.#clock.cancel(this.#timer);
    this.#timer = this.#clock.after(PAUSE, () => {
      this.#timer = undefined;
      this.#advance();
    });
  }

  /**
   * The document as last received, and the news that some event moved on; cheap to call for either.
   * @param {string} received
   */
  observe(received) {
    this.#received = received;
    if (this.#edited) this.#advance();
    else this.text = received;
  }

  #advance() {
    if (this.#timer !== undefined) return;
    const event = this.#event;
    if (event?.phase === "queued" || event?.phase === "sending") return; // the newest text goes after it
    if (event?.phase === "accepted") {
      if (this.text !== this.#sent) this.#send();
      return;
    }
    if (this.text === this.#received) {
      this.#edited = false;
    } else if (event === undefined || this.text !== this.#sent) {
      this.#send();
    } else if (event.phase === "settled") {
      // The handler made something else of the text than what was typed; the document is the truth.
      this.#edited = false;
      this.text = this.#received;
    }
    // Refused or failed: what was typed stays in the field, and is sent again only after another change.
  }

  #send() {
    this.#sent = this.text;
    this.#event = this.#fire(this.text);
  }
}

/** @param {FiredEvent | undefined} event */
function isOver(event) {
  return event?.phase === "settled" || event?.phase === "refused" || event?.phase === "failed";
}
