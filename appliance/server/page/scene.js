// The panel of what a reader sets for a conversation: who they are, notes, pinned texts, who else is there.
// Builds DOM nodes from text only; never calls the server.

import { iconButton } from "/page/icons.js";

const element = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");
const PINNED_MAX = 32;

export class ScenePanel {
  constructor({ onSave }) {
    this.onSave = onSave;
    this.dialog = element("scene-dialog");
    this.form = element("scene-form");
    this.pins = element("scene-pins");
    this.members = element("scene-members");
    element("scene-add-pin").addEventListener("click", () => this.addPin("", true));
    element("scene-cancel").addEventListener("click", () => this.dialog.close());
    this.form.addEventListener("input", () => this.tellCost());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.onSave(this.changes());
    });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
  }

  /** `scene` is what is set; `own` the character whose conversation it is, among all `characters`; `tokens`
   *  what a whole prompt of it takes now. */
  open({ scene, own, characters, tokens }) {
    this.before = scene;
    this.own = own;
    this.tokens = tokens;
    element("scene-name").value = scene.persona?.name ?? "";
    element("scene-persona").value = scene.persona?.text ?? "";
    element("scene-note").value = scene.note?.text ?? "";
    element("scene-every").value = scene.note?.every ?? "";
    this.pins.replaceChildren();
    for (const text of scene.pinned) this.addPin(text, false);
    this.members.replaceChildren(...characters.map((character) => this.memberLine(character)));
    element("scene-group").hidden = characters.length < 2;
    this.say(null);
    this.tellCost();
    this.dialog.showModal();
    element("scene-name").focus();
  }

  close() {
    this.dialog.close();
  }

  /** A sentence about what was refused. */
  say(sentence) {
    const place = element("scene-refused");
    place.textContent = sentence ?? "";
    place.hidden = !sentence;
  }

  addPin(text, isNew) {
    const line = document.createElement("li");
    const field = document.createElement("textarea");
    field.rows = 2;
    field.maxLength = 2000;
    field.value = text;
    field.setAttribute("aria-label", "Pinned text");
    const remove = iconButton("close", "Remove this text", "icon-button", () => {
      line.remove();
      this.tellCost();
    });
    line.append(field, remove);
    this.pins.append(line);
    element("scene-add-pin").disabled = this.pins.children.length >= PINNED_MAX;
    if (isNew) field.focus();
  }

  memberLine(character) {
    const line = document.createElement("li");
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.value = character.id;
    box.checked = character.id === this.own || this.before.members.includes(character.id);
    box.disabled = character.id === this.own;
    const name = document.createElement("bdi");
    name.textContent = character.mark ? `${character.name} (${character.mark})` : character.name;
    label.append(box, name);
    line.append(label);
    return line;
  }

  /** What differs from what is set, as the server takes it. */
  changes() {
    const name = element("scene-name").value.trim();
    const text = element("scene-persona").value.trim();
    const note = element("scene-note").value.trim();
    const every = Number(element("scene-every").value) || null;
    const chosen = [...this.members.querySelectorAll("input:checked")].map((box) => box.value);
    // Who is there already keeps its place: what stands first stays first.
    const kept = this.before.members.filter((id) => chosen.includes(id));
    const members = [...kept, ...chosen.filter((id) => !kept.includes(id))];
    const now = {
      persona: name || text ? { name, text } : null,
      note: note ? { text: note, every } : null,
      pinned: [...this.pins.querySelectorAll("textarea")].map((field) => field.value.trim()).filter(Boolean),
      members: members.length > 1 ? members : [],
    };
    const different = (key) => JSON.stringify(now[key]) !== JSON.stringify(this.before[key]);
    return Object.fromEntries(Object.keys(now).filter(different).map((key) => [key, now[key]]));
  }

  tellCost() {
    element("scene-add-pin").disabled = this.pins.children.length >= PINNED_MAX;
    const changed = this.changes();
    const isBefore = ["persona", "pinned", "members"].some((key) => key in changed);
    const said = [];
    if (isBefore && this.tokens) {
      said.push(
        `This stands before the messages: the next reply computes the whole conversation again, at most ${count.format(this.tokens)} tokens, once.`,
      );
    }
    if (changed.note?.every) {
      said.push("The note is written into the conversation every so many messages, and costs its own tokens.");
    } else if (changed.note) {
      said.push("The note follows the newest message: every turn computes it and the reply before it again.");
    }
    const nothing = Object.keys(changed).length ? "This costs nothing." : "Nothing is changed.";
    element("scene-cost").textContent = said.join(" ") || nothing;
  }
}
