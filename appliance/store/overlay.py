"""What the journal holds, laid over what the database says: reads see both as one.

Owns the entries that are not in the database yet, by conversation. In memory alone; never reads a file or
the database. An entry that reached the database but is not marked yet may be seen in both: laying it over
its own result changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from appliance.store.entries import ConversationEntry, Entry, Key
from appliance.store.records import (
    TITLE_CHARACTERS_MAX,
    Conversation,
    FinishedTurn,
    Message,
    StoredTurn,
)
from appliance.store.rows import appended_turn, opened_conversation, opened_messages
from appliance.store.text import storable

TICK = timedelta(microseconds=1)


def after_turn(conversation: Conversation, turn: FinishedTurn, at: datetime) -> Conversation:
    """A conversation once a turn is appended to it: what the query `append_turn` makes of it."""
    title = storable(turn.title or "")[:TITLE_CHARACTERS_MAX]
    return replace(
        conversation,
        head_id=turn.assistant.message_id,
        anchor_id=turn.anchor_id or conversation.anchor_id,
        prompt_version=conversation.prompt_version or turn.prompt_version,
        title=conversation.title or title,
        updated_at=max(at, conversation.updated_at),
    )


@dataclass(slots=True, kw_only=True)
class Held:
    """What is held of one conversation. `removed` counts what has left: who read the database meanwhile
    reads again."""

    entries: deque[tuple[int, Entry]] = field(default_factory=deque)
    messages: dict[UUID, Message] = field(default_factory=dict)
    turns: dict[tuple[UUID | None, UUID], StoredTurn] = field(default_factory=dict)
    opened: Conversation | None = None
    removed: int = 0
    _last: FinishedTurn | None = None

    @property
    def last_at(self) -> datetime:
        """When the newest of them was journalled."""
        at = self.entries[-1][1].at
        assert at is not None, "an entry in the journal has its time"
        return at

    @property
    def whole(self) -> Conversation | None:
        """The conversation as it stands, when the database has nothing of it."""
        return None if self.opened is None else self.over(self.opened)

    def over(self, stored: Conversation) -> Conversation:
        """The conversation with all that is held laid over what is stored.

        A row that is as new as the newest entry has them all, and keeps what was done since. One call
        costs the same however much is held: `_last` has grown together from all turns.
        """
        if self._last is None or self.last_at <= stored.updated_at:
            return stored
        return after_turn(stored, self._last, self.last_at)

    def add(self, number: int, entry: Entry) -> StoredTurn | Conversation:
        """Hold one more entry; what it will have stored."""
        self.entries.append((number, entry))
        if isinstance(entry, ConversationEntry):
            self.opened = opened_conversation(entry.opened)
            for message in opened_messages(entry.opened):
                self.messages[message.message_id] = message
            return self.opened
        assert entry.at is not None
        turn, before = entry.turn, self._last
        if before is not None:
            turn = replace(
                turn,
                anchor_id=turn.anchor_id or before.anchor_id,
                prompt_version=before.prompt_version or turn.prompt_version,
                title=before.title or turn.title,
            )
        self._last = turn
        stored = appended_turn(entry.turn, entry.at)
        self.turns[turn.parent_id, turn.turn_key] = replace(stored, replayed=True)
        for said in (stored.user, stored.assistant):
            if said is not None:
                self.messages[said.message_id] = said
        return stored

    def remove_first(self, number: int) -> None:
        """Let go of the entry that was held longest."""
        first, entry = self.entries.popleft()
        assert first == number, "entries of a conversation leave in their order"
        self.removed += 1
        if isinstance(entry, ConversationEntry):
            self.opened = None
            for greeting in entry.opened.greetings:
                self.messages.pop(greeting.message_id, None)
            return
        turn = entry.turn
        self.turns.pop((turn.parent_id, turn.turn_key), None)
        for said in (turn.user, turn.assistant):
            if said is not None:
                self.messages.pop(said.message_id, None)

    def tree_over(self, stored: Sequence[Message]) -> tuple[Message, ...]:
        """The whole tree, parents first."""
        known = {message.message_id for message in stored}
        held = (message for message in self.messages.values() if message.message_id not in known)
        return (*stored, *held)

    def path_to(self, leaf_id: UUID, after: UUID | None) -> tuple[UUID | None, list[Message]]:
        """(the first message above that is not held, those held below it and at or above the leaf).

        None: the path begins with those held, or right below `after`.
        """
        found: list[Message] = []
        place: UUID | None = leaf_id
        while place is not None and place != after and place in self.messages:
            found.append(self.messages[place])
            place = found[-1].parent_id
        return (None if place == after else place), found[::-1]


class Overlay:
    """The entries of all conversations that wait, in the order of their numbers."""

    def __init__(self) -> None:
        self._held: OrderedDict[Key, Held] = OrderedDict()
        self._numbers: OrderedDict[int, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, key: Key) -> Held | None:
        """What is held of a conversation; None when all of it is in the database."""
        return self._held.get(key)

    def of_tenant(self, tenant: str) -> dict[Key, Held]:
        """What is held of a tenant's conversations."""
        return {key: held for key, held in self._held.items() if key[0] == tenant}

    @property
    def oldest_at(self) -> datetime | None:
        """When the entry that waits longest was journalled."""
        return next(iter(self._numbers.values())).at if self._numbers else None

    def add(self, number: int, entry: Entry) -> StoredTurn | Conversation:
        """Hold an entry that is in the journal under this number; what a read of it gives from now on."""
        self._numbers[number] = entry
        return self._held.setdefault(entry.key, Held()).add(number, entry)

    def remove(self, numbers: Sequence[int]) -> None:
        """Let go of entries that are in the database, and marked."""
        for number in numbers:
            key = self._numbers.pop(number).key
            held = self._held[key]
            held.remove_first(number)
            if not held.entries:
                del self._held[key]

    def firsts(self) -> Iterator[tuple[int, Entry]]:
        """Of each conversation the entry that is to be written next, those that wait longest first."""
        return (held.entries[0] for held in self._held.values())

    def pending(self) -> Iterator[tuple[int, Entry]]:
        """All entries by number."""
        return iter(self._numbers.items())
