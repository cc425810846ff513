// What fails becomes a sentence above the messages, with a button where the server did not answer; where a key
// is missing, it is asked for.

import { ApiError, NO_ANSWER, hasKey, keyNow, setKey } from "/page/api.js";
import { keyAsked } from "/page/questions.js";

export class Failures {
  /** `onKey`: there is another key to try with. `onFailure`: the server may be at fault. */
  constructor({ onKey, onFailure }) {
    this.handlers = { onKey, onFailure };
    this.place = document.getElementById("notice");
    this.isAsking = false;
    /** Each takes whether the action that waits here is to be tried again. */
    this.waiting = [];
  }

  /** Show a sentence, or none. What waited to be tried again is given up. */
  say(text) {
    this.end(false);
    this.show(text);
  }

  /** The server answers again: what waits for it goes on, and what was said of it is no longer so. */
  goOn() {
    this.end(true);
    this.show(null);
  }

  show(text) {
    this.place.textContent = text ?? "";
    this.place.hidden = !text;
    if (!this.waiting.length) return;
    const again = document.createElement("button");
    again.type = "button";
    again.textContent = "Try again";
    again.addEventListener("click", () => this.goOn());
    this.place.append(" ", again);
  }

  end(isTriedAgain) {
    const waiting = this.waiting;
    this.waiting = [];
    for (const resolve of waiting) resolve(isTriedAgain);
  }

  /** Run an action, again and again where the reader wants it so; undefined where it failed. */
  async guarded(action) {
    const key = keyNow();
    try {
      return await action();
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      if (!(error instanceof ApiError)) throw error;
      // It was sent with a key that is not the reader's any more.
      if (error.status === 401 && key !== keyNow()) return this.guarded(action);
      if (error.code === NO_ANSWER) return (await this.triedAgain(error.message)) ? this.guarded(action) : undefined;
      if (error.status === 401) await this.askForKey(error.message);
      else this.show(error.message);
      this.handlers.onFailure();
      return undefined;
    }
  }

  /** Say what did not answer; resolves to whether it is to be asked again, once that is known. */
  triedAgain(message) {
    const choice = new Promise((resolve) => this.waiting.push(resolve));
    this.show(message);
    this.handlers.onFailure();
    return choice;
  }

  async askForKey(message) {
    if (this.isAsking) return;
    this.isAsking = true;
    const key = await keyAsked(hasKey());
    this.isAsking = false;
    if (!key) {
      this.show(message);
      return;
    }
    setKey(key);
    this.handlers.onKey();
  }
}
