"""What a model's weights, keys and values take, and how many chats fit into how many bytes.

Never: files, what a machine has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from appliance.model.kv_cache import ELEMENT_TYPES, KVDtype, bytes_per_page
from appliance.model.layout import tensor_shapes
from appliance.model.shape import ModelConfig

CHAT_MESSAGES = 180
MESSAGE_TOKENS = 50
"""The chat that sizes are told in: 180 messages, about 9,000 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvForm:
    """The model's keys and values kept in one way, in bytes.

    `kv_dtype` is an element type of `ELEMENT_TYPES`; `chats` says for each tier how many fit whole.
    """

    name: str
    kv_heads: int
    kv_dtype: KVDtype
    token_bytes: int
    chat_bytes: int
    chats: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Sizes of one model. `weight_bytes`: in float32; `loaded_bytes`: as this box's engine keeps them.

    A chat has `chat_messages` messages and is kept as `chat_tokens` tokens: no more than the model can
    look at. `tiers`: name -> free bytes. `own`: the model as it is, by element type; `heads`: in
    float32, with a K/V head for every query head, for a group of them, and with one for all.
    """

    parameters: int
    weight_bytes: int
    loaded_bytes: int
    chat_messages: int
    chat_tokens: int
    tiers: dict[str, int]
    own: tuple[KvForm, ...]
    heads: tuple[KvForm, ...]


def parameters(config: ModelConfig) -> int:
    """Numbers in all weights; a tied head is counted once."""
    return sum(math.prod(shape) for shape in tensor_shapes(config).values())


def weight_bytes(config: ModelConfig, bits: int) -> int:
    """What the weights take with so many bits each."""
    return parameters(config) * bits // 8


def footprint(config: ModelConfig, tiers: dict[str, int], *, weight_bits: int) -> Footprint:
    """`tiers`: name -> bytes free for keys and values; `weight_bits`: of a weight as it is loaded."""
    chat_tokens = min(CHAT_MESSAGES * MESSAGE_TOKENS, config.context_tokens)

    def form(name: str, kv_heads: int, kv_dtype: KVDtype) -> KvForm:
        dtype = ELEMENT_TYPES[kv_dtype]
        token_bytes = bytes_per_page(replace(config, kv_heads=kv_heads), 1, dtype)
        chat_bytes = token_bytes * chat_tokens
        return KvForm(
            name=name,
            kv_heads=kv_heads,
            kv_dtype=kv_dtype,
            token_bytes=token_bytes,
            chat_bytes=chat_bytes,
            chats={tier: free // chat_bytes for tier, free in tiers.items()},
        )

    return Footprint(
        parameters=parameters(config),
        weight_bytes=weight_bytes(config, 32),
        loaded_bytes=weight_bytes(config, weight_bits),
        chat_messages=CHAT_MESSAGES,
        chat_tokens=chat_tokens,
        tiers=tiers,
        own=tuple(form(kind, config.kv_heads, kind) for kind in ELEMENT_TYPES),
        heads=tuple(form(name, count, "float32") for name, count in head_forms(config).items()),
    )


def head_forms(config: ModelConfig) -> dict[str, int]:
    """How many K/V heads each form of the model has; `grouped-query` has the model's own where it is
    one, else the divisor of its heads nearest to their square root."""
    heads = config.heads
    grouped = config.kv_heads
    if not 1 < grouped < heads:
        divisors = [count for count in range(1, heads + 1) if heads % count == 0]
        grouped = min(divisors, key=lambda count: abs(count - math.sqrt(heads)))
    return {"multi-head": heads, "grouped-query": grouped, "multi-query": 1}
