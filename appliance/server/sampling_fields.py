"""The fields that every generating request shares, with their ranges.

Fields and meanings are OpenAI's, and `top_k min_p repetition_penalty` as other servers have them;
`priority` and `deadline_ms` are our own. null means absent. Never knows which endpoint it parses for.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.chat.params import GenerationParams
from appliance.errors import InvalidRequest
from appliance.prompt.settings import SAMPLING_NAMES
from appliance.wire.frames import DEADLINE_MS_MAX, Priority, Sampling

STOP_STRINGS_MAX = 16
STOP_CHARS_MAX = 256
TOP_LOGPROBS_MAX = 20

_Stop = Annotated[str, Meta(min_length=1, max_length=STOP_CHARS_MAX)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
"""One way to write each id, so that no two keys can mean the same token."""
_BIASES_MAX = 1024


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """How a reply is chosen, when it ends, and how urgent it is.

    `max_completion_tokens` is the newer name of `max_tokens` and wins; `seed` -1 and `top_k` 0 or -1
    mean none, as in other servers.
    """

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    logit_bias: dict[str, _Bias] | None = None
    seed: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=STOP_STRINGS_MAX)] | None = None
    priority: Priority | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=DEADLINE_MS_MAX)] | None = None

    def params(
        self,
        *,
        vocab_size: int,
        arrived_s: float,
        logprobs: int | None = None,
        unnamed: Sampling = Sampling(),  # noqa: B008 - frozen
    ) -> GenerationParams:
        """The checked parameters of a request that came at `arrived_s` (`time.perf_counter`).

        `unnamed` is what a request has that names nothing of how tokens are chosen. Raises
        InvalidRequest for a token id outside the vocabulary.
        """
        named = frozenset(name for name in SAMPLING_NAMES if getattr(self, name) is not None)
        # A client that names one of them means the others as /v1 has them.
        defaults = Sampling() if named else unnamed
        sampling = Sampling(
            temperature=_or(self.temperature, defaults.temperature),
            top_k=self.top_k if self.top_k is not None and self.top_k > 0 else None,
            top_p=_or(self.top_p, defaults.top_p),
            min_p=_or(self.min_p, defaults.min_p),
            presence_penalty=_or(self.presence_penalty, defaults.presence_penalty),
            frequency_penalty=_or(self.frequency_penalty, defaults.frequency_penalty),
            repetition_penalty=_or(self.repetition_penalty, defaults.repetition_penalty),
            logit_bias=_biases(self.logit_bias or {}, vocab_size),
            seed=self.seed if self.seed is not None and self.seed >= 0 else None,
            logprobs=logprobs,
        )
        newest = self.max_completion_tokens
        stop = self.stop or ()
        return GenerationParams(
            sampling=sampling,
            new_tokens_max=newest if newest is not None else self.max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            priority=self.priority or "interactive",
            deadline_at=None if self.deadline_ms is None else arrived_s + self.deadline_ms / 1000,
            named=named,
        )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _biases(biases: dict[str, float], vocab_size: int) -> dict[int, float]:
    if len(biases) > _BIASES_MAX:
        raise InvalidRequest(
            f"logit_bias: {len(biases)} entries are more than the {_BIASES_MAX} allowed.",
            param="logit_bias",
        )
    checked: dict[int, float] = {}
    for key, bias in biases.items():
        if _TOKEN_ID.fullmatch(key) is None or int(key) >= vocab_size:
            raise InvalidRequest(
                f"logit_bias: every key must be a token id from 0 to {vocab_size - 1}.",
                param="logit_bias",
            )
        checked[int(key)] = bias
    return checked
