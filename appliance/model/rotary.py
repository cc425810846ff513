"""The angles of rotary embeddings, as complex numbers by position. Never: configs, heads.

Computed as `transformers` does (modeling_rope_utils.py), in float32 and in its order, so that logits
agree to the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch

from appliance import _core
from appliance.model.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Rope,
    YarnScaling,
)


def rotary_table(
    rope: Rope, *, head_dim: int, context_tokens: int, device: torch.device
) -> torch.Tensor:
    """Complex64 [context_tokens, 1, head_dim / 2]; of length 1 but for YaRN's attention factor."""
    positions = torch.arange(context_tokens).float()
    angles = positions[:, None] * _frequencies(rope, head_dim, positions)
    size = rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0
    turns = torch.complex(angles.cos() * size, angles.sin() * size)
    return turns[:, None].to(device)


Turn: TypeAlias = Callable[[torch.Tensor], None]
"""Turns the heads of a step's tokens in place: float32 [tokens, heads, head_dim], heads contiguous."""


def turn_by(table: torch.Tensor, positions: torch.Tensor) -> Turn:
    """The rotation of a step by a `rotary_table`; `positions`: int64 [tokens], on its device.

    The elements of a pair lie side by side (see `blocks.Layer`): a rotation is one complex product.
    """
    if table.device.type == "cpu":
        return CpuTurn(table, positions)
    return partial(_turn, table[positions])


def _turn(turns: torch.Tensor, heads: torch.Tensor) -> None:
    torch.view_as_complex(heads.view(*heads.shape[:2], -1, 2)).mul_(turns)


class CpuTurn:
    """A `Turn` by the Rust kernel."""

    __slots__ = ("_positions", "_table", "arguments")

    def __init__(self, table: torch.Tensor, positions: torch.Tensor) -> None:
        assert table.is_contiguous()
        assert positions.is_contiguous()
        assert positions.dtype == torch.int64
        self._table, self._positions = table, positions
        self.arguments = (
            positions.data_ptr(),
            table.data_ptr(),
            table.shape[0],
            table.shape[-1],
        )
        """Address of the positions, and of the table; rows and pairs of the table."""

    def __call__(self, heads: torch.Tensor) -> None:
        """See `Turn`."""
        tokens, count, head_dim = heads.shape
        # The kernel gets bare addresses: what it assumes about memory is proved here.
        assert heads.dtype == torch.float32
        assert heads.stride()[1:] == (head_dim, 1)
        assert self._positions.shape == (tokens,)
        positions, table, rows, pairs = self.arguments
        _core.rotate(
            heads.data_ptr(),
            positions,
            table,
            tokens=tokens,
            heads=count,
            head_dim=head_dim,
            stride=heads.stride(0),
            rows=rows,
            pairs=pairs,
        )


def _frequencies(rope: Rope, head_dim: int, positions: torch.Tensor) -> torch.Tensor:
    """Radians a position: [head_dim / 2], or [positions, head_dim / 2] where they differ."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    scaling = rope.scaling
    if scaling is None:
        return plain
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    if isinstance(scaling, DynamicScaling):
        return _dynamic(rope.theta, scaling, exponents, positions)
    if isinstance(scaling, Llama3Scaling):
        return _llama3(scaling, plain)
    return _yarn(rope.theta, scaling, exponents)


def _dynamic(
    theta: float, scaling: DynamicScaling, exponents: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    lengths = (positions + 1).clamp(min=scaling.original_tokens)
    growth = scaling.factor * lengths / scaling.original_tokens - (scaling.factor - 1)
    head_dim = 2 * len(exponents)
    bases = theta * growth ** (head_dim / (head_dim - 2))
    return 1.0 / (bases[:, None] ** exponents)


def _llama3(scaling: Llama3Scaling, plain: torch.Tensor) -> torch.Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    original = scaling.original_tokens
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - low) / (high - low)
    mixed = (1 - smooth) * plain / scaling.factor + smooth * plain
    scaled = torch.where(wavelengths > original / low, plain / scaling.factor, mixed)
    return torch.where(wavelengths < original / high, plain, scaled)


def _yarn(theta: float, scaling: YarnScaling, exponents: torch.Tensor) -> torch.Tensor:
    pairs = len(exponents)
    head_dim = 2 * pairs

    def place(rotations: float) -> float:
        """Which element turns so often within the original length."""
        turns = scaling.original_tokens / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    low, high = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # As transformers does, against a division by zero.
    ramp = ((torch.arange(pairs, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = theta**exponents
    kept, divided = 1.0 / frequencies, 1.0 / (scaling.factor * frequencies)
    return divided * ramp + kept * (1 - ramp)
