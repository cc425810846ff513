"""The layers of a decoder: attention and MLP, joined in one of three ways. Never: files, pages, batches.

What differs between models is decided when a block is built; a step only runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch.nn.functional import gelu, relu, silu

from appliance.model.attention import Attend, LayerAttention
from appliance.model.linear import Linear
from appliance.model.norm import NormFunction
from appliance.model.shape import Activation, Flow, ModelConfig

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: silu,
    Activation.GELU: gelu,
    Activation.GELU_TANH: partial(gelu, approximate="tanh"),
    Activation.RELU: relu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's weights.

    qkv: the rows of q, then k, then v, or of q alone in a layer that reads another's keys and values;
    up: the rows of the gate, where there is one, then of up. In each head of q and k that is rotated,
    row i + head_dim / 2 follows row i: elements that are rotated together lie side by side. The products
    of q and k do not change by that. `head_norm` is over the heads of q and k together.
    """

    attention_norm: NormFunction
    qkv: Linear
    head_norm: NormFunction | None
    output: Linear
    post_attention_norm: NormFunction | None
    mlp_norm: NormFunction | None
    up: Linear
    down: Linear
    post_mlp_norm: NormFunction | None


class Block(Protocol):
    """One layer of a step."""

    def __call__(self, x: torch.Tensor, turns: torch.Tensor | None, attend: Attend) -> None:
        """Update float32 [tokens, hidden] in place; `turns`: complex64 [tokens, 1, head_dim / 2]."""


def build_block(config: ModelConfig, layer: Layer, attention: LayerAttention) -> Block:
    """The block of `config.flow`."""
    mix = _Attention(config, layer, attention)
    mlp = _Mlp(layer.up, ACTIVATIONS[config.activation], gated=config.gated)
    return JOINS[config.flow](layer, mix, mlp)


class _Attention:
    """Normed input -> attended values, before the output matrix."""

    def __init__(self, config: ModelConfig, layer: Layer, attention: LayerAttention) -> None:
        self._qkv = layer.qkv
        self._head_norm = layer.head_norm
        self._attention = attention
        self._heads = config.heads
        self._head_dim = config.head_dim
        self._values_start = config.heads + (config.kv_heads if attention.stores else 0)

    def __call__(
        self, normed: torch.Tensor, turns: torch.Tensor | None, attend: Attend
    ) -> torch.Tensor:
        tokens, heads, values_start = len(normed), self._heads, self._values_start
        qkv = self._qkv(normed).view(tokens, -1, self._head_dim)
        turning = qkv[:, :values_start]
        if self._head_norm is not None:
            turning.copy_(self._head_norm(turning))
        if turns is not None:
            # Pairs lie side by side (see `Layer`), so a rotation is one complex multiplication.
            pairs = turning.view(tokens, values_start, -1, 2)
            torch.view_as_complex(pairs).mul_(turns)
        keys, values = qkv[:, heads:values_start], qkv[:, values_start:]
        return attend(self._attention, qkv[:, :heads], keys, values).flatten(1)


class _Mlp:
    """Normed input -> what the down matrix takes."""

    def __init__(
        self, up: Linear, activation: Callable[[torch.Tensor], torch.Tensor], *, gated: bool
    ) -> None:
        self._up = up
        self._activation = activation
        self._gated = gated

    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        if not self._gated:
            return self._activation(self._up(normed))
        gate, up = self._up(normed).chunk(2, dim=-1)
        return self._activation(gate).mul_(up)


def _serial(layer: Layer, mix: _Attention, mlp: _Mlp) -> Block:
    mlp_norm = layer.mlp_norm
    assert mlp_norm is not None

    def block(x: torch.Tensor, turns: torch.Tensor | None, attend: Attend) -> None:
        layer.output.add_to(x, mix(layer.attention_norm(x), turns, attend))
        layer.down.add_to(x, mlp(mlp_norm(x)))

    return block


def _sandwich(layer: Layer, mix: _Attention, mlp: _Mlp) -> Block:
    mlp_norm = layer.mlp_norm
    post_attention_norm, post_mlp_norm = layer.post_attention_norm, layer.post_mlp_norm
    assert mlp_norm is not None
    assert post_attention_norm is not None
    assert post_mlp_norm is not None

    def block(x: torch.Tensor, turns: torch.Tensor | None, attend: Attend) -> None:
        mixed = mix(layer.attention_norm(x), turns, attend)
        x += post_attention_norm(layer.output(mixed))
        x += post_mlp_norm(layer.down(mlp(mlp_norm(x))))

    return block


def _parallel(layer: Layer, mix: _Attention, mlp: _Mlp) -> Block:
    def block(x: torch.Tensor, turns: torch.Tensor | None, attend: Attend) -> None:
        normed = layer.attention_norm(x)
        inner = mlp(normed if layer.mlp_norm is None else layer.mlp_norm(x))
        layer.output.add_to(x, mix(normed, turns, attend))
        layer.down.add_to(x, inner)

    return block


JOINS: dict[Flow, Callable[[Layer, _Attention, _Mlp], Block]] = {
    Flow.SERIAL: _serial,
    Flow.SANDWICH: _sandwich,
    Flow.PARALLEL: _parallel,
}
