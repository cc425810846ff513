"""The layers of a decoder: attention and MLP, joined in one of three ways. Never: files, pages, batches.

What differs between models is decided when a block is built; a step only runs it.
"""

from __future__ import annotations

from collections.abc import Callable
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
    return JOINS[config.flow](layer, _Attention(config, layer, attention))


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


def _serial(layer: Layer, mix: _Attention) -> Block:
    mlp_norm = layer.mlp_norm
    assert mlp_norm is not None

    def block(x: torch.Tensor, turn: Turn | None, attend: Attend) -> None:
        layer.output.add_to(x, mix(layer.qkv.normed(x, layer.attention_norm), turn, attend))
        layer.down.add_to(x, layer.up.normed(x, mlp_norm))

    return block


def _sandwich(layer: Layer, mix: _Attention) -> Block:
    mlp_norm = layer.mlp_norm
    post_attention_norm, post_mlp_norm = layer.post_attention_norm, layer.post_mlp_norm
    assert mlp_norm is not None
    assert post_attention_norm is not None
    assert post_mlp_norm is not None

    def block(x: torch.Tensor, turn: Turn | None, attend: Attend) -> None:
        mixed = mix(layer.qkv.normed(x, layer.attention_norm), turn, attend)
        x += post_attention_norm(layer.output(mixed))
        x += post_mlp_norm(layer.down(layer.up.normed(x, mlp_norm)))

    return block


def _parallel(layer: Layer, mix: _Attention) -> Block:
    mlp_norm = layer.mlp_norm

    def block(x: torch.Tensor, turn: Turn | None, attend: Attend) -> None:
        normed = layer.attention_norm(x)
        inner = layer.up(normed) if mlp_norm is None else layer.up.normed(x, mlp_norm)
        layer.output.add_to(x, mix(layer.qkv(normed), turn, attend))
        layer.down.add_to(x, inner)

    return block


JOINS: dict[Flow, Callable[[Layer, _Attention], Block]] = {
    Flow.SERIAL: _serial,
    Flow.SANDWICH: _sandwich,
    Flow.PARALLEL: _parallel,
}
