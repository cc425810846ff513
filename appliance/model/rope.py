"""Rotary embeddings as data, read from a config. Never: the angles themselves, torch.

The kinds and their fields are those of `transformers` (modeling_rope_utils.py): a config says them in
`rope_parameters` (version 5) or in `rope_theta` and `rope_scaling` (before).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from appliance.errors import ModelError
from appliance.model.fields import Fields, shown

THETA_DEFAULT = 10_000.0


REACH_MAX = 2.0**31
"""Positions: a factor may be any number, and no model reaches further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Every frequency divided by `factor` (arXiv:2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """A theta that grows with the position past `original_tokens` ("dynamic NTK").

    `transformers` rotates all tokens of a call by the length the call reaches. Here position p is
    rotated by the frequencies of length p + 1, which is the same for every token that is decoded step
    by step. Cached keys then depend on nothing but their position, whatever was computed together.
    """

    factor: float
    original_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, those between mixed (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071).

    `attention_factor` multiplies rotated queries and keys. `truncate`: the ramp between kept and
    divided frequencies starts and ends at whole ones.
    """

    factor: float
    original_tokens: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool


Scaling: TypeAlias = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotation of whole heads; `scaling` None for plain rotary embeddings (arXiv:2104.09864)."""

    theta: float
    scaling: Scaling | None


def read_rope(fields: Fields, *, context_tokens: int, theta_default: float = THETA_DEFAULT) -> Rope:
    """The one rotation of a config. `context_tokens`: its max_position_embeddings."""
    _refuse_partial(fields)
    part = fields.part("rope_scaling")
    if part is None or not part.names():
        part = fields.part("rope_parameters")
    theta = fields.positive("rope_theta", default=theta_default)
    if part is None:
        return Rope(theta=theta, scaling=None)
    original = fields.optional_count("original_max_position_embeddings")
    return parse_rope(part, theta=theta, original_tokens=original, context_tokens=context_tokens)


def parse_rope(
    part: Fields, *, theta: float, original_tokens: int | None, context_tokens: int
) -> Rope:
    """`theta` is used when the object has none; `original_tokens` wins over the object's own."""
    _refuse_partial(part)
    return Rope(
        theta=part.positive("rope_theta", default=theta),
        scaling=_scaling(part, original_tokens, context_tokens),
    )


def _refuse_partial(fields: Fields) -> None:
    """None of the families rotates a part of a head."""
    factor = fields.positive("partial_rotary_factor", default=1.0)
    if factor != 1.0:
        raise ModelError(f"{fields.source}: partial_rotary_factor {factor} is not supported")


def _scaling(part: Fields, original_tokens: int | None, context_tokens: int) -> Scaling | None:
    kind = part.get("rope_type") or part.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=part.positive("factor"))
    if kind == "dynamic":
        return DynamicScaling(factor=part.positive("factor"), original_tokens=context_tokens)
    if original_tokens is None:
        original_tokens = part.count("original_max_position_embeddings", default=context_tokens)
    if kind == "llama3":
        return _llama3(part, original_tokens)
    if kind == "yarn":
        return _yarn(part, original_tokens, context_tokens)
    raise ModelError(
        f"{part.source}: rotary embeddings of type {shown(kind)} are not supported; supported: "
        "'default', 'linear', 'dynamic', 'llama3', 'yarn'"
    )


def _llama3(part: Fields, original_tokens: int) -> Llama3Scaling:
    low, high = part.positive("low_freq_factor"), part.positive("high_freq_factor")
    if high <= low:
        raise ModelError(
            f"{part.source}: high_freq_factor {high} is not above low_freq_factor {low}"
        )
    return Llama3Scaling(
        factor=part.positive("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_tokens=original_tokens,
    )


def _yarn(part: Fields, original_tokens: int, context_tokens: int) -> YarnScaling:
    factor = part.positive("factor", default=context_tokens / original_tokens)
    attention_factor = part.optional_positive("attention_factor")
    if attention_factor is None:
        mscale, mscale_all = (part.optional_positive(n) for n in ("mscale", "mscale_all_dim"))
        attention_factor = _mscale(factor, 1.0)
        if mscale is not None and mscale_all is not None:
            attention_factor = _mscale(factor, mscale) / _mscale(factor, mscale_all)
    return YarnScaling(
        factor=factor,
        original_tokens=original_tokens,
        attention_factor=attention_factor,
        beta_fast=part.positive("beta_fast", default=32.0),
        beta_slow=part.positive("beta_slow", default=1.0),
        truncate=part.flag("truncate", default=True),
    )


def _mscale(factor: float, weight: float) -> float:
    """The paper's temperature, equation 22, with a weight of its own."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def check_rotation(rope: Rope, head_dim: int, source: str) -> None:
    """Raise ModelError unless heads of this width can be rotated so: elements are taken in pairs."""
    if head_dim % 2:
        raise ModelError(f"{source}: head_dim {head_dim} is odd; rotary embeddings need pairs")
    if isinstance(rope.scaling, DynamicScaling) and head_dim < 4:
        raise ModelError(f"{source}: head_dim {head_dim} is too small for dynamic scaling")


def reach(rope: Rope, context_tokens: int) -> int:
    """How many positions a model with this rotation is made for.

    `context_tokens` is its max_position_embeddings. With dynamic scaling that is the length before
    scaling; with YaRN, configs say either length. A linear factor is taken to be in it already.
    """
    scaling = rope.scaling
    if isinstance(scaling, DynamicScaling):
        return int(min(REACH_MAX, context_tokens * max(1.0, scaling.factor)))
    if isinstance(scaling, YarnScaling):
        return max(context_tokens, int(min(REACH_MAX, scaling.original_tokens * scaling.factor)))
    return context_tokens
