"""What can be written in batches, and wait in the journal: finished turns and new conversations.

Owns their form as bytes. Values only; never writes one anywhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

import msgspec

from appliance.errors import JournalDamaged
from appliance.store.journal_frame import Frame
from appliance.store.records import FinishedTurn, NewConversation
from appliance.store.text import storable

Key: TypeAlias = tuple[str, UUID]
"""(tenant, conversation id)"""


class TurnEntry(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """A finished turn; `at` (UTC) is when it ended, None for one that did not wait."""

    turn: FinishedTurn
    at: datetime | None = None

    @property
    def key(self) -> Key:
        """Whose conversation it is of."""
        return (self.turn.tenant, self.turn.conversation_id)

    @property
    def identity(self) -> Hashable:
        """The same of two entries that are one send."""
        return (self.key, self.turn.parent_id, self.turn.turn_key)

    @property
    def bytes(self) -> int:
        """About how much it is to write: its texts and token ids."""
        said = (self.turn.user, self.turn.assistant)
        return sum(len(one.text) + len(one.token_ids or b"") for one in said if one is not None)


class ConversationEntry(msgspec.Struct, frozen=True, kw_only=True, tag="conversation"):
    """A new conversation with its greetings."""

    opened: NewConversation

    @property
    def at(self) -> datetime:
        """When it was opened."""
        return self.opened.created_at

    @property
    def key(self) -> Key:
        """Which conversation it is."""
        return (self.opened.tenant, self.opened.conversation_id)

    @property
    def identity(self) -> Hashable:
        """The same of two entries that open one conversation."""
        return self.key

    @property
    def bytes(self) -> int:
        """About how much it is to write."""
        return sum(len(greeting.text) for greeting in self.opened.greetings)


class DoneEntry(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """A mark in the journal: these of its entries are in the database."""

    numbers: tuple[int, ...]


Entry: TypeAlias = TurnEntry | ConversationEntry

_DECODER: msgspec.msgpack.Decoder[Entry | DoneEntry] = msgspec.msgpack.Decoder(
    TurnEntry | ConversationEntry | DoneEntry
)
_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")


def encode(entry: Entry | DoneEntry) -> bytes:
    """An entry as the journal keeps it."""
    return _ENCODER.encode(entry)


def storable_entry(entry: Entry) -> Entry:
    """The entry with every text as the database will hold it: bytes can be made of that."""
    kinds = (bytes, datetime, UUID)
    plain = _storable(msgspec.to_builtins(entry, builtin_types=kinds))
    return msgspec.convert(plain, TurnEntry | ConversationEntry, builtin_types=kinds)


def _storable(plain: object) -> object:
    match plain:
        case str():
            return storable(plain)
        case dict():
            return {name: _storable(value) for name, value in plain.items()}
        case list() | tuple():
            return [_storable(value) for value in plain]
        case _:
            return plain


def decode(payload: bytes) -> Entry | DoneEntry:
    """The entry whose bytes these are; raises msgspec.DecodeError for others."""
    return _DECODER.decode(payload)


def pending_of(frames: Sequence[Frame]) -> list[tuple[int, Entry]]:
    """The entries of a journal that no mark says are done, with their numbers, in order.

    Raises JournalDamaged for a whole frame that is no entry.
    """
    entries: dict[int, Entry] = {}
    for one in frames:
        try:
            meaning = decode(one.payload)
        except msgspec.DecodeError as error:
            raise JournalDamaged(
                f"frame {one.number} of the journal was written by another version of this program: "
                "use that one until the journal is empty"
            ) from error
        if isinstance(meaning, DoneEntry):
            for number in meaning.numbers:
                entries.pop(number, None)
        else:
            entries[one.number] = meaning
    return list(entries.items())
