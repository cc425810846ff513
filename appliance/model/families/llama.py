"""Llama, Mistral: pre-norm blocks with RMSNorm, rotary embeddings, grouped queries and SwiGLU.

As in "LLaMA" (arXiv:2302.13971), "GQA" (arXiv:2305.13245) and "Mistral 7B" (arXiv:2310.06825).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from appliance.model.families.common import (
    LAYERS_MAX,
    gated_decoder,
    own_layers,
    read_activation,
)
from appliance.model.fields import Fields
from appliance.model.names import TensorNames
from appliance.model.rope import reach, read_rope
from appliance.model.shape import Biases, ModelConfig

LAYOUT = TensorNames()


def parse_llama(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`LlamaForCausalLM`."""
    fields.refuse("rope_interleaved", "sliding_window", "layer_types")
    attention_bias = fields.flag("attention_bias", default=False)
    biases = Biases(
        qkv=attention_bias,
        output=attention_bias,
        mlp=fields.flag("mlp_bias", default=False),
    )
    return parse_plain(fields, generation, family="llama", biases=biases)


def parse_mistral(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`MistralForCausalLM`: llama in which all layers may have a window."""
    fields.refuse("layer_types", "attention_bias", "mlp_bias")
    config = parse_plain(
        fields, generation, family="mistral", biases=Biases(), context_default=4096 * 32
    )
    # An absent window is the family's default; only null is none.
    window = fields.optional_count("sliding_window") if fields.has("sliding_window") else 4096
    return replace(
        config, per_layer=tuple(replace(layer, window=window) for layer in config.per_layer)
    )


def parse_plain(
    fields: Fields,
    generation: dict[str, Any],
    *,
    family: str,
    biases: Biases,
    context_default: int = 2048,
    head_dim_default: int | None = None,
) -> ModelConfig:
    """What llama and its relatives share; no windows."""
    layers = fields.count("num_hidden_layers", limit=LAYERS_MAX)
    context_tokens = fields.count("max_position_embeddings", default=context_default)
    rope = read_rope(fields, context_tokens=context_tokens)
    return gated_decoder(
        fields,
        generation,
        family=family,
        names=LAYOUT,
        context_tokens=reach(rope, context_tokens),
        per_layer=own_layers([None] * layers, [rope] * layers),
        activation=read_activation(fields, "hidden_act", "silu"),
        biases=biases,
        tie_default=False,
        head_dim_default=head_dim_default,
    )
