// The tree of a conversation's messages: paths, siblings, newest leaves. Pure; never touches the page.

export class Tree {
  constructor(messages, headId) {
    this.byId = new Map(messages.map((message) => [message.id, message]));
    this.children = new Map();
    for (const message of messages) {
      const siblings = this.children.get(message.parent_id) ?? [];
      siblings.push(message);
      this.children.set(message.parent_id, siblings);
    }
    this.headId = headId;
  }

  add(message) {
    if (this.byId.has(message.id)) this.byId.delete(message.id);
    else this.children.set(message.parent_id, [...(this.children.get(message.parent_id) ?? []), message]);
    this.byId.set(message.id, message);
    const siblings = this.children.get(message.parent_id);
    siblings[siblings.findIndex((sibling) => sibling.id === message.id)] = message;
  }

  /** Messages from the first to the head. */
  path() {
    const path = [];
    for (let id = this.headId; id && this.byId.has(id); id = this.byId.get(id).parent_id) {
      path.push(this.byId.get(id));
    }
    return path.reverse();
  }

  siblings(message) {
    return this.children.get(message.parent_id) ?? [message];
  }

  /** The newest leaf below a message, or the message itself. */
  leaf(message) {
    let leaf = message;
    for (let below = this.children.get(leaf.id); below?.length; below = this.children.get(leaf.id)) {
      leaf = below[below.length - 1];
    }
    return leaf;
  }
}
