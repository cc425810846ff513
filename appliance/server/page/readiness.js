// Whether the server can answer, asked again and again; the sign of it at the top.

const READY_POLL_MS = 20_000;
const WAITING_POLL_MS = 2_000;

export class Readiness {
  constructor() {
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
    let ready = false;
    let text = "The server cannot be reached";
    try {
      const answer = await fetch("/ready", { cache: "no-store" });
      const told = await answer.json();
      ready = told.ready;
      text = ready ? this.model || "Ready" : told.reasons.map((reason) => reason.message).join(" · ");
    } catch {
      ready = false;
    }
    this.place.classList.toggle("away", !ready);
    this.place.title = text;
    this.text.textContent = text;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), ready ? READY_POLL_MS : WAITING_POLL_MS);
  }
}
