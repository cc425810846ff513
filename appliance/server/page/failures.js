// What fails becomes a sentence above the messages; where a key is missing, it is asked for.

import { ApiError, hasKey, keyNow, setKey } from "/page/api.js";
import { keyAsked } from "/page/questions.js";

export class Failures {
  /** `onKey`: there is another key to try with. `onFailure`: the server may be at fault. */
  constructor({ onKey, onFailure }) {
    this.handlers = { onKey, onFailure };
    this.place = document.getElementById("notice");
    this.isAsking = false;
  }

  /** Show a sentence, or none. */
  say(text) {
    this.place.textContent = text ?? "";
    this.place.hidden = !text;
  }

  /** Run an action; undefined where it failed. */
  async guarded(action) {
    const key = keyNow();
    try {
      return await action();
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      if (!(error instanceof ApiError)) throw error;
      // It was sent with a key that is not the reader's any more.
      if (error.status === 401 && key !== keyNow()) return this.guarded(action);
      if (error.status === 401) await this.askForKey(error.message);
      else this.say(error.message);
      this.handlers.onFailure();
      return undefined;
    }
  }

  async askForKey(message) {
    if (this.isAsking) return;
    this.isAsking = true;
    const key = await keyAsked(hasKey());
    this.isAsking = false;
    if (!key) {
      this.say(message);
      return;
    }
    setKey(key);
    this.handlers.onKey();
  }
}
