"""GGUF files of every family, written as llama.cpp's converter writes them (conversion/*.py).

With the public `gguf` package's writer and tables of names, so that the code under test is not its own
oracle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from appliance.model.files import check_model
from appliance.model.gguf_convert import convert_gguf
from tests.model_fixtures import add_tokenizer, permute


def convert(source: Path, target: Path) -> Path:
    """A converted directory that passed the check of models."""
    convert_gguf(source, target, lambda fraction: None)
    check_model(target)
    return target


ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "falcon": gguf.MODEL_ARCH.FALCON,
    "gpt_bigcode": gguf.MODEL_ARCH.STARCODER,
}


def write_family_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    fields: dict[str, Any] | None = None,
    rope_freqs: NDArray[np.float32] | None = None,
    pre: str = "smollm",
) -> Path:
    """Matrices in `kind`, vectors in float32; `fields` adds or replaces metadata, None leaves it out;
    `pre`: the kind of pre-tokenizer."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    prefix = gguf.MODEL_ARCH_NAMES[architecture]
    metadata = {**_metadata(config), **(fields or {})}
    for key, value in metadata.items():
        name = f"{prefix}.{key}"
        if value is None:
            continue
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    add_tokenizer(writer, pre)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        values = _as_llama_cpp(name, tensor.numpy(), config)
        type_ = kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(stored, gguf.quantize(values, type_), raw_dtype=type_)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: Any) -> dict[str, Any]:
    """Keys without the architecture's name."""
    metadata: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
    }
    family = config.model_type
    if family == "gpt_bigcode":
        return metadata | {
            "feed_forward_length": config.n_inner or 4 * config.n_embd,
            "attention.head_count_kv": 1,
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        }
    if family == "falcon":
        kv_heads = config.num_kv_heads
        if config.multi_query and not config.new_decoder_architecture:
            kv_heads = 1
        return metadata | {
            "feed_forward_length": config.ffn_hidden_size,
            "attention.head_count_kv": kv_heads,
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        }
    rope = config.rope_parameters
    metadata |= {
        "feed_forward_length": config.intermediate_size,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope.get("full_attention", rope)["rope_theta"],
    }
    if family != "llama":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // 4
        metadata |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if family in ("gemma2", "gemma3_text"):
        metadata["attention.sliding_window"] = config.sliding_window
        metadata["attention.scale"] = config.query_pre_attn_scalar**-0.5
    if family == "gemma2":
        metadata["attn_logit_softcapping"] = config.attn_logit_softcapping
        metadata["final_logit_softcapping"] = config.final_logit_softcapping
    return metadata


def _as_llama_cpp(name: str, values: NDArray[np.float32], config: Any) -> NDArray[np.float32]:
    family = config.model_type
    if family in ("llama", "mistral") and ".q_proj." in name:
        return permute(values, config.num_attention_heads)
    if family in ("llama", "mistral") and ".k_proj." in name:
        return permute(values, config.num_key_value_heads)
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return values + 1
    if family == "falcon" and "query_key_value" in name and config.new_decoder_architecture:
        groups = values.reshape(
            config.num_kv_heads,
            config.num_attention_heads // config.num_kv_heads + 2,
            -1,
            config.hidden_size,
        )
        parts = groups[:, :-2], groups[:, [-2]], groups[:, [-1]]
        return np.concatenate([part.reshape(-1, config.hidden_size) for part in parts])
    return values
