"""What the lore of a conversation has come to, turn by turn, and what a new message calls up.

A turn goes on from the `Recall` of the one before, in O(new text); without one it is computed from the
stored path. Never: how keys are found, or the rules of activation (`prompt.lore`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from appliance._core import Tokenizer
from appliance.chat.history import spoken
from appliance.chat.lore_placement import Placed, placed
from appliance.prompt.cards.macros import Macros
from appliance.prompt.contents import encode_content
from appliance.prompt.lore.activation import Before, activated
from appliance.prompt.lore.books import Heard, Lore, Placement
from appliance.prompt.lore.lorebook import LoreEntry
from appliance.prompt.namespace import PUBLIC
from appliance.store.records import FrozenText, Message, NewMessage, Note
from appliance.store.text import storable
from appliance.tokens import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What lore knows of a path: `recent` is what was found in its latest messages, the newest first.

    `since_note` counts the user's messages since one with a frozen note, None when none has been.
    """

    before: Before = field(default_factory=Before)
    recent: tuple[Heard, ...] = ()
    since_note: int | None = None

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


LORE_SHARE = 4
"""New lore of one turn has at most this part of the room for prompts."""

NOTE = "author's note"
"""The name of a note that is frozen into the history."""


def recalled(path: Sequence[Message], lore: Lore, kept: int) -> Recall:
    """What a stored path has come to; its messages from index `kept` on are in the prompt."""
    recall = Recall()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lorekeeper:
    """Decides what lore a new message of one conversation brings. `room_tokens` are a prompt's."""

    lore: Lore
    tokenizer: Tokenizer
    note: Note | None
    macros: Macros
    namespace: bytes
    room_tokens: int

    def heard(self, recall: Recall, text: str) -> tuple[Recall, tuple[FrozenText, ...]]:
        """What a path has come to with a new message of the user, and the texts that go before it."""
        recall = recall.hearing(self.lore, text)
        texts: list[FrozenText] = []
        if self.lore.placement is Placement.FROZEN:
            for entry in self._called(recall):
                written = self._written(entry)
                texts.append(
                    FrozenText(name=storable(entry.name), text=written, entry=entry.digest)
                )
        if self._note_is_due(recall):
            assert self.note is not None
            texts.append(FrozenText(name=NOTE, text=self.note.text))
        return recall.with_texts(texts), tuple(texts)

    def as_written(
        self, path: Sequence[Message], user: NewMessage | None, around: Placed, namespace: bytes
    ) -> Placed:
        """The messages of a prompt with what their latest ones call up, where the card says."""
        texts = [message.text for message in path] + ([] if user is None else [user.text])
        recall = Recall(before=Before(replies=sum(one.role == "assistant" for one in path)))
        for text in texts[-self.lore.depth :] if self.lore.depth else ():
            recall = recall.hearing(self.lore, text)
        return placed(self._called(recall), around, namespace=namespace, written=self._written)

    def _called(self, recall: Recall) -> tuple[LoreEntry, ...]:
        return activated(
            self.lore.books,
            recall.recent,
            recall.before,
            seed=self.macros.frozen.seed,
            tokens_of=self._tokens_of,
            tokens_max=self.room_tokens // LORE_SHARE,
        )

    def _written(self, entry: LoreEntry) -> str:
        return storable(self.macros.expand(entry.content, f"lore {entry.digest}").text)

    def _note_is_due(self, recall: Recall) -> bool:
        if self.note is None or self.note.every is None:
            return False
        return recall.since_note is None or recall.since_note + 1 >= self.note.every

    def recalled(self, path: Sequence[Message], anchor_id: UUID | None) -> Recall:
        """What the lore of a stored path has come to; `anchor_id` is the first message still sent."""
        said = spoken(path)
        ids = [message.message_id for message in said]
        return recalled(said, self.lore, ids.index(anchor_id) if anchor_id in ids else 0)

    def _tokens_of(self, entry: LoreEntry) -> int:
        """As it will be written: a macro may stand for a long name."""
        written = self._written(entry)
        namespace = PUBLIC if written == entry.content else self.namespace
        return count(encode_content(self.tokenizer, written, namespace, param="lore"))
