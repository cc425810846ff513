"""Checks a request at the engine's door and gives it its first state. Never: queues or runs it.

The server checks what it can name to its caller; these are the checks that keep one bad frame from
harming the requests of others.
"""

from __future__ import annotations

import math
import secrets
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from appliance import tokens
from appliance.engine.sequence import RequestKey, Sequence
from appliance.errors import ContextLengthExceeded, InvalidRequest
from appliance.wire.frames import DEADLINE_MS_MAX, Generate, Sampling

LOGPROBS_MAX = 20
STOP_TOKENS_MAX = 4096
LOGIT_BIAS_MAX = 4096
TENANT_BYTES_MAX = 1024
ADJUSTMENT_MAX = 1000.0
"""Bound of penalties and biases: far past any use, and no sum of them overflows a float32."""
SEED_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What the model and its cache can take."""

    vocab_size: int
    context_tokens_max: int


def check_request(request: Generate, limits: RequestLimits) -> None:
    """Raises InvalidRequest or ContextLengthExceeded, with the field's name in `param`."""
    _check_ids(request.token_ids, "token_ids", limits.vocab_size)
    _check_ids(request.closing, "closing", limits.vocab_size)
    if not request.token_ids:
        raise InvalidRequest("the prompt holds no new token", param="token_ids")
    prompt_tokens = _first(request) + tokens.count(request.token_ids)
    if request.after is not None and request.after.tokens < 1:
        raise InvalidRequest("no token leads to a node", param="after")
    if any(count < 0 for _, count in request.stretches) or (
        sum(count for _, count in request.stretches) != prompt_tokens
    ):
        raise InvalidRequest("the stretches do not cover the prompt", param="stretches")
    if request.new_tokens_max < 1:
        raise InvalidRequest("new_tokens_max must be at least 1", param="new_tokens_max")
    if prompt_tokens + request.new_tokens_max > limits.context_tokens_max:
        raise ContextLengthExceeded(
            f"the context holds {limits.context_tokens_max} tokens; the prompt has {prompt_tokens} "
            f"and the reply may have {request.new_tokens_max}",
            param="token_ids",
        )
    if len(request.stop_token_ids) > STOP_TOKENS_MAX:
        raise InvalidRequest("too many stop tokens", param="stop_token_ids")
    if len(request.tenant) > TENANT_BYTES_MAX:
        raise InvalidRequest(f"tenant has more than {TENANT_BYTES_MAX} bytes", param="tenant")
    if request.deadline_ms is not None and not 1 <= request.deadline_ms <= DEADLINE_MS_MAX:
        raise InvalidRequest(
            f"deadline_ms must be from 1 to {DEADLINE_MS_MAX}", param="deadline_ms"
        )
    _check_sampling(request.sampling, limits.vocab_size)


def make_sequence(
    request: Generate,
    *,
    key: RequestKey,
    ordinal: int,
    arrived_at: float,
    limits: RequestLimits,
    model_fingerprint: str,
) -> Sequence:
    """The waiting sequence of a request that passed `check_request`.

    Namespaces get the model's fingerprint in front (of one length for all), so that K/V of another
    model can never be found. A request without a seed gets a random one here, once.
    """
    prompt = array("I")
    prompt.frombytes(request.token_ids)
    first = _first(request)
    prompt_tokens = first + len(prompt)
    last = limits.context_tokens_max - prompt_tokens - request.new_tokens_max
    prefix = model_fingerprint.encode()
    seed = request.sampling.seed
    return Sequence(
        key=key,
        request=request,
        stretches=[(prefix + namespace, count) for namespace, count in request.stretches],
        # Closing tokens past the context could never be part of a next prompt.
        closing=tokens.head(request.closing, last),
        seed=secrets.randbits(SEED_BITS) if seed is None else seed,
        ordinal=ordinal,
        arrived_at=arrived_at,
        tokens=prompt,
        first=first,
        prompt_tokens=prompt_tokens,
        stop_token_ids=frozenset(request.stop_token_ids),
    )


def _first(request: Generate) -> int:
    return 0 if request.after is None else request.after.tokens


def _check_ids(token_ids: tokens.TokenIds, param: str, vocab_size: int) -> None:
    if len(token_ids) % tokens.BYTES_PER_TOKEN != 0:
        raise InvalidRequest(f"{param} is not a whole number of ids", param=param)
    highest = max(tokens.unpack(token_ids), default=0)
    if highest >= vocab_size:
        raise InvalidRequest(
            f"{param} holds the id {highest}; the vocabulary ends at {vocab_size - 1}", param=param
        )


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    inside: Mapping[str, bool] = {
        "temperature": math.isfinite(sampling.temperature) and sampling.temperature >= 0,
        "top_k": sampling.top_k is None or sampling.top_k >= 1,
        "top_p": 0 < sampling.top_p <= 1,
        "min_p": 0 <= sampling.min_p <= 1,
        "presence_penalty": abs(sampling.presence_penalty) <= ADJUSTMENT_MAX,
        "frequency_penalty": abs(sampling.frequency_penalty) <= ADJUSTMENT_MAX,
        "repetition_penalty": 1 / ADJUSTMENT_MAX <= sampling.repetition_penalty <= ADJUSTMENT_MAX,
        "logit_bias": (
            len(sampling.logit_bias) <= LOGIT_BIAS_MAX
            and all(0 <= token_id < vocab_size for token_id in sampling.logit_bias)
            and all(abs(value) <= ADJUSTMENT_MAX for value in sampling.logit_bias.values())
        ),
        "logprobs": sampling.logprobs is None or 0 <= sampling.logprobs <= LOGPROBS_MAX,
    }
    for param, is_inside in inside.items():
        if not is_inside:
            raise InvalidRequest(f"sampling.{param} is out of range", param=param)
