"""The events of one turn, in the order a caller sees them: one TurnStarted, Deltas, one TurnDone.

A turn that fails raises an `ApplianceError` instead of TurnDone. Never: their form on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from appliance.store.records import Message
from appliance.wire.frames import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one reply; `prefix_hit_tokens` of the prompt came from the cache."""

    prompt_tokens: int
    prefix_hit_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """The engine took the request.

    The message ids are None for a stateless completion, `user_message_id` also when a reply is
    regenerated. `messages_dropped` messages of the history did not fit into the context; None where that
    of a turn stored before cannot be told now. `prompt_version` is the version of the character that the
    prompt was made with, None for a stateless completion and where it was not written down;
    `speaker` the member of a group who replies.
    """

    turn_id: UUID
    user_message_id: UUID | None
    assistant_message_id: UUID | None
    prompt_tokens: int
    prefix_hit_tokens: int
    messages_dropped: int | None
    prompt_version: str | None = None
    speaker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """More text of the reply, never empty except when it only carries `logprobs`."""

    text: str
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDone:
    """The reply is complete; for a conversation it is stored, and `message` is what was stored."""

    finish_reason: FinishReason
    text: str
    usage: Usage
    message: Message | None


Event: TypeAlias = TurnStarted | Delta | TurnDone
