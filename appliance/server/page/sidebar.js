// The list of conversations, and the drawer it is on a phone. Reports clicks; never calls the server.

import { iconButton } from "/page/icons.js";

const element = (id) => document.getElementById(id);
const BEFORE_MATCH = 8;

export class Sidebar {
  constructor({ onOpen, onNew, onCharacters, onDelete, onRename, onSearch, onOlder }) {
    this.handlers = { onOpen, onDelete, onRename };
    this.list = element("conversations");
    this.root = element("sidebar");
    this.scrim = element("scrim");
    this.opener = element("open-sidebar");
    this.phone = matchMedia("(max-width: 760px)");
    element("new-chat").addEventListener("click", () => {
      this.close();
      onNew();
    });
    element("open-picker").addEventListener("click", () => {
      this.close();
      onCharacters();
    });
    this.field = element("search-text");
    element("search").addEventListener("submit", (event) => {
      event.preventDefault();
      onSearch(this.field.value.trim());
    });
    // The field is cleared by its own sign, by Escape or by hand: then all are listed again.
    this.field.addEventListener("input", () => {
      if (!this.field.value) onSearch("");
    });
    element("older").addEventListener("click", () => onOlder());
    this.opener.addEventListener("click", () => this.open());
    element("close-sidebar").addEventListener("click", () => this.close());
    this.scrim.addEventListener("click", () => this.close());
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isOpen) {
        event.stopPropagation();
        this.close();
      }
    });
    this.phone.addEventListener("change", () => this.setOpen(false));
    this.setOpen(false);
  }

  open() {
    this.setOpen(true);
    element("close-sidebar").focus();
  }

  close() {
    if (!this.isOpen) return;
    this.setOpen(false);
    this.opener.focus();
  }

  setOpen(isOpen) {
    this.isOpen = isOpen;
    this.root.classList.toggle("open", isOpen);
    this.scrim.hidden = !isOpen;
    this.opener.setAttribute("aria-expanded", String(isOpen));
    this.root.inert = this.phone.matches && !isOpen;
    element("main").inert = isOpen;
  }

  /** `asked` is what was searched for; `isComplete`: all of it; `hasOlder`: there are more to list. */
  show(conversations, currentId, { asked, isComplete, hasOlder }) {
    this.asked = asked;
    this.showRows(conversations.map((item) => this.row(item, item.id === currentId)));
    element("search").hidden = !asked && !conversations.length;
    element("older").hidden = !hasOlder;
    const isEmpty = !conversations.length;
    if (!isComplete) this.say("Not all has been looked at yet: search again in a moment.");
    else if (asked) this.say(isEmpty ? `Nothing holds “${asked}”.` : "");
    else this.say(isEmpty ? "Conversations you start are kept here." : "");
  }

  /** New rows for old ones, but for a title that is being written. The keyboard stays where it was. */
  showRows(rows) {
    const held = this.list.contains(document.activeElement) && document.activeElement;
    if (held && held.matches(".row-input")) return;
    const at = held ? [...this.list.children].indexOf(held.closest(".row")) : -1;
    this.list.replaceChildren(...rows);
    if (held) this.focusRow(at, held.title);
  }

  /** Give the keyboard this row, or the last one, unless it has a place; there the button of this title. */
  focusRow(at, title = "") {
    if (document.activeElement !== document.body) return;
    const buttons = [...(this.list.children[Math.min(at, this.list.children.length - 1)]?.children ?? [])];
    (buttons.find((button) => button.title === title) ?? buttons[0])?.focus();
  }

  clearSearch() {
    this.field.value = "";
  }

  /** A sentence about the list. */
  say(sentence) {
    element("sidebar-foot").textContent = sentence;
  }

  row(conversation, current) {
    const row = document.createElement("li");
    row.className = current ? "row current" : "row";
    const name = conversation.shown;
    const open = document.createElement("button");
    open.type = "button";
    open.className = "row-open";
    open.textContent = name;
    open.title = name;
    if (conversation.match) {
      const match = document.createElement("span");
      match.className = "row-match";
      match.textContent = around(this.asked, conversation.match.excerpt);
      open.append(match);
    }
    if (current) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => {
      this.close();
      this.handlers.onOpen(conversation.id);
    });
    open.addEventListener("dblclick", () => this.rename(row, conversation));
    row.append(
      open,
      iconButton("pencil", `Rename “${name}”`, "row-action", () => this.rename(row, conversation)),
      iconButton("trash", `Delete “${name}”`, "row-action", () => this.handlers.onDelete(conversation)),
    );
    return row;
  }

  rename(row, conversation) {
    const input = document.createElement("input");
    input.className = "row-input";
    input.value = conversation.title ?? "";
    input.maxLength = 200;
    input.setAttribute("aria-label", "New title");
    let settled = false;
    const settle = (save) => {
      if (settled) return;
      settled = true;
      const isLeft = document.activeElement !== input;
      row.replaceChildren(...before);
      if (!isLeft) open.focus();
      this.handlers.onRename(conversation, save ? input.value.trim() : "");
    };
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") {
        // Else it would press the button that has the keyboard next.
        event.preventDefault();
        settle(true);
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        settle(false);
      }
    });
    input.addEventListener("blur", () => settle(true));
    const before = [...row.children];
    const open = row.querySelector(".row-open");
    row.replaceChildren(input);
    input.focus();
    input.select();
  }
}

/** An excerpt from a few words before what was searched for: a row has little room. */
function around(asked, excerpt) {
  const at = excerpt.toLowerCase().indexOf(asked.toLowerCase());
  const start = excerpt.lastIndexOf(" ", at - BEFORE_MATCH);
  return at > BEFORE_MATCH && start > 0 ? `…${excerpt.slice(start)}` : excerpt;
}
