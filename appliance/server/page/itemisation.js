// The panel that shows what a reply's prompt was made of. Builds DOM nodes from text only; never calls
// the server.

const ZONES = ["static", "character", "persona", "pinned", "history", "volatile"];
const count = new Intl.NumberFormat("en");

export class Itemisation {
  constructor() {
    this.dialog = element("dialog", "dialog itemisation");
    this.dialog.setAttribute("aria-labelledby", "itemisation-title");
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    document.body.append(this.dialog);
  }

  show(told) {
    const title = element("h2", "", "What the model read");
    title.id = "itemisation-title";
    const close = element("button", "primary", "Close");
    close.type = "button";
    close.addEventListener("click", () => this.dialog.close());
    const actions = element("div", "dialog-actions");
    actions.append(close);
    const notes = notesOf(told).map((text) => element("p", "", text));
    this.dialog.replaceChildren(title, ...notes, ...barOf(told), tableOf(told), actions);
    this.dialog.showModal();
    close.focus();
  }
}

/** The line above the first message that the model still reads. */
export function contextLine(dropped) {
  const line = element("div", "context-line");
  line.setAttribute("role", "separator");
  const above = dropped === 1 ? "1 message above is" : `${count.format(dropped)} messages above are`;
  line.append(element("span", "", `Context begins here · ${above} left out`));
  return line;
}

function notesOf(told) {
  const room = told.limit - told.reserve;
  const notes = [
    `${count.format(told.tokens)} tokens of at most ${count.format(room)}` +
      (told.cached_tokens === null ? "" : `, ${count.format(told.cached_tokens)} of them from the cache`) +
      ".",
  ];
  const cut = [];
  if (told.messages_dropped) cut.push(`${count.format(told.messages_dropped)} of the oldest messages`);
  cut.push(...told.parts_dropped.map((name) => `“${name}”`));
  if (cut.length) notes.push(`The window was full: left out are ${cut.join(", ")}.`);
  const detail = told.detail ? ` (${told.detail})` : "";
  notes.push(`Against the turn before: ${told.cause}${detail} – ${told.why}.`);
  if (!told.is_as_sent) notes.push("The prompt that was sent had another size: this is how it would be made now.");
  return notes;
}

function barOf(told) {
  const bar = element("div", "zone-bar");
  bar.setAttribute("aria-hidden", "true");
  const legend = element("ul", "zone-legend");
  for (const zone of ZONES) {
    const tokens = sum(told.parts.filter((part) => part.zone === zone));
    if (!tokens) continue;
    const stretch = element("span", `zone-${zone}`);
    stretch.style.flexGrow = tokens;
    bar.append(stretch);
    const item = element("li");
    item.append(element("span", `zone-dot zone-${zone}`), `${zone} ${count.format(tokens)}`);
    legend.append(item);
  }
  // As the sentence above counts: what a prompt may still take, and apart from it the reply's room.
  const room = told.limit - told.reserve;
  for (const [name, tokens] of [
    ["free", Math.max(room - told.tokens, 0)],
    ["for the reply", Math.min(told.reserve, told.limit - told.tokens)],
  ]) {
    const kind = name === "free" ? "zone-free" : "zone-reply";
    const rest = element("span", kind);
    rest.style.flexGrow = tokens;
    bar.append(rest);
    const item = element("li");
    item.append(element("span", `zone-dot ${kind}`), `${name} ${count.format(tokens)}`);
    legend.append(item);
  }
  return [bar, legend];
}

function tableOf(told) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const name of ["Part", "Zone", "Tokens", "Cached"]) {
    const cell = element("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const part of told.parts) {
    const row = body.insertRow();
    const name = element("th");
    name.scope = "row";
    name.append(element("span", `zone-dot zone-${part.zone}`), part.name, element("small", "", part.role));
    row.append(name);
    row.insertCell().textContent = part.zone;
    row.insertCell().textContent = count.format(part.tokens);
    row.insertCell().textContent = part.cached === null ? "?" : count.format(part.cached);
    if (part.message_id && part.message_id === told.context_begins_at) row.className = "begins";
  }
  const scroller = element("div", "parts");
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "group");
  scroller.setAttribute("aria-label", "Parts of the prompt");
  scroller.append(table);
  return scroller;
}

function sum(parts) {
  return parts.reduce((total, part) => total + part.tokens, 0);
}

function element(name, className = "", text = null) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
}
