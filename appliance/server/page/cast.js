// Whom one can talk to: read from the server, chosen, brought in from cards, saved as cards, taken away.

import { ApiError, call, download, imageUrl, upload } from "/page/api.js";
import { shownName } from "/page/names.js";
import { Picker } from "/page/picker.js";
import { portrait } from "/page/portrait.js";
import { confirmed } from "/page/questions.js";

const LINK_KEPT_MS = 10_000;
const MIB = 1024 * 1024;
// As the server has it: a connection that it ends in the middle of a file tells no browser why.
const CARD_BYTES_MAX = 16 * MIB;

export class Cast {
  /** `onBegin` takes the character that was chosen; `currentId` tells whose conversation is shown. */
  constructor({ onBegin, currentId, guarded }) {
    this.characters = [];
    this.mayImport = false;
    this.currentId = currentId;
    this.guarded = guarded;
    this.images = new Map();
    this.picker = new Picker({
      onChoose: (character) => {
        this.picker.close();
        onBegin(character);
      },
      onFiles: (files) => this.bringIn(files),
      onExport: (character) => this.told(() => this.save(character)),
      onRemove: (character) => this.told(() => this.remove(character)),
      portraitOf: (character) => this.imageOf(character),
    });
  }

  async refresh() {
    const { characters, may_import: mayImport } = await call("GET", "/v1/characters");
    const named = characters.map((item) => ({ ...item, name: shownName(item.name) || item.id }));
    this.characters = named.map((item, index) => {
      const isNamesake = named.some((other) => other.name === item.name && other.id !== item.id);
      return {
        ...item,
        // What tells it from others that are called the same.
        mark: isNamesake ? item.id : "",
        description: shownName(item.description),
        is_default: index === 0,
      };
    });
    this.mayImport = mayImport;
    this.showPicker();
  }

  openPicker() {
    this.showPicker();
    this.picker.open();
  }

  showPicker() {
    this.picker.show(this.characters, { mayImport: this.mayImport, currentId: this.currentId() });
  }

  /** A character; the default one, which comes first, where none is named. */
  get(id) {
    return id ? this.characters.find((item) => item.id === id) : this.characters[0];
  }

  nameOf(id) {
    return this.get(id)?.name ?? id;
  }

  /** What a conversation is called; before it has a title, by whom it is with. */
  titleOf(conversation) {
    if (conversation?.title) return shownName(conversation.title) || "Untitled";
    const character = this.get(conversation?.character);
    return !character || character.is_default ? "New conversation" : character.name;
  }

  portraitOf(character) {
    return portrait(character, (shown) => this.imageOf(shown));
  }

  /** The image of a character as an address, asked for once a version. */
  imageOf({ avatar }) {
    if (!this.images.has(avatar)) {
      const asked = imageUrl(avatar).catch((error) => {
        if (!error.status) this.images.delete(avatar); // the server was away: it may have the image later
        return null;
      });
      this.images.set(avatar, asked);
    }
    return this.images.get(avatar);
  }

  /** Import cards one after the other; each that is refused says why, the others are there. */
  async bringIn(files) {
    this.openPicker();
    this.picker.setBusy(true);
    const said = [];
    let refused = 0;
    let last = null;
    for (const file of files) {
      const fileName = shownName(file.name);
      this.picker.say([`Importing ${fileName} …`]);
      try {
        if (file.size > CARD_BYTES_MAX) throw new ApiError(tooLarge(file.size));
        const { character, warnings, created } = await upload("/v1/characters", file);
        last = character.id;
        const name = shownName(character.name) || character.id;
        said.push(created ? `${name} is here.` : `${name} was here already.`);
        said.push(...warnings);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        refused += 1;
        said.push(`${fileName} was not imported: ${error.message}`);
      }
    }
    this.picker.setBusy(false);
    if (last) await this.guarded(() => this.refresh());
    this.picker.say(said, { bad: refused > 0 });
    if (last) this.picker.focusOn(last);
  }

  /** Do something with a character; what is refused stands in the picker. */
  async told(deed) {
    try {
      await deed();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.picker.say([error.message], { bad: true });
    }
  }

  /** Save a character as a card of the newest version; what no card can hold is said. */
  async save(character) {
    const { blob, name, left } = await download(`/v1/characters/${character.id}/card?version=3`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), LINK_KEPT_MS);
    this.picker.say([`${character.name} is saved as ${name}.`, ...(left ? [`A card cannot hold: ${left}.`] : [])]);
  }

  async remove(character) {
    const isSure = await confirmed({
      title: `Take ${character.name} from the list?`,
      text: "No new conversation can begin with this character. Those that have begun go on.",
      deed: "Take away",
    });
    if (!isSure) return;
    const path = `/v1/characters/${character.id}`;
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
    const at = this.characters.indexOf(character);
    await this.refresh();
    this.picker.say([`${character.name} is no longer listed.`]);
    this.picker.focusOn(this.characters[Math.max(at - 1, 0)]?.id);
  }
}

function tooLarge(bytes) {
  return `it has ${Math.ceil((10 * bytes) / MIB) / 10} MiB, a card may have ${CARD_BYTES_MAX / MIB} MiB.`;
}
