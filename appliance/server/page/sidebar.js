// The list of conversations, and the drawer it is on a phone. Reports clicks; never calls the server.

import { iconButton } from "/page/icons.js";

const element = (id) => document.getElementById(id);

export class Sidebar {
  constructor({ onOpen, onNew, onCharacters, onDelete, onRename }) {
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

  show(conversations, currentId) {
    this.list.replaceChildren(...conversations.map((item) => this.row(item, item.id === currentId)));
    element("sidebar-foot").textContent = conversations.length
      ? ""
      : "Conversations you start are kept here.";
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
      this.handlers.onRename(conversation, save ? input.value.trim() : "");
    };
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") settle(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        settle(false);
      }
    });
    input.addEventListener("blur", () => settle(true));
    row.replaceChildren(input);
    input.focus();
    input.select();
  }
}
