// The field that messages are written in, its buttons, and the choice of who answers next. Never calls the
// server.

const HEIGHT_MAX_PX = 220;
const element = (id) => document.getElementById(id);

export class Composer {
  constructor({ onSend, onStop }) {
    this.field = element("composer-text");
    this.choice = element("next-speaker-choice");
    this.stop = element("stop");
    this.setText(this.text);
    this.field.addEventListener("input", () => this.setText(this.field.value));
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        element("composer").requestSubmit();
      }
    });
    element("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      onSend(this.text.trim());
    });
    this.stop.addEventListener("click", onStop);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.stop.hidden && !document.querySelector("dialog[open]")) onStop();
    });
  }

  get text() {
    return this.field.value;
  }

  setText(text) {
    this.field.value = text;
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, HEIGHT_MAX_PX)}px`;
    element("send").disabled = !text.trim();
  }

  focus() {
    this.field.focus();
  }

  /** A reply is being written: it can be stopped, and nothing can be sent. */
  setBusy(isBusy) {
    element("send").hidden = isBusy;
    this.stop.hidden = !isBusy;
    this.stop.disabled = false;
  }

  /** The stop was asked for, or could not be. */
  setStopping(isStopping) {
    this.stop.disabled = isStopping;
  }

  /** Whom the reader wants to answer; null where that is open. */
  get speaker() {
    return element("next-speaker").hidden ? null : this.choice.value || null;
  }

  /** In a group: who may answer next, as [id, name]. */
  showMembers(members) {
    element("next-speaker").hidden = !members.length;
    const options = [["", "whoever is named, or is next"], ...members];
    const key = JSON.stringify(options);
    if (this.choice.dataset.key === key) return;
    this.choice.dataset.key = key;
    this.choice.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  }
}
