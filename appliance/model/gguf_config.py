"""GGUF metadata as the `config.json` Hugging Face has for the same model. Never: tensors' data.

What a file does not say, its architecture fixes; those values are llama.cpp's own (llama-model.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from appliance.errors import ModelError
from appliance.model.families.common import FULL, LAYERS_MAX, SLIDING
from appliance.model.fields import shown
from appliance.model.gguf_metadata import Metadata
from appliance.model.gguf_reader import Gguf
from appliance.model.gguf_rope import rope_fields

GEMMA2_27B_LAYERS = 46
GEMMA3_27B_LAYERS = 62
"""The largest models scale attention by hidden / heads; all others by the width of a head."""

GEMMA2_PATTERN, GEMMA3_PATTERN = 2, 6
GEMMA3_LOCAL_THETA = 10_000.0


def config_json(gguf: Gguf, architecture: str) -> dict[str, Any]:
    """The fields of a `config.json`; types are checked when they are parsed. Raises ModelError.

    `architecture` is a key of `BUILDERS`.
    """
    metadata = Metadata(gguf, architecture)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{gguf.path}: tensor 'token_embd.weight' is missing")
    if metadata.get("expert_count"):
        raise ModelError(f"{gguf.path}: mixtures of experts are not supported")
    return {
        **BUILDERS[architecture](metadata),
        "dtype": "float32",
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
    }


def _rms_family(
    metadata: Metadata, model_type: str, *, theta_default: float = 10_000.0
) -> dict[str, Any]:
    """What all architectures with RMSNorm have; `model_type` names the class in `transformers` too."""
    metadata.refuse(
        "logit_scale", "residual_scale", "embedding_scale", "attention.shared_kv_layers"
    )
    heads = metadata.need("attention.head_count")
    config = {
        "architectures": [f"{model_type.partition('_')[0].capitalize()}ForCausalLM"],
        "model_type": model_type,
        "hidden_size": metadata.need("embedding_length"),
        "num_hidden_layers": metadata.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("attention.head_count_kv", heads),
        "intermediate_size": metadata.need("feed_forward_length"),
        "max_position_embeddings": metadata.need("context_length"),
        "rms_norm_eps": metadata.need("attention.layer_norm_rms_epsilon"),
        **rope_fields(metadata, theta_default=theta_default),
    }
    if metadata.get("attention.key_length") is not None:
        config["head_dim"] = metadata.get("attention.key_length")
    return config


def _silu_family(metadata: Metadata, model_type: str) -> dict[str, Any]:
    """llama and its kin: one kind of layer, scaled by the width of a head."""
    metadata.refuse("attention.sliding_window", "attention.scale")
    return {**_rms_family(metadata, model_type), "hidden_act": "silu"}


def _llama(metadata: Metadata) -> dict[str, Any]:
    return {
        **_silu_family(metadata, "llama"),
        "attention_bias": metadata.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": metadata.has_tensor("blk.0.ffn_up.bias"),
    }


def _qwen2(metadata: Metadata) -> dict[str, Any]:
    return _silu_family(metadata, "qwen2")


def _qwen3(metadata: Metadata) -> dict[str, Any]:
    return {
        **_silu_family(metadata, "qwen3"),
        "attention_bias": metadata.has_tensor("blk.0.attn_q.bias"),
    }


def _gemma(metadata: Metadata) -> dict[str, Any]:
    metadata.refuse("attention.scale")
    return {
        **_rms_family(metadata, "gemma"),
        "head_dim": metadata.need("attention.key_length"),
        "hidden_act": "gelu_pytorch_tanh",
    }


def _gemma2(metadata: Metadata) -> dict[str, Any]:
    return {
        **_rms_family(metadata, "gemma2"),
        "head_dim": metadata.need("attention.key_length"),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata, GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.get("final_logit_softcapping", 30.0),
        "sliding_window": metadata.get("attention.sliding_window", 4096),
        "layer_types": _layer_types(metadata, GEMMA2_PATTERN),
    }


def _gemma3(metadata: Metadata) -> dict[str, Any]:
    metadata.refuse("attn_logit_softcapping")
    return {
        **_rms_family(metadata, "gemma3_text", theta_default=1_000_000.0),
        "head_dim": metadata.need("attention.key_length"),
        "rope_local_base_freq": metadata.get("rope.freq_base_swa", GEMMA3_LOCAL_THETA),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata, GEMMA3_27B_LAYERS),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": _layer_types(metadata, GEMMA3_PATTERN),
    }


def _query_scalar(metadata: Metadata, largest_layers: int) -> Any:
    """From `attention.scale`, which few files have, else by the size of the model."""
    scale = metadata.get("attention.scale")
    if isinstance(scale, float) and scale > 0:
        # float32 keeps seven digits of the root of a whole number.
        scalar = round(scale**-2)
        if abs(scale**-2 - scalar) > 1e-4 * scalar:
            raise ModelError(
                f"{metadata.gguf.path}: attention.scale {scale} is not the root of a whole number"
            )
        return scalar
    if metadata.need("block_count") != largest_layers:
        return metadata.need("attention.key_length")
    hidden, heads = metadata.need("embedding_length"), metadata.need("attention.head_count")
    if type(hidden) is not int or type(heads) is not int or heads < 1:
        raise ModelError(f"{metadata.gguf.path}: {shown(heads)} heads of {shown(hidden)} in all")
    return hidden // heads


def _layer_types(metadata: Metadata, default: int) -> list[str]:
    """The last layer of each period sees everything; or a list says which layers have a window."""
    layers = metadata.need("block_count")
    if type(layers) is not int or not 1 <= layers <= LAYERS_MAX:
        raise ModelError(f"{metadata.gguf.path}: block_count {shown(layers)} is not supported")
    pattern = metadata.by_layer("attention.sliding_window_pattern", default)
    if isinstance(pattern, np.ndarray) and pattern.shape == (layers,):
        return [SLIDING if windowed else FULL for windowed in pattern.tolist()]
    if type(pattern) is not int or pattern < 1:
        raise ModelError(
            f"{metadata.gguf.path}: attention.sliding_window_pattern is {shown(pattern)}, not a "
            "period or one entry a layer"
        )
    return [SLIDING if (index + 1) % pattern else FULL for index in range(layers)]


def _falcon(metadata: Metadata) -> dict[str, Any]:
    """All but one K/V head under one norm is the new architecture, or computes as it does."""
    kv_heads = metadata.get("attention.head_count_kv", 1)
    two_norms = metadata.has_tensor("blk.0.attn_norm_2.weight")
    new = two_norms or kv_heads != 1
    config = {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "hidden_size": metadata.need("embedding_length"),
        "num_hidden_layers": metadata.need("block_count"),
        "num_attention_heads": metadata.need("attention.head_count"),
        "num_kv_heads": kv_heads,
        "ffn_hidden_size": metadata.need("feed_forward_length"),
        "max_position_embeddings": metadata.need("context_length"),
        "layer_norm_epsilon": metadata.need("attention.layer_norm_epsilon"),
        **rope_fields(metadata, theta_default=10_000.0),
        "activation": "gelu",
        "alibi": False,
        "bias": False,
        "multi_query": not new,
        "parallel_attn": True,
        "new_decoder_architecture": new,
    }
    if new:
        config["num_ln_in_parallel_attn"] = 2 if two_norms else 1
    return config


def _starcoder(metadata: Metadata) -> dict[str, Any]:
    """Only multi-query: of the multi-head form the files do not say how its rows lie."""
    kv_heads = metadata.get("attention.head_count_kv")
    if kv_heads != 1:
        raise ModelError(
            f"{metadata.gguf.path}: starcoder.attention.head_count_kv {shown(kv_heads)} is not "
            "supported: 1"
        )
    return {
        "architectures": ["GPTBigCodeForCausalLM"],
        "model_type": "gpt_bigcode",
        "n_embd": metadata.need("embedding_length"),
        "n_layer": metadata.need("block_count"),
        "n_head": metadata.need("attention.head_count"),
        "n_inner": metadata.need("feed_forward_length"),
        "n_positions": metadata.need("context_length"),
        "layer_norm_epsilon": metadata.need("attention.layer_norm_epsilon"),
        "activation_function": "gelu_pytorch_tanh",
        "multi_query": True,
    }


BUILDERS: dict[str, Callable[[Metadata], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "falcon": _falcon,
    "starcoder": _starcoder,
}
"""By `general.architecture`; Mistral's files say llama."""
