"""Where the latest turns of conversations left off, so that the next one hands over only what is new.

A cache of this process: without an entry a turn reads and sends its whole path. Never: the ledger or
the engine.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from appliance.chat.lore import Recall
from appliance.chat.running import Key
from appliance.prompt.continuation import Tip
from appliance.store.records import Conversation
from appliance.wire.frames import Node

TIPS_MAX = 65_536
"""Conversations remembered, about a kilobyte each."""

TIPS_BYTES_MAX = 128 * 1024 * 1024
"""What they take together: of conversations with much lore fewer are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTurn:
    """A stored turn whose tokens an engine has.

    `reply_id` is its end, `place_id` what its user's message answered, `speaker` the member of a group
    who replied. `prompt_version` and `scene_digest` are what its prompt was made with, `anchor_id` the
    first message that was in it where older ones were cut. `recall` is what lore knows of its path.
    """

    reply_id: UUID
    place_id: UUID | None
    node: Node
    tip: Tip
    recall: Recall
    prompt_version: str
    scene_digest: bytes
    anchor_id: UUID | None = None
    speaker: str | None = None

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return 700 + self.recall.weight

    def is_of(self, conversation: Conversation) -> bool:
        """Whether the prompts of a conversation are still made with the same."""
        made_with = (self.prompt_version, self.scene_digest)
        return made_with == (conversation.prompt_version, conversation.scene.digest)


class Tips:
    """The latest known turn of each conversation, those used least recently forgotten first."""

    def __init__(self, *, tips_max: int = TIPS_MAX, bytes_max: int = TIPS_BYTES_MAX) -> None:
        self._turns: OrderedDict[Key, KnownTurn] = OrderedDict()
        self._tips_max = tips_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def get(self, key: Key, reply_id: UUID | None) -> KnownTurn | None:
        """The known turn that ends with this reply."""
        turn = self._turns.get(key)
        return turn if turn is not None and turn.reply_id == reply_id else None

    def put(self, key: Key, turn: KnownTurn | None) -> None:
        """Replace what was known of a conversation; None forgets it."""
        before = self._turns.pop(key, None)
        if before is not None:
            self._bytes -= before.weight
        if turn is not None:
            self._turns[key] = turn
            self._bytes += turn.weight
        while self._turns and (len(self._turns) > self._tips_max or self._bytes > self._bytes_max):
            _, forgotten = self._turns.popitem(last=False)
            self._bytes -= forgotten.weight
