// The chat page: holds what is shown, wires the parts together, runs one turn at a time.

import { ApiError, call, download, imageUrl, setKey, stream, upload } from "/page/api.js";
import { Picker, portrait } from "/page/characters.js";
import { fillIcons } from "/page/icons.js";
import { Itemisation } from "/page/itemisation.js";
import { shownName } from "/page/names.js";
import { ScenePanel } from "/page/scene.js";
import { Sidebar } from "/page/sidebar.js";
import { Transcript } from "/page/transcript.js";
import { Tree } from "/page/tree.js";

const READY_POLL_MS = 20_000;
const WAITING_POLL_MS = 2_000;
const EXPLAINED_MAX = 32;
// How replies are chosen is the character's to say, and the server's.
const REPLY = { max_tokens: 256 };

const element = (id) => document.getElementById(id);
const field = element("composer-text");
const state = {
  conversations: [],
  wantedId: null,
  current: null,
  tree: new Tree([], null),
  turn: null,
  model: "",
  characters: [],
  mayImport: false,
  portraits: new Map(),
  readyTimer: undefined,
  explained: new Map(),
};

const transcript = new Transcript({
  onRegenerate: (message) => regenerate(message),
  onEdit: (message, text) => send(text, { parentId: message.parent_id, isEdit: true }),
  onShow: (message) => showVersion(message),
  onSuggest: (text) => send(text),
  onItemise: (message) => itemise(message),
  onChoose: () => openPicker(),
  nameOf: (id) => nameOf(id),
});
const itemisation = new Itemisation();
const sidebar = new Sidebar({
  onOpen: (id) => open(id),
  onNew: () => startNew(),
  onCharacters: () => openPicker(),
  onDelete: (conversation) => remove(conversation),
  onRename: (conversation, title) => rename(conversation, title),
});

const picker = new Picker({
  onChoose: (character) => startWith(character),
  onFiles: (files) => bringIn(files),
  onExport: (character) => saveCard(character),
  onRemove: (character) => removeCharacter(character),
  portraitOf: (character) => portraitOf(character),
});

const scenePanel = new ScenePanel({ onSave: (changes) => saveScene(changes) });

// ---- what is shown ----

function show() {
  const titled = state.conversations.map((item) => ({ ...item, shown: titleOf(item) }));
  sidebar.show(titled, state.current?.id ?? null);
  const title = titleOf(state.current);
  element("title").textContent = title;
  document.title = state.current ? `${title} – Chat` : "Chat";
  showSpeaker();
  showMembers();
  if (state.turn) return;
  if (state.tree.byId.size) transcript.show(state.tree, false);
  else transcript.showEmpty(speaker()?.suggestions ?? []);
  showContext();
}

/** Where something was cut, the newest reply's prompt says where the context begins: once it is asked. */
function showContext() {
  const reply = newestReply();
  if (!reply || !state.current?.is_cut) return;
  const told = state.explained.get(reply.id);
  if (told) transcript.showContext(told.context_begins_at, told.messages_dropped);
  else transcript.offerContext(() => askContext(reply));
}

async function askContext(reply) {
  await guarded(() => explained(reply));
  if (!state.turn && newestReply() === reply) showContext();
}

function newestReply() {
  return state.tree.path().findLast((message) => message.usage);
}

async function itemise(message) {
  const told = await guarded(() => explained(message));
  if (!told) return;
  const address = addressOf(message);
  itemisation.show(told, async () => {
    const prompt = await guarded(() => call("GET", `${address}/prompt`));
    return prompt ? prompt.parts.map((part) => part.text) : null;
  });
  if (!state.turn) showContext();
}

/** What a reply's prompt was made of. Work for the whole conversation: the newest answers are kept. */
async function explained(message) {
  const told = await call("GET", `${addressOf(message)}/explain`);
  state.explained.delete(message.id);
  state.explained.set(message.id, told);
  if (state.explained.size > EXPLAINED_MAX) state.explained.delete(state.explained.keys().next().value);
  return told;
}

function addressOf(message) {
  return `/api/conversations/${state.current.id}/messages/${message.id}`;
}

/** What a conversation is called before it has a title: by whom it is with. */
function titleOf(conversation) {
  if (conversation?.title) return shownName(conversation.title) || "Untitled";
  const character = state.characters.find((item) => item.id === conversation?.character);
  const isDefault = !character || character === state.characters[0];
  return isDefault ? "New conversation" : character.name;
}

/** Who answers here: the conversation's character, or the default one, which comes first. */
function speaker() {
  const id = state.current?.character;
  return id ? state.characters.find((item) => item.id === id) : state.characters[0];
}

function nameOf(id) {
  return state.characters.find((item) => item.id === id)?.name ?? id;
}

/** In a group: who is to answer next. */
function showMembers() {
  const members = state.current?.members ?? [];
  const choice = element("next-speaker-choice");
  element("next-speaker").hidden = !members.length;
  const options = [["", "whoever is named, else the next"], ...members.map((id) => [id, nameOf(id)])];
  const key = JSON.stringify(options);
  if (choice.dataset.key === key) return;
  choice.dataset.key = key;
  choice.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}

function showSpeaker() {
  const character = speaker();
  const isNamed = Boolean(character && state.current);
  const key = isNamed ? `${character.id} ${character.avatar}` : "";
  const place = element("speaker");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.hidden = !isNamed;
  place.title = isNamed ? character.name : "";
  place.replaceChildren(...(isNamed ? [portrait(character, portraitOf)] : []));
}

function setBusy(busy) {
  element("send").hidden = busy;
  element("stop").hidden = !busy;
  element("stop").disabled = false;
}

function notice(text) {
  element("notice").textContent = text ?? "";
  element("notice").hidden = !text;
}

function announce(text) {
  element("announce").textContent = text;
}

/** Run an action; a failure becomes a sentence, a missing key the key dialog. */
async function guarded(action) {
  try {
    return await action();
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) await askForKey();
    else notice(error.message);
    // What failed may be the engine: say so now, not at the next poll.
    pollReady();
    return undefined;
  }
}

function askForKey() {
  const dialog = element("key-dialog");
  if (dialog.open) return Promise.resolve();
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const key = element("key-input").value.trim();
        element("key-input").value = "";
        if (key) {
          setKey(key);
          start();
        }
        resolve();
      },
      { once: true },
    );
  });
}

// ---- conversations ----

async function refreshList() {
  state.conversations = (await call("GET", "/api/conversations?limit=100")).conversations;
  const current = state.conversations.find((item) => item.id === state.current?.id);
  if (current) state.current = current;
  show();
}

/** Read a conversation; the answer counts only if it is still the one that is wanted. */
async function load(id) {
  const { messages, ...conversation } = await call("GET", `/api/conversations/${encodeURIComponent(id)}`);
  if (id !== state.wantedId) return;
  state.current = conversation;
  state.tree = new Tree(messages, conversation.head_id);
}

/** Show a conversation. It is a place to come back to, unless the reader comes from there (`back`). */
async function open(id, { back = false } = {}) {
  leaveTurn();
  notice(null);
  if (!back && id !== state.wantedId) history.pushState(null, "", `#${id}`);
  state.wantedId = id;
  try {
    await guarded(() => load(id));
  } finally {
    show();
    transcript.follow();
    if (matchMedia("(hover: hover)").matches) field.focus();
  }
}

function startNew({ back = false } = {}) {
  leaveTurn();
  notice(null);
  if (!back && state.wantedId) history.pushState(null, "", location.pathname);
  state.wantedId = null;
  state.current = null;
  state.tree = new Tree([], null);
  show();
  field.focus();
}

/** The browser's back and forward. */
function showPlace() {
  const id = location.hash.slice(1);
  if (id) open(id, { back: true });
  else startNew({ back: true });
}

async function rename(conversation, title) {
  if (title && title !== conversation.title) {
    await guarded(() => call("PATCH", `/api/conversations/${conversation.id}`, { title }));
  }
  await guarded(refreshList);
}

/** Ask before something is done that cannot be taken back. */
async function confirmed({ title, text, deed }) {
  const dialog = element("confirm-dialog");
  element("confirm-title").textContent = title;
  element("confirm-text").textContent = text;
  element("confirm-yes").textContent = deed;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue === "yes";
}

async function remove(conversation) {
  const isSure = await confirmed({
    title: "Delete this conversation?",
    text: `“${titleOf(conversation)}” and all its messages will be gone for good.`,
    deed: "Delete",
  });
  if (!isSure) return;
  if (conversation.id === state.current?.id) startNew();
  await guarded(() => call("DELETE", `/api/conversations/${conversation.id}`));
  await guarded(refreshList);
}

async function showVersion(message) {
  const head = state.tree.leaf(message);
  const changed = await guarded(() =>
    call("PATCH", `/api/conversations/${state.current.id}`, { head_id: head.id }),
  );
  if (changed === undefined) return;
  state.tree.headId = head.id;
  show();
}

// ---- characters ----

async function refreshCharacters() {
  const { characters, may_import: mayImport } = await call("GET", "/v1/characters");
  state.characters = characters.map((item, index) => ({
    ...item,
    name: shownName(item.name) || item.id,
    description: shownName(item.description),
    is_default: index === 0,
  }));
  state.mayImport = mayImport;
  picker.show(state.characters, { mayImport, currentId: speaker()?.id });
}

function openPicker() {
  picker.show(state.characters, { mayImport: state.mayImport, currentId: speaker()?.id });
  picker.open();
}

/** The picture of a character, asked for once a version. */
function portraitOf({ avatar }) {
  if (!state.portraits.has(avatar)) {
    state.portraits.set(avatar, imageUrl(avatar).catch(() => null));
  }
  return state.portraits.get(avatar);
}

/** A new conversation with a character, whose greetings are there to swipe between. */
async function startWith(character) {
  picker.close();
  await guarded(async () => {
    const created = await call("POST", "/api/conversations", { character: character.id });
    await refreshList();
    await open(created.id);
  });
}

/** Save a character as a card of the newest version; what no card can hold is said. */
async function saveCard(character) {
  try {
    const { blob, name, left } = await download(`/v1/characters/${character.id}/card?version=3`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    picker.say([`${character.name} is saved as ${name}.`, ...(left ? [`A card cannot hold: ${left}.`] : [])]);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    picker.say([error.message], { bad: true });
  }
}

async function removeCharacter(character) {
  const isSure = await confirmed({
    title: `Take ${character.name} from the list?`,
    text: "No new conversation can begin with this character. Those that have begun go on.",
    deed: "Take away",
  });
  if (!isSure) return;
  const path = `/v1/characters/${character.id}`;
  try {
    try {
      await call("DELETE", path);
    } catch (error) {
      if (error.code !== "label_protected") throw error;
      const isMeant = await confirmed({
        title: `${character.name} is protected`,
        text: "Somebody has protected this character, so that it is not taken away by mistake. Is it to go?",
        deed: "Take away all the same",
      });
      if (!isMeant) return;
      await call("DELETE", `${path}?confirm=production`);
    }
    await refreshCharacters();
    picker.say([`${character.name} is no longer listed.`]);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    picker.say([error.message], { bad: true });
  }
}

// ---- what the reader sets ----

function openScene() {
  const empty = { persona: null, note: null, pinned: [], members: [] };
  const newest = state.tree.path().findLast((message) => message.usage);
  scenePanel.open({
    scene: { ...empty, ...(state.current ?? {}) },
    own: state.current?.character ?? state.characters[0]?.id,
    characters: state.characters,
    tokens: newest?.usage.prompt_tokens ?? 0,
  });
}

async function saveScene(changes) {
  if (!Object.keys(changes).length) {
    scenePanel.close();
    return;
  }
  try {
    if (state.current) {
      const path = `/api/conversations/${state.current.id}`;
      const changed = await call("PATCH", path, changes);
      state.current = { ...state.current, ...changed };
      if (changed.recompute_tokens) {
        announce(`The next reply computes ${changed.recompute_tokens} tokens again.`);
      }
    } else {
      const created = await call("POST", "/api/conversations", changes);
      await open(created.id);
    }
    scenePanel.close();
    await guarded(refreshList);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    scenePanel.say(error.message);
  }
}

/** Import cards one after the other; each that is refused says why, the others are there. */
async function bringIn(files) {
  openPicker();
  picker.setBusy(true);
  const said = [];
  let refused = 0;
  let last = null;
  for (const file of files) {
    try {
      const { character, warnings, created } = await upload("/v1/characters", file);
      last = character.id;
      const name = shownName(character.name) || character.id;
      said.push(created ? `${name} is here.` : `${name} was here already.`);
      said.push(...warnings);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      refused += 1;
      said.push(`${shownName(file.name)} was not imported: ${error.message}`);
    }
  }
  picker.setBusy(false);
  await guarded(refreshCharacters);
  picker.say(said, { bad: refused > 0 });
  if (last) picker.focusOn(last);
}

// ---- turns ----

async function send(text, { parentId, isEdit = false } = {}) {
  if (state.turn || !text.trim()) return;
  notice(null);
  if (isEdit) hideFrom(parentId);
  const body = { text, ...speakerAsked(), ...REPLY };
  if (isEdit) body.parent_id = parentId;
  else if (state.tree.headId) body.parent_id = state.tree.headId;
  if (!isEdit) setComposer("");
  const taken = await runTurn("messages", body, text);
  // What was not accepted goes back into the field, unless the reader has written something else.
  if (!taken && !isEdit && !field.value) setComposer(text);
}

/** In a group, whom the reader wants to answer. */
function speakerAsked() {
  const speaker = state.current?.members?.length ? element("next-speaker-choice").value : "";
  return speaker ? { speaker } : {};
}

async function regenerate(message) {
  if (state.turn) return;
  notice(null);
  hideFrom(message.parent_id);
  await runTurn("regenerate", { message_id: message.id, ...speakerAsked(), ...REPLY }, null);
}

/** Show the conversation only up to a message: what follows is being replaced. */
function hideFrom(lastId) {
  state.tree.headId = lastId;
  transcript.show(state.tree, true);
}

/** One turn; resolves to whether the server took it. */
async function runTurn(action, body, userText) {
  const turn = { abort: new AbortController(), conversationId: state.current?.id ?? null, taken: false };
  state.turn = turn;
  setBusy(true);
  transcript.begin(userText);
  await guarded(async () => {
    if (!turn.conversationId) {
      const created = await call("POST", "/api/conversations", {});
      turn.conversationId = created.id;
      if (state.turn === turn) {
        state.wantedId = created.id;
        state.current = created;
        history.replaceState(null, "", `#${created.id}`);
      }
    }
    const path = `/api/conversations/${turn.conversationId}/${action}`;
    for await (const event of stream(path, body, turn.abort.signal)) {
      if (state.turn === turn) takeEvent(turn, event);
    }
    if (state.turn === turn && !turn.ended) throw new ApiError("The answer broke off. What had arrived is kept.");
  });
  await settleTurn(turn);
  return turn.taken;
}

function takeEvent(turn, { name, data }) {
  if (name === "turn") {
    turn.taken = true;
    transcript.speaks(data.speaker);
    transcript.usage({ prompt_tokens: data.prompt_tokens, cached_tokens: data.prefix_hit_tokens });
    if (data.messages_dropped) {
      announce(`The oldest ${data.messages_dropped} messages no longer fit and were left out.`);
    }
  } else if (name === "delta") {
    transcript.append(data.text);
  } else if (name === "done") {
    turn.ended = true;
    announce(data.finish_reason === "cancelled" ? "Stopped." : "The reply is complete.");
  } else if (name === "error") {
    turn.ended = true;
    throw new ApiError(data.error.message, { code: data.error.code });
  }
}

/** After a turn, show what the database holds: that is the truth, whatever happened on the way. */
async function settleTurn(turn) {
  if (state.turn !== turn) return;
  transcript.end();
  if (turn.conversationId) {
    // Until this is known, the next message would be put below the wrong one: the turn is not over.
    await guarded(() => load(turn.conversationId));
    await guarded(refreshList);
  }
  if (state.turn !== turn) return;
  state.turn = null;
  setBusy(false);
  show();
}

async function stop() {
  if (!state.turn?.conversationId) return;
  element("stop").disabled = true;
  const stopped = await guarded(() => call("POST", `/api/conversations/${state.turn.conversationId}/cancel`));
  if (stopped === undefined) element("stop").disabled = false;
}

/** Look at something else: the turn ends, and the server keeps what it had delivered. */
function leaveTurn() {
  if (!state.turn) return;
  state.turn.abort.abort();
  state.turn = null;
  transcript.end();
  setBusy(false);
}

// ---- the server's state ----

async function pollReady() {
  let ready = false;
  let text = "The server cannot be reached";
  try {
    const answer = await fetch("/ready", { cache: "no-store" });
    const told = await answer.json();
    ready = told.ready;
    text = ready ? state.model || "Ready" : told.reasons.map((reason) => reason.message).join(" · ");
  } catch {
    ready = false;
  }
  element("engine").classList.toggle("away", !ready);
  element("engine-text").textContent = text;
  element("engine").title = text;
  clearTimeout(state.readyTimer);
  state.readyTimer = setTimeout(pollReady, ready ? READY_POLL_MS : WAITING_POLL_MS);
}

// ---- the message field ----

function setComposer(text) {
  field.value = text;
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, 220)}px`;
}

field.addEventListener("input", () => setComposer(field.value));
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("composer").requestSubmit();
  }
});
element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(field.value.trim());
});
element("stop").addEventListener("click", stop);
element("open-scene").addEventListener("click", openScene);
addEventListener("popstate", showPlace);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.turn && !document.querySelector("dialog[open]")) stop();
});

async function start() {
  // Read now: a message sent while the answers below are on their way sets it too.
  const wanted = location.hash.slice(1);
  await guarded(async () => {
    await refreshList();
    const isThere = state.conversations.some((item) => item.id === wanted);
    if (isThere && !state.wantedId && !state.turn) await open(wanted, { back: true });
    await refreshCharacters();
    const models = await call("GET", "/v1/models");
    state.model = models.data[0]?.id ?? "";
    element("engine-text").textContent = state.model;
    show();
  });
}

fillIcons();
show();
pollReady();
start();
