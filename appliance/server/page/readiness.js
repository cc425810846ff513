// Whether the server can answer, asked again and again; the sign of it at the top.

const READY_POLL_MS = 20_000;
const WAITING_POLL_MS = 2_000;
const ANSWER_MS = 8_000;

export class Readiness {
  /** `onReady`: nothing is in the way any more. */
  constructor({ onReady }) {
    this.onReady = onReady;
    this.isReady = false;
    this.place = document.getElementById("engine");
    this.text = document.getElementById("engine-text");
    this.model = "";
    this.timer = undefined;
  }

  /** The model's name is known: it is what a server that is well shows. */
  setModel(name) {
    this.model = name;
    this.text.textContent = name;
  }

  /** Ask now, and from then on. */
  async poll() {
    const trouble = await this.trouble();
    this.place.classList.toggle("away", trouble !== null);
    this.text.textContent = trouble ?? (this.model || "Ready");
    this.place.title = this.text.textContent;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), trouble === null ? READY_POLL_MS : WAITING_POLL_MS);
    const isBack = trouble === null && !this.isReady;
    this.isReady = trouble === null;
    if (isBack) this.onReady();
  }

  /** What keeps chats from being answered or from the database, in words; null while nothing does. */
  async trouble() {
    try {
      const signal = AbortSignal.timeout(ANSWER_MS);
      const told = await (await fetch("/ready", { cache: "no-store", signal })).json();
      if (!told.ready) return told.reasons.map((reason) => reason.message).join(" · ");
      return told.journal.writes === "open" ? null : "Chats go on; they are stored when the database is back";
    } catch (error) {
      return error.name === "TimeoutError" ? "The server does not answer" : "The server cannot be reached";
    }
  }
}
