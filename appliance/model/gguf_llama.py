"""A GGUF file of the llama architecture: its config and which tensor is which. Never: tensor data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import ModelError
from appliance.model.config import ModelConfig, parse_config
from appliance.model.fields import shown
from appliance.model.gguf_reader import Gguf, read_gguf
from appliance.model.gguf_tokenizer import TokenizerFiles, build_tokenizer
from appliance.model.layout import tensor_name, tensor_roles

ARCHITECTURE = "llama"

_OUTER_NAMES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "final_norm": "output_norm",
    "lm_head": "output",
}

_LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "qkv": "attn_qkv",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "output": "attn_output",
    "post_attention_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_mlp_norm": "post_ffw_norm",
}
"""Modules by the names of `TensorNames` and in GGUF (`TENSOR_NAMES` of the gguf package)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaGguf:
    """A checked file. `sources`: Hugging Face tensor name -> name in the file."""

    gguf: Gguf
    config: ModelConfig
    config_json: dict[str, Any]
    generation_json: dict[str, Any]
    tokenizer: TokenizerFiles
    sources: dict[str, str]


def check_gguf(path: Path) -> None:
    """Raise ModelError unless `read_llama` understands the whole file."""
    read_llama(path)


def read_llama(path: Path) -> LlamaGguf:
    """Read and check a file's header; raises ModelError for what is damaged or unsupported."""
    gguf = read_gguf(path)
    _refuse_unsupported(gguf)
    tokenizer = build_tokenizer(gguf)
    config_json = _config_json(gguf, tokenizer)
    generation_json = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": list(tokenizer.eos_ids),
        "pad_token_id": tokenizer.pad_id,
    }
    config = parse_config(config_json, generation_json, str(path))
    return LlamaGguf(
        gguf=gguf,
        config=config,
        config_json=config_json,
        generation_json=generation_json,
        tokenizer=tokenizer,
        sources=_match_tensors(gguf, config),
    )


def _refuse_unsupported(gguf: Gguf) -> None:
    path, metadata = gguf.path, gguf.metadata
    architecture = metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise ModelError(
            f"{path}: architecture {shown(architecture)} is not supported; supported: 'llama'"
        )
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        number = metadata.get("split.no", 0)
        number = number + 1 if isinstance(number, int) else "?"
        raise ModelError(
            f"{path}: is part {number} of {parts} of a split GGUF; join the parts with "
            "`llama-gguf-split --merge` first"
        )
    if metadata.get("llama.expert_count", 0):
        raise ModelError(f"{path}: mixtures of experts are not supported")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in gguf.tensors:
        kind = scaling if scaling != "none" else "rope_freqs"
        raise ModelError(f"{path}: rope scaling {shown(kind)} is not supported")


def _config_json(gguf: Gguf, tokenizer: TokenizerFiles) -> dict[str, Any]:
    """The fields of a Hugging Face `config.json`; types are checked when they are parsed."""
    metadata = gguf.metadata

    def field(name: str) -> Any:
        key = f"{ARCHITECTURE}.{name}"
        if key not in metadata:
            raise ModelError(f"{gguf.path}: metadata field {key} is missing")
        return metadata[key]

    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{gguf.path}: tensor 'token_embd.weight' is missing")
    hidden, heads = field("embedding_length"), field("attention.head_count")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": hidden,
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "intermediate_size": field("feed_forward_length"),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": field("context_length"),
        "rope_theta": _shortest(metadata.get("llama.rope.freq_base", 10_000.0)),
        "rms_norm_eps": _shortest(field("attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": list(tokenizer.eos_ids),
        "pad_token_id": tokenizer.pad_id,
    }
    if "llama.attention.key_length" in metadata:
        config["head_dim"] = metadata["llama.attention.key_length"]
    for name, value in config.items():
        if isinstance(value, np.ndarray):
            raise ModelError(f"{gguf.path}: {name} differs by layer, which is not supported")
    return config


def _shortest(value: Any) -> Any:
    """A float32 as its shortest decimal: 9.999999747378752e-06 was 1e-05 before it was stored."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _match_tensors(gguf: Gguf, config: ModelConfig) -> dict[str, str]:
    rotated = gguf.metadata.get("llama.rope.dimension_count", config.head_dim)
    if rotated != config.head_dim:
        raise ModelError(
            f"{gguf.path}: rotates {shown(rotated)} of {config.head_dim} dimensions, "
            "which is not supported"
        )
    if gguf.metadata.get("llama.attention.value_length", config.head_dim) != config.head_dim:
        raise ModelError(f"{gguf.path}: keys and values of different length are not supported")
    sources = {}
    for role, layer, shape in tensor_roles(config):
        source = _gguf_name(role, layer)
        sources[tensor_name(config, role, layer)] = source
        tensor = gguf.tensors.get(source)
        if tensor is None:
            raise ModelError(f"{gguf.path}: tensor {source!r} is missing")
        if tensor.shape != shape:
            raise ModelError(
                f"{gguf.path}: tensor {source!r} has shape {list(tensor.shape)}, "
                f"the metadata asks for {list(shape)}"
            )
    for name in gguf.tensors.keys() - set(sources.values()):
        raise ModelError(f"{gguf.path}: tensor {name!r} is not one of a plain llama model")
    return sources


def _gguf_name(role: str, layer: int | None) -> str:
    module, _, kind = role.partition(".")
    if layer is None:
        return f"{_OUTER_NAMES[module]}.{kind}"
    return f"blk.{layer}.{_LAYER_NAMES[module]}.{kind}"
