// The characters one can talk to: a grid to choose from, cards brought in by button or by drop. Reports
// choices and files; never calls the server.

import { iconButton } from "/page/icons.js";
import { portrait } from "/page/portrait.js";

const element = (id) => document.getElementById(id);
const NAMES_OF_KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]);

export class Picker {
  constructor({ onChoose, onFiles, onExport, onRemove, portraitOf }) {
    this.handlers = { onChoose, onFiles, onExport, onRemove };
    this.portraitOf = portraitOf;
    this.dialog = element("picker");
    this.grid = element("picker-grid");
    this.input = element("picker-input");
    this.mayImport = false;
    this.listenForDrops(document.documentElement);
    element("picker-close").addEventListener("click", () => this.dialog.close());
    element("picker-import").addEventListener("click", () => this.input.click());
    this.input.addEventListener("change", () => {
      const files = [...this.input.files];
      this.input.value = "";
      if (files.length) this.handlers.onFiles(files);
    });
    this.grid.addEventListener("keydown", (event) => this.moveFocus(event));
    // A click beside the panel closes it, as Escape does.
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
  }

  open() {
    if (!this.dialog.open) this.dialog.showModal();
    this.say(null);
    (this.grid.querySelector("[aria-current]") ?? this.grid.querySelector("button"))?.focus();
  }

  close() {
    this.dialog.close();
  }

  get isOpen() {
    return this.dialog.open;
  }

  /** All characters; `currentId` is the one of the conversation that is shown. */
  show(characters, { mayImport, currentId }) {
    this.mayImport = mayImport;
    this.grid.replaceChildren(...characters.map((item) => this.item(item, item.id === currentId)));
    element("picker-import").hidden = !mayImport;
    const hint = element("picker-hint");
    hint.hidden = !mayImport;
    hint.classList.toggle("alone", !characters.some((item) => item.is_card));
  }

  /** Sentences about the last import; those of a refused card are `bad`. */
  say(sentences, { bad = false } = {}) {
    const notice = element("picker-notice");
    notice.replaceChildren(
      ...(sentences ?? []).map((sentence) => {
        const line = document.createElement("p");
        line.textContent = sentence;
        return line;
      }),
    );
    notice.hidden = !sentences?.length;
    notice.classList.toggle("bad", bad);
  }

  setBusy(isBusy) {
    this.dialog.classList.toggle("busy", isBusy);
    element("picker-import").disabled = isBusy;
  }

  focusOn(id) {
    const found = [...this.grid.querySelectorAll(".character")].find((button) => button.dataset.id === id);
    found?.scrollIntoView({ block: "nearest" });
    found?.focus();
  }

  item(character, isCurrent) {
    const place = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "character";
    button.dataset.id = character.id;
    if (isCurrent) button.setAttribute("aria-current", "true");
    const name = document.createElement("span");
    name.className = "character-name";
    name.textContent = character.name;
    const text = document.createElement("span");
    text.className = "character-text";
    text.textContent = character.description || "No description.";
    const words = document.createElement("span");
    words.className = "character-words";
    words.append(name);
    if (character.mark) {
      const mark = document.createElement("span");
      mark.className = "character-mark";
      mark.textContent = character.mark;
      words.append(mark);
    }
    words.append(text);
    if (character.greetings > 1) {
      const more = document.createElement("span");
      more.className = "character-more";
      more.textContent = `${character.greetings} greetings`;
      words.append(more);
    }
    button.append(portrait(character, this.portraitOf), words);
    button.addEventListener("click", () => this.handlers.onChoose(character));
    const called = character.mark ? `${character.name} (${character.mark})` : character.name;
    const tools = document.createElement("span");
    tools.className = "character-tools";
    tools.append(
      iconButton("send_out", `Save ${called} as a card`, "row-tool", () => this.handlers.onExport(character)),
    );
    if (this.mayImport && !character.is_default) {
      tools.append(
        iconButton("trash", `Take ${called} from the list`, "row-tool", () => this.handlers.onRemove(character)),
      );
    }
    place.append(button, tools);
    return place;
  }

  moveFocus(event) {
    if (!NAMES_OF_KEYS.has(event.key)) return;
    const buttons = [...this.grid.querySelectorAll(".character")];
    const at = buttons.indexOf(document.activeElement);
    if (at < 0) return;
    event.preventDefault();
    const top = buttons[0].getBoundingClientRect().top;
    const columns = buttons.filter((button) => button.getBoundingClientRect().top === top).length;
    const to = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at - columns,
      ArrowDown: at + columns,
      Home: 0,
      End: buttons.length - 1,
    }[event.key];
    buttons[to]?.focus();
  }

  /** A file may be dropped anywhere: the browser would else leave the page and show it. */
  listenForDrops(target) {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const mark = (isOver) => this.dialog.classList.toggle("dropping", isOver && this.mayImport);
    target.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = this.mayImport ? "copy" : "none";
      mark(true);
    });
    target.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) mark(false);
    });
    target.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(false);
      const files = [...event.dataTransfer.files];
      if (files.length && this.mayImport) this.handlers.onFiles(files);
    });
  }
}
