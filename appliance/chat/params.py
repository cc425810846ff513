"""What a caller may choose about one reply, and what a conversation has by itself. Checks no ranges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from appliance.prompt.settings import SAMPLING_NAMES, SamplingSettings
from appliance.wire.frames import Priority, Sampling

CONVERSATION_SAMPLING = Sampling(temperature=0.5, top_p=0.9, frequency_penalty=0.3)
"""Of replies in conversations, where neither the request nor the character says anything: calmer than the
model's own distribution, which small models do not bear well, and with a penalty, without which they fall
into loops; one that counts the prompt too spoils short answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """Sampling, length and stop strings of one reply, already checked at the door.

    `new_tokens_max` None means the server's default; a number larger than the room the prompt leaves
    in the context is lowered to that room. `stop` strings end the reply and are not part of it. A
    `batch` reply gives way to all interactive ones. `named` are the fields of `sampling` that the caller
    chose; for others the conversation's version may have a value of its own. `deadline_at`, in seconds
    of `time.perf_counter`: when the reply must be finished, or else fails.
    """

    sampling: Sampling = field(default_factory=Sampling)
    new_tokens_max: int | None = None
    stop: tuple[str, ...] = ()
    priority: Priority = "interactive"
    deadline_at: float | None = None
    named: frozenset[str] = frozenset()

    def with_settings(self, settings: SamplingSettings) -> GenerationParams:
        """These, with what a version settles where the caller named nothing."""
        own = {
            name: value
            for name in SAMPLING_NAMES
            if name not in self.named and (value := getattr(settings, name)) is not None
        }
        if not own:
            return self
        return replace(self, sampling=msgspec.structs.replace(self.sampling, **own))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLimits:
    """Bounds on what a caller may send, checked before any tokenizing.

    `reply_reserve_tokens` is the room that truncation of a native conversation keeps free for the
    reply; `truncation_step_tokens` is how much is cut at once when the window is full: after a cut all
    but the system text is computed anew, which was four fifths of what long chats missed in a context
    of 8,192 tokens with a step of 1,024 (`bench/day.py`). A larger step leaves a shorter context on
    average; 2,000 finds 95 % of a chat's prompts in the cache with 84 % of the room in use
    (`bench/simulated_chat.py`). Both are lowered to a quarter of the context where the context is small.
    """

    message_chars_max: int = 200_000
    prompt_chars_max: int = 2_000_000
    messages_max: int = 10_000
    new_tokens_default: int = 512
    reply_reserve_tokens: int = 512
    truncation_step_tokens: int = 2000
