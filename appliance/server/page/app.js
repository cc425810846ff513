// The chat page: wires its parts together, and shows what the conversation that is shown has changed.

import { ApiError, call, hasKey } from "/page/api.js";
import { Cast } from "/page/cast.js";
import { Composer } from "/page/composer.js";
import { Conversations } from "/page/conversations.js";
import { Explanations } from "/page/explanations.js";
import { Failures } from "/page/failures.js";
import { fillIcons } from "/page/icons.js";
import { confirmed } from "/page/questions.js";
import { Readiness } from "/page/readiness.js";
import { ScenePanel } from "/page/scene.js";
import { Sidebar } from "/page/sidebar.js";
import { Transcript } from "/page/transcript.js";
import { Turns } from "/page/turns.js";

const element = (id) => document.getElementById(id);

const conversations = new Conversations();
const readiness = new Readiness({ onReady: () => goOn() });
// What failed may be the engine: that is said now, not at the next poll.
const failures = new Failures({ onKey: () => start(), onFailure: () => readiness.poll() });
const guarded = (action) => failures.guarded(action);

const cast = new Cast({
  onBegin: (character) => beginWith(character),
  currentId: () => speaker()?.id,
  guarded,
});
const composer = new Composer({ onSend: (text) => turns.send(text), onStop: () => turns.stop() });
const transcript = new Transcript({
  onRegenerate: (message) => turns.regenerate(message),
  onEdit: (message, text) => turns.send(text, { parentId: message.parent_id, isEdit: true }),
  onShow: (message) => showVersion(message),
  onSuggest: (text) => turns.send(text),
  onItemise: (message) => explanations.itemise(message),
  onChoose: () => cast.openPicker(),
  speakerOf: (reply) => speakerOf(reply),
});
const explanations = new Explanations({ conversations, transcript, guarded });
const turns = new Turns({ conversations, transcript, composer, failures, announce, onEnd: () => endTurn() });
const sidebar = new Sidebar({
  onOpen: (id) => open(id),
  onNew: () => startNew(),
  onCharacters: () => cast.openPicker(),
  onDelete: (conversation) => remove(conversation),
  onRename: (conversation, title) => rename(conversation, title),
  onSearch: (text) => search(text),
  onOlder: () => listOlder(),
});
const scenePanel = new ScenePanel({ onSave: (changes) => saveScene(changes) });

// ---- what is shown ----

function show() {
  const { current, tree } = conversations;
  showList();
  const title = cast.titleOf(current);
  element("title").textContent = title;
  document.title = current ? `${title} – Chat` : "Chat";
  showSpeaker();
  composer.showMembers((current?.members ?? []).map((id) => [id, cast.nameOf(id)]));
  if (turns.running) return;
  if (tree.byId.size) transcript.show(tree, false);
  else transcript.showEmpty(speaker()?.suggestions ?? []);
  explanations.showContext();
}

function showList() {
  const { list, current, asked, isComplete, next } = conversations;
  const titled = list.map((item) => ({ ...item, shown: cast.titleOf(item) }));
  sidebar.show(titled, current?.id ?? null, { asked, isComplete, hasOlder: next !== null });
}

/** Who answers here: the conversation's character, or the default one. */
function speaker() {
  return cast.get(conversations.current?.character);
}

/** Who says a reply, where several are here: a greeting is the character's whose conversation it is. */
function speakerOf(reply) {
  const { members, character } = conversations.current ?? {};
  const id = reply.speaker ?? (members?.length ? character : null);
  return id && cast.nameOf(id);
}

function showSpeaker() {
  const character = conversations.current && speaker();
  const key = character ? `${character.id} ${character.avatar}` : "";
  const place = element("speaker");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.hidden = !character;
  place.title = character?.name ?? "";
  place.replaceChildren(...(character ? [cast.portraitOf(character)] : []));
}

function announce(text) {
  element("announce").textContent = text;
}

// ---- conversations ----

async function refresh() {
  await conversations.refresh();
  show();
}

/** Show a conversation. It is a place to come back to, unless the reader comes from there (`back`). */
async function open(id, { back = false } = {}) {
  turns.leave();
  failures.say(null);
  if (!back && id !== conversations.wantedId) history.pushState(null, "", `#${id}`);
  conversations.wantedId = id;
  try {
    await guarded(() => conversations.load(id));
  } finally {
    show();
    transcript.follow();
    if (matchMedia("(hover: hover)").matches) composer.focus();
  }
}

function startNew({ back = false } = {}) {
  turns.leave();
  failures.say(null);
  if (!back && conversations.wantedId) history.pushState(null, "", location.pathname);
  conversations.wantedId = null;
  conversations.clear();
  const wasSearched = endSearch();
  show();
  composer.focus();
  if (wasSearched) guarded(refresh);
}

/** A new conversation with a character, whose greetings are there to swipe between. */
async function beginWith(character) {
  await guarded(async () => {
    const created = await conversations.create({ character: character.id });
    endSearch();
    await refresh();
    await open(created.id);
  });
}

/** The browser's back and forward. */
function showPlace() {
  const id = location.hash.slice(1);
  if (id) open(id, { back: true });
  else startNew({ back: true });
}

async function rename(conversation, title) {
  if (title && title !== conversation.title) {
    await guarded(() => conversations.change(conversation.id, { title }));
  }
  await guarded(refresh);
}

async function remove(conversation) {
  const isSure = await confirmed({
    title: "Delete this conversation?",
    text: `“${cast.titleOf(conversation)}” and all its messages will be gone for good.`,
    deed: "Delete",
  });
  // The rows may have been made anew while it was asked: the button that was pressed is then gone.
  const at = conversations.list.findIndex((item) => item.id === conversation.id);
  if (isSure) {
    if (conversation.id === conversations.current?.id) startNew();
    await guarded(() => conversations.remove(conversation.id));
    await guarded(refresh);
  }
  sidebar.focusRow(at);
}

async function search(text) {
  await guarded(async () => {
    try {
      await conversations.search(text);
      showList();
    } catch (error) {
      // Too short a text, above all: said where it was written.
      if (error.status !== 400) throw error;
      sidebar.say(error.message);
    }
  });
}

/** What is new is to be seen in the list; whether anything had been searched for. */
function endSearch() {
  const wasSearched = Boolean(conversations.asked);
  conversations.asked = "";
  sidebar.clearSearch();
  return wasSearched;
}

async function listOlder() {
  await guarded(() => conversations.readOlder());
  showList();
}

async function showVersion(message) {
  await guarded(async () => {
    await conversations.showVersion(message);
    show();
  });
}

// ---- what the reader sets ----

function openScene() {
  const empty = { persona: null, note: null, pinned: [], members: [] };
  scenePanel.open({
    scene: { ...empty, ...(conversations.current ?? {}) },
    own: speaker()?.id,
    characters: cast.characters,
    tokens: conversations.newestReply()?.usage.prompt_tokens ?? 0,
  });
}

async function saveScene(changes) {
  try {
    if (Object.keys(changes).length) await keepScene(changes);
    scenePanel.close();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    scenePanel.say(error.message);
  }
}

async function keepScene(changes) {
  const { current } = conversations;
  if (!current) {
    await open((await conversations.create(changes)).id);
  } else {
    const changed = await conversations.change(current.id, changes);
    conversations.current = { ...current, ...changed };
    if (changed.recompute_tokens) {
      announce(`The next reply computes at most ${changed.recompute_tokens} tokens again.`);
    }
  }
  await guarded(refresh);
}

/** How the server took it is asked at once: what it could not store yet is said. */
function endTurn() {
  show();
  readiness.poll();
}

// ---- the beginning ----

let starts = 0;
let hasStarted = false;

/** Nothing is in the way any more. */
function goOn() {
  failures.goOn();
  if (!hasStarted) start();
}

async function start() {
  hasStarted = true;
  const number = ++starts;
  // Read now: a message sent while the answers below are on their way sets it too.
  const wanted = location.hash.slice(1);
  const isThrough = await guarded(async () => {
    await refresh();
    const isThere = conversations.list.some((item) => item.id === wanted);
    if (isThere && !conversations.wantedId && !turns.running) await open(wanted, { back: true });
    await cast.refresh();
    // The operator's pages; a link cannot bring a key along.
    element("open-experiments").hidden = !cast.mayImport || hasKey();
    readiness.setModel((await call("GET", "/v1/models")).data[0]?.id ?? "");
    show();
    return true;
  });
  if (number === starts) hasStarted = Boolean(isThrough);
}

element("open-scene").addEventListener("click", openScene);
addEventListener("popstate", showPlace);
fillIcons();
show();
readiness.poll();
start();
