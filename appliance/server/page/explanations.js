// What replies' prompts were made of, asked for when somebody wants to see it: as a panel, and as the line
// where a conversation's context begins.

import { call } from "/page/api.js";
import { Itemisation } from "/page/itemisation.js";

const KEPT_MAX = 32;

export class Explanations {
  constructor({ conversations, transcript, guarded }) {
    this.conversations = conversations;
    this.transcript = transcript;
    this.guarded = guarded;
    this.panel = new Itemisation();
    this.kept = new Map();
  }

  /** Where something was cut, the newest reply's prompt says where the context begins: once it is asked. */
  showContext() {
    const reply = this.conversations.newestReply();
    if (!reply || !this.conversations.current?.is_cut) return;
    const told = this.kept.get(reply.id);
    if (told) this.transcript.showContext(told.context_begins_at, told.messages_dropped);
    else this.transcript.offerContext(() => this.askContext(reply));
  }

  async askContext(reply) {
    await this.guarded(() => this.of(reply));
    this.showAgain(reply);
  }

  /** Open the panel of a reply's prompt. */
  async itemise(message) {
    const address = this.addressOf(message);
    const told = await this.guarded(() => this.of(message));
    if (!told) return;
    this.panel.show(told, async () => {
      const prompt = await this.guarded(() => call("GET", `${address}/prompt`));
      return prompt ? prompt.parts.map((part) => part.text) : null;
    });
    this.showAgain(message);
  }

  /** What was told of a reply may be what the chat waits for, if it is still the newest that is shown. */
  showAgain(reply) {
    const isShown = !this.transcript.isWriting && this.conversations.newestReply()?.id === reply.id;
    if (isShown && this.kept.has(reply.id)) this.showContext();
  }

  /** What a reply's prompt was made of. Work for the whole conversation: the newest answers are kept. */
  async of(message) {
    const told = await call("GET", `${this.addressOf(message)}/explain`);
    this.kept.delete(message.id);
    this.kept.set(message.id, told);
    if (this.kept.size > KEPT_MAX) this.kept.delete(this.kept.keys().next().value);
    return told;
  }

  addressOf(message) {
    return `/api/conversations/${this.conversations.current.id}/messages/${message.id}`;
  }
}
