// The conversations as the server has them, and the one that is shown. Never touches the page.

import { call } from "/page/api.js";
import { Tree } from "/page/tree.js";

const LISTED_MAX = 100;

export class Conversations {
  constructor() {
    this.list = [];
    /** What is searched for; empty: all are listed. */
    this.asked = "";
    this.next = null;
    this.isComplete = true;
    /** What is to be shown, before it is there. */
    this.wantedId = null;
    this.clear();
  }

  /** Nothing is shown: a conversation that has not begun. */
  clear() {
    this.current = null;
    this.tree = new Tree([], null);
  }

  /** Read the newest of those that are listed. */
  async refresh() {
    this.list = await this.page({});
    this.current = this.list.find((item) => item.id === this.current?.id) ?? this.current;
  }

  /** List those too that are older than what is listed. */
  async readOlder() {
    this.list = [...this.list, ...(await this.page({ before: this.next }))];
  }

  /** List those that hold a text; all, where it is empty. */
  async search(text) {
    const before = this.asked;
    this.asked = text;
    try {
      await this.refresh();
    } catch (error) {
      this.asked = before;
      throw error;
    }
  }

  async page(from) {
    const query = new URLSearchParams({ limit: LISTED_MAX, ...(this.asked ? { search: this.asked } : {}), ...from });
    const { conversations, next, complete = true } = await call("GET", `/api/conversations?${query}`);
    this.next = next;
    this.isComplete = complete;
    return conversations;
  }

  /** Read a conversation; the answer counts only if it is still the one that is wanted. */
  async load(id) {
    const { messages, ...conversation } = await call("GET", `/api/conversations/${encodeURIComponent(id)}`);
    if (id !== this.wantedId) return;
    this.current = conversation;
    this.tree = new Tree(messages, conversation.head_id);
  }

  /** A new conversation, which is not shown yet. */
  create(fields) {
    return call("POST", "/api/conversations", fields);
  }

  change(id, fields) {
    return call("PATCH", `/api/conversations/${id}`, fields);
  }

  async remove(id) {
    await call("DELETE", `/api/conversations/${id}`);
  }

  /** Show another version of a message, with the newest of what follows it. */
  async showVersion(message) {
    const shown = this.tree;
    const head = shown.leaf(message);
    await this.change(this.current.id, { head_id: head.id });
    shown.headId = head.id;
  }

  /** The newest message of the path that was made by the model, and tells what its prompt took. */
  newestReply() {
    return this.tree.path().findLast((message) => message.usage);
  }
}
