"""What the lore of a conversation has come to, turn by turn.

A turn goes on from the `Recall` of the one before, in O(new text); without one it is computed from the
stored path. Never: how keys are found, the rules of activation (`prompt.lore`), or what a new message
calls up (`lorekeeper`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from appliance.prompt.lore.activation import Before
from appliance.prompt.lore.books import Heard, Lore
from appliance.store.records import FrozenText, Message

NOTE = "author's note"
"""The name of a note that is frozen into the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What lore knows of a path: `recent` is what was found in its latest messages, the newest first.

    `since_note` counts the user's messages since one with a frozen note, None when none has been.
    """

    before: Before = field(default_factory=Before)
    recent: tuple[Heard, ...] = ()
    since_note: int | None = None

    @property
    def weight(self) -> int:
        """About how many bytes it takes: digests are of 16 characters, numbers are shared or small."""
        digests = len(self.before.active) + len(self.before.matched)
        numbers = sum(len(found) for heard in self.recent for found in heard)
        return 400 + 160 * digests + 40 * numbers + 250 * len(self.recent)

    def hearing(self, lore: Lore, text: str) -> Recall:
        """With one more message."""
        if not lore.books:
            return self
        return replace(self, recent=(lore.heard(text), *self.recent)[: lore.depth])

    def with_texts(self, texts: Sequence[FrozenText]) -> Recall:
        """With texts that stand before the newest message of the user."""
        digests = frozenset(text.entry for text in texts if text.entry is not None)
        since = None if self.since_note is None else self.since_note + 1
        if any(text.name == NOTE for text in texts):
            since = 0
        before = replace(
            self.before,
            active=self.before.active | digests,
            matched=self.before.matched | digests,
        )
        return replace(self, before=before, since_note=since)

    def standing(
        self, messages: Sequence[Message], texts: Sequence[FrozenText], *, is_full: bool
    ) -> Recall:
        """With these messages in the prompt and no others, and `texts` before the newest."""
        kept = [text for message in messages for text in message.lore] + list(texts)
        active = frozenset(text.entry for text in kept if text.entry is not None)
        return replace(self, before=replace(self.before, active=active, is_full=is_full))

    def answered(self, lore: Lore, reply: str) -> Recall:
        """With the reply to the newest message."""
        before = replace(self.before, replies=self.before.replies + 1)
        return replace(self.hearing(lore, reply), before=before)


def recalled(path: Sequence[Message], lore: Lore, kept: int, greeting: int | None = None) -> Recall:
    """What a stored path has come to; its messages from index `kept` on are in the prompt. `greeting` is
    the index of the one that it begins with."""
    recall = Recall(before=Before(greeting=greeting))
    first_heard = len(path) - lore.depth
    for index, message in enumerate(path):
        if index >= first_heard:
            recall = recall.hearing(lore, message.text)
        if message.role == "user":
            recall = recall.with_texts(message.lore)
        else:
            before = replace(recall.before, replies=recall.before.replies + 1)
            recall = replace(recall, before=before)
    return recall.standing(path[kept:], (), is_full=kept > 0)


def anchor_on(path: Sequence[Message], conversations: UUID | None) -> UUID | None:
    """The first message that the newest prompt of a path still held, None when none was cut.

    Its reply says so. Of replies that are older than that record only the conversation's own anchor is
    known, which is that of the branch that was answered last.
    """
    for message in reversed(path):
        if message.role == "assistant" and message.prompt_tokens is not None:
            if message.anchor_id is not None or message.scene_digest is not None:
                return message.anchor_id
            return conversations
    return None


def first_kept(path: Sequence[Message], anchor_id: UUID | None) -> int:
    """The index of a message in a path; 0 where it is not on it."""
    ids = [message.message_id for message in path]
    return ids.index(anchor_id) if anchor_id in ids else 0
