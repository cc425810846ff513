"""The conversations that this process read or wrote last: a chat goes on while the database is away.

A memory with a bound; used only when the database does not answer. Never: the messages of a path.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from appliance.store.entries import Key
from appliance.store.records import Conversation, StoredTurn

CONVERSATIONS_MAX = 8192
BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A conversation as it was seen last, and its newest turn if this process stored that."""

    conversation: Conversation
    turn: StoredTurn | None

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        if self.turn is None:
            return 0
        said = (self.turn.user, self.turn.assistant)
        return sum(4 * len(one.text) + len(one.token_ids or b"") for one in said if one is not None)


class Recent:
    """Conversations by key, those used least recently forgotten first."""

    def __init__(
        self, *, conversations_max: int = CONVERSATIONS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._seen: OrderedDict[Key, Seen] = OrderedDict()
        self._conversations_max = conversations_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, key: Key) -> Seen | None:
        """What was seen of a conversation."""
        return self._seen.get(key)

    def put(self, conversation: Conversation, turn: StoredTurn | None = None) -> None:
        """Remember a conversation as it is now, and the turn that ends at its head.

        Without a turn, the one known stays as long as the head is its reply.
        """
        key = (conversation.tenant, conversation.conversation_id)
        before = self._seen.get(key)
        newest = None if before is None else before.turn
        if turn is None and newest is not None:
            turn = newest if newest.assistant.message_id == conversation.head_id else None
        self.forget(key)
        seen = self._seen[key] = Seen(conversation=conversation, turn=turn)
        self._bytes += seen.bytes
        while len(self._seen) > self._conversations_max or self._bytes > self._bytes_max:
            self.forget(next(iter(self._seen)))

    def forget(self, key: Key) -> None:
        """Know nothing of it any more."""
        seen = self._seen.pop(key, None)
        if seen is not None:
            self._bytes -= seen.bytes
