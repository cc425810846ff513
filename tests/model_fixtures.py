"""Tiny llama models with random weights, as safetensors directories and as GGUF files.

The GGUF files are written with the public `gguf` package and the row order of llama.cpp's converter,
so that the code under test is not its own oracle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "Ġ hello")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """`config`: fields of config.json; `tensors`: Hugging Face name -> float32 tensor."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def tiny_model(*, kv_heads: int = 2, tie: bool = True, seed: int = 0, **fields: Any) -> TinyModel:
    """Two layers, 64 wide, 4 heads; `fields` replace or add config fields."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "intermediate_size": 128,
        "vocab_size": len(vocabulary()),
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": tie,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **fields,
    }
    random = torch.Generator().manual_seed(seed)
    hidden, width = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head_dim, kv_heads * head_dim

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random) * 0.2

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        tensors[name + "input_layernorm.weight"] = 1 + matrix(hidden)
        tensors[name + "self_attn.q_proj.weight"] = matrix(queries, hidden)
        tensors[name + "self_attn.k_proj.weight"] = matrix(keys, hidden)
        tensors[name + "self_attn.v_proj.weight"] = matrix(keys, hidden)
        tensors[name + "self_attn.o_proj.weight"] = matrix(hidden, queries)
        tensors[name + "post_attention_layernorm.weight"] = 1 + matrix(hidden)
        tensors[name + "mlp.gate_proj.weight"] = matrix(width, hidden)
        tensors[name + "mlp.up_proj.weight"] = matrix(width, hidden)
        tensors[name + "mlp.down_proj.weight"] = matrix(hidden, width)
    tensors["model.norm.weight"] = 1 + matrix(hidden)
    if not tie:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return TinyModel(config=config, tensors=tensors)


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary() -> list[str]:
    """Tokens in id order: control tokens, bytes, merged tokens."""
    return [*SPECIALS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def tokenizer_json() -> dict[str, Any]:
    """The contents of tokenizer.json, of SmolLM2's kind."""
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, token in enumerate(SPECIALS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                byte_level | {"use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(vocabulary())},
            "merges": list(MERGES),
        },
    }


def write_directory(
    directory: Path, model: TinyModel, *, shards: int = 1, dtype: torch.dtype = torch.float32
) -> Path:
    """A Hugging Face model directory; more than one shard comes with an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(model.config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in model.tensors.items()}
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return directory
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        weight_map.update(dict.fromkeys(part, file_name))
        save_file(part, directory / file_name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def write_gguf(
    path: Path,
    model: TinyModel,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str = "llama",
    fields: dict[str, Any] | None = None,
) -> Path:
    """A GGUF file as llama.cpp's converter writes it; `fields` adds u32 or string metadata."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    add_tokenizer(writer)
    for key, value in (fields or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, tensor in model.tensors.items():
        _add_tensor(writer, name, tensor.numpy(), config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter, pre: str = "smollm") -> None:
    """The metadata `tokenizer_json` becomes; `pre`: the kind of pre-tokenizer."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary())
    types = [
        gguf.TokenType.CONTROL if t in SPECIALS else gguf.TokenType.NORMAL for t in vocabulary()
    ]
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    values: NDArray[np.float32],
    config: dict[str, Any],
    kind: gguf.GGMLQuantizationType,
) -> None:
    if name.endswith("q_proj.weight"):
        values = permute(values, config["num_attention_heads"])
    elif name.endswith("k_proj.weight"):
        values = permute(values, config["num_key_value_heads"])
    stored = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
    writer.add_tensor(gguf_name(name), gguf.quantize(values, stored), raw_dtype=stored)


def permute(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp's `LlamaModel.permute` (convert_hf_to_gguf.py)."""
    return (
        rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        .swapaxes(1, 2)
        .reshape(rows.shape)
    )


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    found: str = _name_map().get_name(name, try_suffixes=(".weight",))
    return found


@cache
def _name_map() -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 8)


def write_tiny_llama(directory: Path, **fields: Any) -> Path:
    """`write_directory` of `tiny_model(**fields)`."""
    return write_directory(directory, tiny_model(**fields))
