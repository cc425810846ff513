"""Decides what lore a new message of one conversation brings, and writes its texts.

Never: the rules of activation (`prompt.lore`), or what was before (`lore`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from appliance._core import Tokenizer
from appliance.chat.history import spoken
from appliance.chat.lore import NOTE, Recall, anchor_on, first_kept, recalled
from appliance.chat.lore_placement import Placed, placed
from appliance.prompt.cards.macros import Macros
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.chat_format.contents import encode_content
from appliance.prompt.lore.activation import Before, activated
from appliance.prompt.lore.books import Lore
from appliance.prompt.lore.lorebook import LoreEntry
from appliance.prompt.lore.placement import Placement
from appliance.prompt.namespace import PUBLIC
from appliance.store.records import FrozenText, Message, NewMessage, Note
from appliance.store.text import storable
from appliance.tokens import count

LORE_SHARE = 4
"""New lore of one turn has at most this part of the room for prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lorekeeper:
    """The lore of one conversation. `room_tokens` are a prompt's.

    `owners` leads from entries to the members of a group whose they are, by digest. `greeting` is the
    index of the greeting that the path begins with, where an entry asks for it; `anchor_id` is the
    conversation's.
    """

    lore: Lore
    tokenizer: Tokenizer
    note: Note | None
    macros: Macros
    namespace: bytes
    room_tokens: int
    owners: Mapping[str, CharacterVersion] = field(default_factory=dict)
    greeting: int | None = None
    anchor_id: UUID | None = None

    def recalled(self, path: Sequence[Message], kept: int | None = None) -> Recall:
        """What the lore of a stored path has come to. `kept` is the index of the first of its `spoken`
        messages that is in the prompt; without one, of the first that the prompt before held."""
        said = spoken(path)
        if kept is None:
            kept = first_kept(said, anchor_on(path, self.anchor_id))
        return recalled(said, self.lore, kept, self.greeting)

    def heard(self, recall: Recall, text: str) -> tuple[Recall, tuple[FrozenText, ...]]:
        """What a path has come to with a new message of the user, and the texts that go before it."""
        recall = recall.hearing(self.lore, text)
        texts: list[FrozenText] = []
        if self.lore.placement is Placement.FROZEN:
            for entry in self._called(recall):
                written = self.written(entry)
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
        """The messages of a prompt with what their latest ones call up, where the card says.

        Computed from the whole path: what an entry asks about the turns before is what each of them
        would have called up.
        """
        recall = Recall(before=Before(greeting=self.greeting))
        is_full = anchor_on(path, self.anchor_id) is not None
        first = 0 if self.lore.remembers else max(len(path) - self.lore.depth, 0)
        replies = sum(one.role == "assistant" for one in path[:first])
        recall = replace(recall, before=replace(recall.before, replies=replies, is_full=is_full))
        for message in path[first:]:
            if message.role == "user":
                recall = recall.hearing(self.lore, message.text)
                is_newest = user is None and message is path[-1]
                if self.lore.remembers and not is_newest:
                    recall = self._having_matched(recall)
            else:
                recall = recall.answered(self.lore, message.text)
        if user is not None:
            recall = recall.hearing(self.lore, user.text)
        return placed(self._called(recall), around, namespace=namespace, written=self.written)

    def written(self, entry: LoreEntry) -> str:
        """The text of an entry, its macros replaced; {{char}} is whose entry it is."""
        owner = self.owners.get(entry.digest)
        macros = self.macros if owner is None else replace(self.macros, char=owner.called)
        return storable(macros.expand(entry.content, f"lore {entry.digest}").text)

    def _having_matched(self, recall: Recall) -> Recall:
        matched = frozenset(entry.digest for entry in self._called(recall))
        before = replace(recall.before, matched=recall.before.matched | matched)
        return replace(recall, before=before)

    def _called(self, recall: Recall) -> tuple[LoreEntry, ...]:
        return activated(
            self.lore.books,
            recall.recent,
            recall.before,
            seed=self.macros.frozen.seed,
            tokens_of=self._tokens_of,
            tokens_max=self.room_tokens // LORE_SHARE,
        )

    def _note_is_due(self, recall: Recall) -> bool:
        if self.note is None or self.note.every is None:
            return False
        return recall.since_note is None or recall.since_note + 1 >= self.note.every

    def _tokens_of(self, entry: LoreEntry) -> int:
        """As it will be written: a macro may stand for a long name."""
        written = self.written(entry)
        namespace = PUBLIC if written == entry.content else self.namespace
        return count(encode_content(self.tokenizer, written, namespace, param="lore"))
