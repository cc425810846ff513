"""What a version of a character settles besides its texts: how replies are chosen, how much is cut at
once.

Values and their ranges only. A request that names a value of its own has that one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Tokens = Annotated[int, Meta(ge=0, le=1_000_000)]


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen; what is absent is the server's default. Meanings are OpenAI's."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None


class TruncationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The room kept free for the reply, and how much goes when the window is full; both are lowered to a
    quarter of the context where that is small."""

    reply_reserve_tokens: _Tokens | None = None
    step_tokens: _Tokens | None = None


SAMPLING_NAMES = SamplingSettings.__struct_fields__
NO_SAMPLING = SamplingSettings()
NO_TRUNCATION = TruncationSettings()
