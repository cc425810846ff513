// One turn at a time: a message is sent, a reply made again, either stopped. Owns the turn that runs; what is
// shown of it is the transcript's.

import { ApiError, call, stream } from "/page/api.js";

// How replies are chosen is the character's to say, and the server's.
const REPLY = { max_tokens: 256 };

export class Turns {
  /** `announce` tells what a reader cannot see; `onEnd` shows what the server has, after a turn. */
  constructor({ conversations, transcript, composer, failures, announce, onEnd }) {
    this.conversations = conversations;
    this.transcript = transcript;
    this.composer = composer;
    this.failures = failures;
    this.announce = announce;
    this.onEnd = onEnd;
    this.running = null;
  }

  /** Say something: below the head, or, as an edit, below `parentId`. */
  async send(text, { parentId, isEdit = false } = {}) {
    if (this.running || !text.trim()) return;
    this.failures.say(null);
    if (isEdit) this.hideFrom(parentId);
    const body = { text, ...this.asked() };
    if (isEdit) body.parent_id = parentId;
    else if (this.conversations.tree.headId) body.parent_id = this.conversations.tree.headId;
    if (!isEdit) this.composer.setText("");
    const isTaken = await this.run("messages", body, text);
    // What was not accepted goes back into the field, unless the reader has written something else.
    if (!isTaken && !isEdit && !this.composer.text) this.composer.setText(text);
  }

  /** Another reply beside one. */
  async regenerate(message) {
    if (this.running) return;
    this.failures.say(null);
    this.hideFrom(message.parent_id);
    await this.run("regenerate", { message_id: message.id, ...this.asked() }, null);
  }

  /** Let the reply end here, with what has been shown of it. */
  async stop() {
    const id = this.running?.conversationId;
    if (!id) return;
    this.composer.setStopping(true);
    const stopped = await this.failures.guarded(() => call("POST", `/api/conversations/${id}/cancel`));
    if (stopped === undefined) this.composer.setStopping(false);
  }

  /** Look at something else: the turn ends, and the server keeps what it had delivered. */
  leave() {
    if (!this.running) return;
    this.running.abort.abort();
    this.running = null;
    this.transcript.end();
    this.composer.setBusy(false);
  }

  asked() {
    const speaker = this.composer.speaker;
    return speaker ? { speaker, ...REPLY } : REPLY;
  }

  /** Show the conversation only up to a message: what follows is being replaced. */
  hideFrom(lastId) {
    this.conversations.tree.headId = lastId;
    this.transcript.show(this.conversations.tree, true);
  }

  /** One turn; resolves to whether the server took it. */
  async run(action, body, userText) {
    const abort = new AbortController();
    const turn = { abort, conversationId: this.conversations.current?.id ?? null, isTaken: false, isOver: false };
    this.running = turn;
    this.composer.setBusy(true);
    this.transcript.begin(userText);
    await this.failures.guarded(async () => {
      if (!turn.conversationId) await this.open(turn);
      const path = `/api/conversations/${turn.conversationId}/${action}`;
      for await (const event of stream(path, body, abort.signal)) {
        if (this.running === turn) this.take(turn, event);
      }
      if (this.running === turn && !turn.isOver) {
        throw new ApiError("The answer broke off. What had arrived is kept.");
      }
    });
    await this.settle(turn);
    return turn.isTaken;
  }

  /** The conversation begins with its first message. */
  async open(turn) {
    const created = await this.conversations.create({});
    turn.conversationId = created.id;
    if (this.running !== turn) return;
    this.conversations.wantedId = created.id;
    this.conversations.current = created;
    history.replaceState(null, "", `#${created.id}`);
  }

  take(turn, { name, data }) {
    if (name === "turn") {
      turn.isTaken = true;
      this.transcript.speaks(data);
      this.transcript.usage({ prompt_tokens: data.prompt_tokens, cached_tokens: data.prefix_hit_tokens });
      if (data.messages_dropped) {
        const count = data.messages_dropped;
        this.announce(
          count === 1
            ? "The oldest message no longer fits and was left out."
            : `The oldest ${count} messages no longer fit and were left out.`,
        );
      }
    } else if (name === "delta") {
      this.transcript.append(data.text);
    } else if (name === "done") {
      turn.isOver = true;
      this.announce(data.finish_reason === "cancelled" ? "Stopped." : "The reply is complete.");
    } else if (name === "error") {
      turn.isOver = true;
      throw new ApiError(data.error.message, { code: data.error.code });
    }
  }

  /** After a turn, show what the database holds: that is the truth, whatever happened on the way. */
  async settle(turn) {
    if (this.running !== turn) return;
    this.transcript.end();
    if (turn.conversationId) {
      // Until this is known, the next message would be put below the wrong one: the turn is not over.
      await this.failures.guarded(() => this.conversations.load(turn.conversationId));
      await this.failures.guarded(() => this.conversations.refresh());
    }
    if (this.running !== turn) return;
    this.running = null;
    this.composer.setBusy(false);
    this.onEnd();
  }
}
