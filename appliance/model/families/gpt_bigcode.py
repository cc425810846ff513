"""GPT BigCode (SantaCoder, StarCoder): GPT-2 blocks with one K/V head and learned positions.

As in "StarCoder" (arXiv:2305.06161).
"""

from __future__ import annotations

from typing import Any

from appliance.model.families.common import (
    LAYERS_MAX,
    own_layers,
    read_activation,
    special_ids,
    split_width,
)
from appliance.model.fields import Fields
from appliance.model.names import IGNORED_SUFFIX, TensorNames
from appliance.model.shape import Biases, Flow, ModelConfig, Norm, QkvOrder

LAYOUT = TensorNames(
    embedding="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    qkv="attn.c_attn",
    output="attn.c_proj",
    mlp_norm="ln_2",
    gate=None,
    up="mlp.c_fc",
    down="mlp.c_proj",
    # Old checkpoints store the causal mask.
    ignored_suffixes=(IGNORED_SUFFIX, ".attn.bias", ".attn.masked_bias"),
)


def parse_gpt_bigcode(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`GPTBigCodeForCausalLM`; without `multi_query` each head's rows lie together."""
    fields.refuse("add_cross_attention")
    hidden, heads = fields.count("n_embd"), fields.count("n_head")
    head_dim = split_width(fields, hidden, heads)
    layers = fields.count("n_layer", limit=LAYERS_MAX)
    vocab_size = fields.count("vocab_size")
    multi_query = fields.flag("multi_query", default=True)
    scaled = fields.flag("scale_attn_weights", default=True)
    bos_id, eos_ids = special_ids(fields, generation, vocab_size)
    return ModelConfig(
        family="gpt_bigcode",
        names=LAYOUT,
        hidden=hidden,
        heads=heads,
        kv_heads=1 if multi_query else heads,
        head_dim=head_dim,
        intermediate=fields.count("n_inner", default=4 * hidden),
        vocab_size=vocab_size,
        context_tokens=fields.count("n_positions", default=1024),
        per_layer=own_layers([None] * layers, [None] * layers),
        norm=Norm.LAYER,
        norm_eps=fields.positive("layer_norm_epsilon", default=1e-5),
        flow=Flow.SERIAL,
        activation=read_activation(fields, "activation_function", "gelu_pytorch_tanh"),
        gated=False,
        qkv_order=QkvOrder.SPLIT if multi_query else QkvOrder.GROUPED,
        biases=Biases(qkv=True, output=True, mlp=True),
        attention_scale=head_dim**-0.5 if scaled else 1.0,
        learned_positions=True,
        tie_embeddings=fields.flag("tie_word_embeddings", default=True),
        bos_id=bos_id,
        eos_ids=eos_ids,
    )
