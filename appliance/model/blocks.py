"""The layers of a decoder: attention and MLP, joined in one of three ways. Never: files, pages, batches.

What differs between models is decided when a block is built; a step only runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from appliance.model.attention import Attend, LayerAttention
from appliance.model.linear import Gate, Linear
from appliance.model.norm import NormFunction
from appliance.model.rotary import Turn
from appliance.model.shape import Flow, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's weights.

    qkv: the rows of q, then k, then v, or of q alone in a layer that reads another's keys and values;
    up: what the input of `down` comes from. In each head of q and k that is rotated,
    row i + head_dim / 2 follows row i: elements that are rotated together lie side by side. The products
    of q and k do not change by that. `head_norm` is over the heads of q and k together.
    """

    attention_norm: NormFunction
    qkv: Linear
    head_norm: NormFunction | None
    output: Linear
    post_attention_norm: NormFunction | None
    mlp_norm: NormFunction | None
    up: Gate
    down: Linear
    post_mlp_norm: NormFunction | None


class Block(Protocol):
    """One layer of a step."""

    def __call__(self, x: torch.Tensor, turn: Turn | None, attend: Attend) -> None:
        """Update contiguous float32 [tokens, hidden] in place; `turn`: of this step, for this layer."""


def build_block(config: ModelConfig, layer: Layer, attention: LayerAttention) -> Block:
    """The block of `config.flow`."""
    mix = _Attention(config, layer, attention)
    if config.flow is Flow.SERIAL:
        return _Serial(layer, mix)
    if config.flow is Flow.SANDWICH:
        return _Sandwich(layer, mix)
    return _Parallel(layer, mix)


class _Attention:
    """q, k and v -> attended values, before the output matrix."""

    def __init__(self, config: ModelConfig, layer: Layer, attention: LayerAttention) -> None:
        self._head_norm = layer.head_norm
        self._attention = attention
        self._heads = config.heads
        self._head_dim = config.head_dim
        self._values_start = config.heads + (config.kv_heads if attention.stores else 0)

    def __call__(self, qkv: torch.Tensor, turn: Turn | None, attend: Attend) -> torch.Tensor:
        tokens, heads, values_start = len(qkv), self._heads, self._values_start
        qkv = qkv.view(tokens, -1, self._head_dim)
        turning = qkv[:, :values_start]
        if self._head_norm is not None:
            turning.copy_(self._head_norm(turning))
        if turn is not None:
            turn(turning)
        keys, values = qkv[:, heads:values_start], qkv[:, values_start:]
        return attend(self._attention, qkv[:, :heads], keys, values).flatten(1)


class _Serial:
    def __init__(self, layer: Layer, mix: _Attention) -> None:
        assert layer.mlp_norm is not None
        self._attention_norm, self._qkv, self._mix = layer.attention_norm, layer.qkv, mix
        self._output, self._mlp_norm = layer.output, layer.mlp_norm
        self._up, self._down = layer.up, layer.down

    def __call__(self, x: torch.Tensor, turn: Turn | None, attend: Attend) -> None:
        qkv = self._qkv.normed(x, self._attention_norm)
        self._output.add_to(x, self._mix(qkv, turn, attend))
        self._down.add_to(x, self._up.normed(x, self._mlp_norm))


class _Sandwich:
    def __init__(self, layer: Layer, mix: _Attention) -> None:
        assert layer.post_attention_norm is not None
        assert layer.mlp_norm is not None
        assert layer.post_mlp_norm is not None
        self._attention_norm, self._qkv, self._mix = layer.attention_norm, layer.qkv, mix
        self._output, self._mlp_norm = layer.output, layer.mlp_norm
        self._up, self._down = layer.up, layer.down
        self._post_attention_norm = layer.post_attention_norm
        self._post_mlp_norm = layer.post_mlp_norm

    def __call__(self, x: torch.Tensor, turn: Turn | None, attend: Attend) -> None:
        mixed = self._mix(self._qkv.normed(x, self._attention_norm), turn, attend)
        x += self._post_attention_norm(self._output(mixed))
        x += self._post_mlp_norm(self._down(self._up.normed(x, self._mlp_norm)))


class _Parallel:
    def __init__(self, layer: Layer, mix: _Attention) -> None:
        self._attention_norm, self._qkv, self._mix = layer.attention_norm, layer.qkv, mix
        self._output, self._mlp_norm = layer.output, layer.mlp_norm
        self._up, self._down = layer.up, layer.down

    def __call__(self, x: torch.Tensor, turn: Turn | None, attend: Attend) -> None:
        normed = self._attention_norm(x)
        inner = self._up(normed) if self._mlp_norm is None else self._up.normed(x, self._mlp_norm)
        self._output.add_to(x, self._mix(self._qkv(normed), turn, attend))
        self._down.add_to(x, inner)
