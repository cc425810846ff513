// Shows the messages of one conversation and the reply that is being written. Builds DOM nodes from
// text only; reports clicks; never calls the server.

import { icon, iconButton } from "/page/icons.js";
import { contextLine, contextOffer } from "/page/itemisation.js";
import { render } from "/page/markdown.js";

const NEAR_END_PX = 56;
const COPIED_SHOWN_MS = 1500;
const count = new Intl.NumberFormat("en");

export class Transcript {
  constructor({ onRegenerate, onEdit, onShow, onSuggest, onItemise, onChoose, speakerOf }) {
    this.handlers = { onRegenerate, onEdit, onShow, onSuggest, onItemise, onChoose };
    this.speakerOf = speakerOf;
    this.held = null;
    this.root = document.getElementById("transcript");
    this.scroller = document.getElementById("scroller");
    this.latest = document.getElementById("to-latest");
    this.following = true;
    this.live = null;
    this.scroller.addEventListener("scroll", () => this.noticeScroll(), { passive: true });
    this.latest.addEventListener("click", () => this.follow());
    new ResizeObserver(() => this.keepUp()).observe(this.root);
    new ResizeObserver(() => this.keepUp()).observe(this.scroller);
  }

  /** The reader decides: scrolling up stops the following, reaching the end starts it again. */
  noticeScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const distance = scrollHeight - scrollTop - clientHeight;
    if (scrollTop < (this.lastTop ?? 0) && distance > NEAR_END_PX) this.following = false;
    else if (distance <= NEAR_END_PX) this.following = true;
    this.lastTop = scrollTop;
    this.latest.hidden = distance <= NEAR_END_PX || this.following;
  }

  keepUp() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.noticeScroll();
  }

  follow() {
    this.following = true;
    this.keepUp();
  }

  showEmpty(suggestions) {
    const box = document.createElement("div");
    box.className = "empty";
    const title = document.createElement("h2");
    title.textContent = "What shall we talk about?";
    const text = document.createElement("p");
    text.textContent =
      "Every reply shows how much of its prompt was already in the cache, and every turn is kept in the database before it counts as done.";
    const list = document.createElement("div");
    list.className = "suggestions";
    for (const suggestion of suggestions) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = suggestion;
      button.addEventListener("click", () => this.handlers.onSuggest(suggestion));
      list.append(button);
    }
    const choose = document.createElement("button");
    choose.type = "button";
    choose.className = "choose";
    choose.textContent = "or choose whom to talk to";
    choose.addEventListener("click", () => this.handlers.onChoose());
    box.append(title, text, list, choose);
    this.live = null;
    this.root.replaceChildren(box);
  }

  show(tree, busy) {
    this.live = null;
    this.holdFocus();
    this.root.replaceChildren(
      ...tree.path().map((message) => this.message(message, tree.siblings(message), busy)),
    );
    if (!busy) this.giveFocusBack();
  }

  /** The keyboard's place is among buttons that are about to be made anew. */
  holdFocus() {
    const button = this.root.contains(document.activeElement) && document.activeElement;
    const article = button && button.closest(".message");
    if (!article) return;
    this.held = { at: [...this.root.querySelectorAll(".message")].indexOf(article), label: button.title };
  }

  /** The same button of the message that stands there now, or its neighbour, unless the reader went on. */
  giveFocusBack() {
    const { held } = this;
    this.held = null;
    if (!held || document.activeElement !== document.body) return;
    const buttons = [...(this.root.querySelectorAll(".message")[held.at]?.querySelectorAll(".tool:enabled") ?? [])];
    (buttons.find((button) => button.title === held.label) ?? buttons[0])?.focus({ preventScroll: true });
  }

  /** Offer to say where the context begins, as older messages are left out. */
  offerContext(onAsk) {
    this.root.prepend(contextOffer(onAsk));
    this.keepUp();
  }

  /** Say where the context begins: above this message, which is shown. */
  showContext(messageId, dropped) {
    for (const line of this.root.querySelectorAll(".context-line, .context-offer")) line.remove();
    const first = messageId && this.root.querySelector(`[data-id="${CSS.escape(messageId)}"]`);
    if (first) first.before(contextLine(dropped));
    this.keepUp();
  }

  message(message, siblings, busy) {
    const article = document.createElement("article");
    article.className = `message ${message.role}`;
    article.setAttribute("aria-label", message.role === "user" ? "You" : "Reply");
    const body = document.createElement("div");
    body.className = "body";
    if (message.role === "user") body.textContent = message.text;
    else body.append(render(message.text));
    article.dataset.id = message.id;
    const who = message.role === "assistant" && this.whoLine(message);
    if (who) article.append(who);
    article.append(body);
    if (message.role === "assistant") {
      const ending = endingOf(message);
      if (ending) article.append(ending);
    }
    const tools = document.createElement("div");
    tools.className = "tools";
    if (siblings.length > 1) tools.append(this.swipes(message, siblings, busy));
    if (message.role === "user") {
      tools.append(tool("pencil", "Edit this message", busy, () => this.edit(article, message)));
    } else if (message.parent_id !== null) {
      // A greeting is the character's own: there is no prompt it could be made from again.
      tools.append(tool("again", "Regenerate this reply", busy, () => this.handlers.onRegenerate(message)));
    }
    tools.append(tool("copy", "Copy the text", false, (event) => copy(event.currentTarget, message.text)));
    if (message.usage) {
      tools.append(tool("parts", "What the model read for this reply", false, () => this.handlers.onItemise(message)));
      tools.append(meter(message.usage));
    }
    article.append(tools);
    return article;
  }

  /** Who speaks, where there are several. */
  whoLine(reply) {
    const name = this.speakerOf(reply);
    if (!name) return null;
    const line = document.createElement("p");
    line.className = "who";
    line.textContent = name;
    return line;
  }

  /** The turn has begun, and this member answers. */
  speaks(reply) {
    const who = this.live && this.whoLine(reply);
    if (who) this.live.body.before(who);
  }

  swipes(message, siblings, busy) {
    const at = siblings.findIndex((sibling) => sibling.id === message.id);
    const box = document.createElement("span");
    box.className = "swipes";
    const place = document.createElement("span");
    place.textContent = `${at + 1}/${siblings.length}`;
    place.setAttribute("aria-label", `Version ${at + 1} of ${siblings.length}`);
    const show = (index) => this.handlers.onShow(siblings[index]);
    box.append(
      tool("left", "Previous version", busy || at === 0, () => show(at - 1)),
      place,
      tool("right", "Next version", busy || at === siblings.length - 1, () => show(at + 1)),
    );
    return box;
  }

  edit(article, message) {
    const form = document.createElement("form");
    form.className = "editor";
    const field = document.createElement("textarea");
    field.value = message.text;
    field.setAttribute("aria-label", "Your message");
    field.rows = Math.min(12, message.text.split("\n").length + 1);
    const actions = document.createElement("div");
    actions.className = "dialog-actions";
    const cancel = document.createElement("button");
    cancel.type = "button";
    cancel.textContent = "Cancel";
    const save = document.createElement("button");
    save.className = "primary";
    save.textContent = "Send again";
    actions.append(cancel, save);
    form.append(field, actions);
    const before = [...article.childNodes];
    const close = () => {
      article.replaceChildren(...before);
      article.querySelector(".tool")?.focus({ preventScroll: true });
    };
    cancel.addEventListener("click", close);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) this.handlers.onEdit(message, field.value.trim());
    });
    field.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    article.replaceChildren(form);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  /** Begin the reply that is being written, below the user's message when there is a new one. */
  begin(userText) {
    if (this.root.querySelector(".empty")) this.root.replaceChildren();
    if (userText !== null) {
      const article = document.createElement("article");
      article.className = "message user";
      article.setAttribute("aria-label", "You");
      const body = document.createElement("div");
      body.className = "body";
      body.textContent = userText;
      article.append(body);
      this.root.append(article);
    }
    const article = document.createElement("article");
    article.className = "message assistant writing";
    article.setAttribute("aria-label", "Reply");
    article.setAttribute("aria-busy", "true");
    const body = document.createElement("div");
    body.className = "body";
    article.append(body);
    this.root.append(article);
    this.live = { article, body, text: "", scheduled: false, meter: null };
    this.follow();
  }

  /** The prompt's numbers are known before the first word. */
  usage(usage) {
    if (!this.live) return;
    this.live.meter?.remove();
    this.live.meter = meter(usage);
    this.live.article.append(this.live.meter);
  }

  append(text) {
    const live = this.live;
    if (!live) return;
    live.text += text;
    if (live.scheduled) return;
    live.scheduled = true;
    requestAnimationFrame(() => {
      live.scheduled = false;
      live.body.replaceChildren(render(live.text));
    });
  }

  get isWriting() {
    return this.live !== null;
  }

  end() {
    this.live?.article.classList.remove("writing");
    this.live?.article.removeAttribute("aria-busy");
    this.live = null;
  }
}

function tool(name, label, disabled, onClick) {
  const button = iconButton(name, label, "tool", onClick);
  button.disabled = disabled;
  return button;
}

async function copy(button, text) {
  if (!(await putAside(text))) return;
  button.replaceChildren(icon("done"));
  setTimeout(() => button.replaceChildren(icon("copy")), COPIED_SHOWN_MS);
}

/** Into the clipboard; resolves to whether it is there. A page that came without TLS is given none of its own. */
async function putAside(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const before = document.activeElement;
    const field = document.createElement("textarea");
    field.className = "hidden";
    field.value = text;
    document.body.append(field);
    field.select();
    const isThere = document.execCommand("copy");
    field.remove();
    before?.focus({ preventScroll: true });
    return isThere;
  }
}

function meter({ prompt_tokens: prompt, cached_tokens: cached }) {
  const percent = prompt ? Math.floor((100 * cached) / prompt) : 0;
  const box = document.createElement("div");
  box.className = "meter";
  const bar = document.createElement("span");
  bar.className = "meter-bar";
  bar.setAttribute("aria-hidden", "true");
  const fill = document.createElement("span");
  fill.style.width = `${percent}%`;
  bar.append(fill);
  const text = document.createElement("span");
  text.className = "meter-text";
  const counted = document.createElement("span");
  counted.className = "meter-count";
  counted.textContent = ` · ${count.format(cached)} of ${count.format(prompt)} tokens`;
  text.append(`${percent} % from cache`, counted);
  box.append(bar, text);
  return box;
}

function endingOf(message) {
  const text = {
    cancelled: "Stopped here.",
    length: "Cut at the length limit.",
    failed: "The reply failed here.",
  }[message.finish_reason];
  if (!text) return null;
  const note = document.createElement("p");
  note.className = "ending";
  note.textContent = text;
  return note;
}
