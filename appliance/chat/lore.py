"""What the lore of a conversation has come to, turn by turn, and what a new message calls up.

A turn goes on from the `Recall` of the one before, in O(new text); without one it is computed from the
stored path. Never: how keys are found, or the rules of activation (`prompt.lore`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from appliance.prompt.lore.activation import Before, activated
from appliance.prompt.lore.books import Heard, Lore
from appliance.prompt.lore.lorebook import LoreEntry
from appliance.store.records import FrozenText, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What lore knows of a path: `recent` is what was found in its latest messages, the newest first.

    `since_note` counts the user's messages since one with a note before it, None when none has been.
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

    def answered(self, lore: Lore, reply: str) -> Recall:
        """With the reply to the newest message."""
        before = replace(self.before, replies=self.before.replies + 1)
        return replace(self.hearing(lore, reply), before=before)


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
    standing = (text.entry for message in path[kept:] for text in message.lore)
    before = replace(
        recall.before,
        active=frozenset(entry for entry in standing if entry is not None),
        is_full=kept > 0,
    )
    return replace(recall, before=before)


def called_up(
    recall: Recall,
    lore: Lore,
    *,
    seed: bytes,
    tokens_of: Callable[[str], int],
    tokens_max: int,
) -> tuple[LoreEntry, ...]:
    """The entries that the newest message of `recall` calls up."""
    if not lore.books:
        return ()
    return activated(
        lore.books,
        recall.recent,
        recall.before,
        seed=seed,
        tokens_of=tokens_of,
        tokens_max=tokens_max,
    )
