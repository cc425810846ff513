// The panel that shows what a reply's prompt was made of. Builds DOM nodes from text only; never calls
// the server: what asks it for the texts is handed in.

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

  /** `textsOf` promises the text of each part, or null where it cannot be had; it is asked once. */
  show(told, textsOf) {
    let texts = null;
    const ask = () => (texts ??= textsOf());
    const title = element("h2", "", "What the model read");
    title.id = "itemisation-title";
    const close = element("button", "primary", "Close");
    close.type = "button";
    close.addEventListener("click", () => this.dialog.close());
    const actions = element("div", "dialog-actions");
    actions.append(close);
    const notes = notesOf(told).map((text) => element("p", "", text));
    this.dialog.replaceChildren(title, ...notes, ...barOf(told), tableOf(told, ask), actions);
    this.dialog.showModal();
    close.focus();
  }
}

/** What stands above a chat whose oldest messages are left out, until somebody asks where it begins. */
export function contextOffer(onAsk) {
  const line = element("div", "context-offer");
  const button = element("button", "", "The oldest messages are left out of the prompt · Show where it begins");
  button.type = "button";
  button.addEventListener("click", () => {
    button.disabled = true;
    onAsk().finally(() => (button.disabled = false));
  });
  line.append(button);
  return line;
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
  cut.push(...told.parts_dropped.map((part) => `“${part.name}” (priority ${part.truncation_priority})`));
  if (cut.length) notes.push(`The window was full: left out are ${cut.join(", ")}.`);
  const detail = told.detail ? ` (${told.detail})` : "";
  const why = told.why.charAt(0).toUpperCase() + told.why.slice(1);
  notes.push(`Compared with the turn before: ${told.cause}${detail}. ${why}.`);
  if (!told.is_as_sent) notes.push("This is not what was sent: it is how the prompt would be made now.");
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

function tableOf(told, ask) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const name of ["Part", "Zone", "Tokens", "Cached"]) {
    const cell = element("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const [index, part] of told.parts.entries()) {
    const row = body.insertRow();
    const name = element("th");
    name.scope = "row";
    const open = element("button", "part-name", part.name);
    open.type = "button";
    open.title = "Show the text";
    open.setAttribute("aria-expanded", "false");
    open.addEventListener("click", () => toggle(row, open, async () => (await ask())?.[index]));
    const kind = element("small", "", kindOf(part));
    // Where the column has no room.
    if (part.zone !== part.source) kind.append(element("span", "part-zone", ` · ${part.zone}`));
    name.append(element("span", `zone-dot zone-${part.zone}`), open, kind);
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

/** Open or close the text of a part below its row. */
async function toggle(row, button, textOf) {
  const isOpen = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) {
    row.nextElementSibling?.matches(".part-text") && row.nextElementSibling.remove();
    return;
  }
  const below = element("tr", "part-text");
  const cell = element("td");
  cell.colSpan = row.cells.length;
  cell.append(element("pre", "", "…"));
  below.append(cell);
  row.after(below);
  const text = await textOf();
  cell.firstChild.textContent = text ?? "The text could not be read.";
}

/** What a part is, where its name does not say it: its role, and whether it is lore, a persona, a note. */
function kindOf(part) {
  return ["lore", "persona", "note"].includes(part.source) ? `${part.role} · ${part.source}` : part.role;
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
