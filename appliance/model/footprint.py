"""What a model's keys and values take, and how many chats fit into how many bytes. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.model.layout import tensor_shapes
from appliance.model.shape import ModelConfig

CHAT_MESSAGES = 180
MESSAGE_TOKENS = 50
"""The chat that sizes are told in: 180 messages, about 9,000 tokens."""

SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way of keeping K/V: `kv_heads` heads, each number in `element_bytes`, with a float32 scale for
    each row of a head where it `has_scales` (int8)."""

    name: str
    kv_heads: int
    element_bytes: int
    has_scales: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A place for pages and the bytes it has for them."""

    name: str
    available_bytes: int


def parameters(config: ModelConfig) -> int:
    """Numbers in all weights; a tied head is counted once."""
    return sum(math.prod(shape) for shape in tensor_shapes(config).values())


def kv_bytes_per_token(config: ModelConfig, form: Form) -> int:
    """Bytes of one position's keys and values over all layers that have their own."""
    row = config.head_dim * form.element_bytes + (SCALE_BYTES if form.has_scales else 0)
    return config.kv_layers * 2 * form.kv_heads * row


def element_forms(config: ModelConfig) -> tuple[Form, ...]:
    """The model as it is, by element type."""
    return tuple(
        Form(name=name, kv_heads=config.kv_heads, element_bytes=size, has_scales=has_scales)
        for name, size, has_scales in (("float32", 4, False), ("bfloat16", 2, False), ("int8", 1, True))
    )


def head_forms(config: ModelConfig) -> tuple[Form, ...]:
    """The same model in float32 with every K/V head, with its own number of them, and with one."""
    grouped = config.kv_heads if 1 < config.kv_heads < config.heads else _middle(config.heads)
    return tuple(
        Form(name=name, kv_heads=count, element_bytes=4, has_scales=False)
        for name, count in (
            ("multi-head", config.heads),
            ("grouped-query", grouped),
            ("multi-query", 1),
        )
    )


def _middle(heads: int) -> int:
    """The divisor of `heads` nearest to its square root: a usual grouping."""
    divisors = [count for count in range(1, heads + 1) if heads % count == 0]
    return min(divisors, key=lambda count: abs(count - math.sqrt(heads)))


def chat_tokens(config: ModelConfig) -> int:
    """Tokens of a chat of `CHAT_MESSAGES` that the model can look at, and the cache therefore keeps."""
    return min(CHAT_MESSAGES * MESSAGE_TOKENS, config.context_tokens)


def chats_that_fit(config: ModelConfig, form: Form, tier: Tier) -> int:
    """Whole chats of `chat_tokens` in a tier."""
    return tier.available_bytes // (kv_bytes_per_token(config, form) * chat_tokens(config))
