"""Qwen2, Qwen3: llama with biased (2) or normed (3) queries and keys, and windows in the last layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from appliance.errors import ModelError
from appliance.model.families.common import FULL, SLIDING, read_layer_kinds
from appliance.model.families.llama import LAYOUT, parse_plain
from appliance.model.fields import Fields
from appliance.model.shape import Biases, ModelConfig

CONTEXT_DEFAULT = 32768


def parse_qwen2(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`Qwen2ForCausalLM`: queries, keys and values always have a bias, whatever attention_bias says."""
    fields.refuse("mlp_bias")
    config = parse_plain(
        fields,
        generation,
        family="qwen2",
        biases=Biases(qkv=True),
        context_default=CONTEXT_DEFAULT,
    )
    return _with_windows(config, fields)


def parse_qwen3(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`Qwen3ForCausalLM`."""
    fields.refuse("mlp_bias")
    bias = fields.flag("attention_bias", default=False)
    config = parse_plain(
        fields,
        generation,
        family="qwen3",
        biases=Biases(qkv=bias, output=bias),
        context_default=CONTEXT_DEFAULT,
        head_dim_default=128,
    )
    names = replace(LAYOUT, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")
    return _with_windows(replace(config, names=names), fields)


def _with_windows(config: ModelConfig, fields: Fields) -> ModelConfig:
    window = None
    if fields.flag("use_sliding_window", default=False):
        window = fields.count("sliding_window", default=4096)
    first = fields.get("max_window_layers")
    first = 28 if first is None else first
    if type(first) is not int or first < 0:
        raise ModelError(f"{fields.source}: max_window_layers is {first!r}, not a number of layers")
    default = [
        SLIDING if window is not None and index >= first else FULL for index in range(config.layers)
    ]
    kinds = read_layer_kinds(fields, config.layers, default)
    if window is None and SLIDING in kinds:
        raise ModelError(
            f"{fields.source}: layer_types has {SLIDING!r}, but use_sliding_window is not true"
        )
    per_layer = tuple(
        replace(layer, window=window if kind == SLIDING else None)
        for layer, kind in zip(config.per_layer, kinds, strict=True)
    )
    return replace(config, per_layer=per_layer)
