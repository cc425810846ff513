"""Names and shapes of a llama checkpoint's tensors. Never: their data.

The names are those of the Hugging Face `LlamaForCausalLM` state dict.
"""

from __future__ import annotations

from appliance.model.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Suffix -> shape of the tensors of one layer (full name: `model.layers.N.` + suffix)."""
    hidden = config.hidden
    queries = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    return {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (config.intermediate, hidden),
        "mlp.up_proj.weight": (config.intermediate, hidden),
        "mlp.down_proj.weight": (hidden, config.intermediate),
    }


def layer_name(layer: int, suffix: str) -> str:
    """Full tensor name of a suffix of `layer_shapes` in one layer."""
    return f"model.layers.{layer}.{suffix}"


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor the model needs, in the order a forward pass reads them."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden)}
    per_layer = layer_shapes(config)
    for layer in range(config.layers):
        for suffix, shape in per_layer.items():
            shapes[layer_name(layer, suffix)] = shape
    shapes[FINAL_NORM] = (config.hidden,)
    if not config.tie_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden)
    return shapes
