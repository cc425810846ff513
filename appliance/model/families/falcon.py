"""Falcon: attention and MLP side by side, one K/V head (7B) or a few (40B, 11B), LayerNorm, plain GELU.

As in "The Falcon Series of Open Language Models" (arXiv:2311.16867).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from appliance.errors import ModelError
from appliance.model.families.common import (
    LAYERS_MAX,
    own_layers,
    read_activation,
    special_ids,
    split_width,
)
from appliance.model.fields import Fields
from appliance.model.names import TensorNames
from appliance.model.rope import reach, read_rope
from appliance.model.shape import Biases, Flow, ModelConfig, Norm, QkvOrder

LAYOUT = TensorNames(
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv="self_attention.query_key_value",
    output="self_attention.dense",
    mlp_norm=None,
    gate=None,
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)


def parse_falcon(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`FalconForCausalLM`."""
    fields.refuse("alibi")
    hidden = fields.count("n_embed" if fields.get("n_embed") is not None else "hidden_size")
    heads = fields.count("num_attention_heads")
    head_dim = split_width(fields, hidden, heads)
    new = fields.flag("new_decoder_architecture", default=False)
    flow, norms = _flow(fields, new=new)
    names = LAYOUT
    if norms == 2 and flow is Flow.PARALLEL:
        names = replace(LAYOUT, attention_norm="ln_attn", mlp_norm="ln_mlp")
    elif flow is Flow.SERIAL:
        names = replace(LAYOUT, mlp_norm="post_attention_layernorm")
    kv_heads, order = _kv_heads(fields, heads, new=new)
    layers = fields.count("num_hidden_layers", limit=LAYERS_MAX)
    vocab_size = fields.count("vocab_size")
    context_tokens = fields.count("max_position_embeddings", default=2048)
    rope = read_rope(fields, context_tokens=context_tokens)
    bias = fields.flag("bias", default=False)
    bos_id, eos_ids = special_ids(fields, generation, vocab_size)
    return ModelConfig(
        family="falcon",
        names=names,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.count("ffn_hidden_size", default=4 * hidden),
        vocab_size=vocab_size,
        context_tokens=reach(rope, context_tokens),
        per_layer=own_layers([None] * layers, [rope] * layers),
        norm=Norm.LAYER,
        norm_eps=fields.positive("layer_norm_epsilon", default=1e-5),
        flow=flow,
        activation=read_activation(fields, "activation", "gelu"),
        gated=False,
        qkv_order=order,
        biases=Biases(qkv=bias, output=bias, mlp=bias),
        attention_scale=head_dim**-0.5,
        tie_embeddings=fields.flag("tie_word_embeddings", default=True),
        bos_id=bos_id,
        eos_ids=eos_ids,
    )


def _flow(fields: Fields, *, new: bool) -> tuple[Flow, int]:
    """How a layer is joined, and how many norms it has in front."""
    parallel = fields.flag("parallel_attn", default=True)
    norms = fields.count("num_ln_in_parallel_attn", default=2 if new else 1, limit=2)
    if new and not parallel:
        raise ModelError(
            f"{fields.source}: parallel_attn false is not supported with new_decoder_architecture"
        )
    if not new and norms == 2:
        raise ModelError(
            f"{fields.source}: num_ln_in_parallel_attn 2 is not supported without "
            "new_decoder_architecture"
        )
    return (Flow.PARALLEL if parallel else Flow.SERIAL), norms


def _kv_heads(fields: Fields, heads: int, *, new: bool) -> tuple[int, QkvOrder]:
    """K/V heads and the rows' order; `num_kv_heads` counts only where `multi_query` does not."""
    if not new and fields.flag("multi_query", default=True):
        return 1, QkvOrder.SPLIT
    kv_heads = fields.count("num_kv_heads", default=heads)
    if heads % kv_heads or (not new and kv_heads != heads):
        raise ModelError(
            f"{fields.source}: num_kv_heads {kv_heads} does not fit num_attention_heads {heads}"
        )
    return kv_heads, QkvOrder.GROUPED
