"""What turns need around a prompt: limits, the context's size, room for a reply, long work aside.

Never: builds a prompt or talks to the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from appliance.chat.params import ChatLimits
from appliance.errors import EngineUnavailable, InvalidRequest
from appliance.wire.access import EngineAccess

T = TypeVar("T")

OFF_LOOP_CHARS_MIN = 32_768
"""Texts from this length on are tokenized in a thread; the tokenizer releases the GIL."""


async def off_loop(chars: int, work: Callable[[], T], *, may_wait: bool = False) -> T:
    """The result of `work` on `chars` characters, without holding up other requests; `may_wait` for work
    that is long however few they are."""
    if chars < OFF_LOOP_CHARS_MIN and not may_wait:
        return work()
    return await asyncio.to_thread(work)


def context_tokens(engine: EngineAccess) -> int:
    """The model's context in tokens; raises EngineUnavailable while no engine is connected."""
    if engine.hello is None:
        raise EngineUnavailable("The engine is starting; try again in a moment.")
    return engine.hello.context_tokens_max


def room_for_reply(context: int, prompt_tokens: int, asked: int | None, limits: ChatLimits) -> int:
    """How many tokens the reply may have: what was asked for, at most what the prompt leaves."""
    assert prompt_tokens < context
    return min(asked or limits.new_tokens_default, context - prompt_tokens)


def check_message(text: str, limits: ChatLimits) -> None:
    """Raise InvalidRequest for a message that is blank or too long."""
    if not text.strip():
        raise InvalidRequest("the message is empty", param="text")
    if len(text) > limits.message_chars_max:
        raise InvalidRequest(
            f"a message has at most {limits.message_chars_max} characters, this one {len(text)}",
            param="text",
        )
