"""A GGUF file of a known architecture: its config and which tensor is which. Never: tensor data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import ModelError
from appliance.model.config import ModelConfig, parse_config
from appliance.model.fields import shown
from appliance.model.gguf_config import BUILDERS, config_json
from appliance.model.gguf_metadata import Metadata
from appliance.model.gguf_reader import Gguf, GgufTensor, read_gguf
from appliance.model.gguf_rope import FREQUENCY_TENSOR
from appliance.model.gguf_tokenizer import TokenizerFiles, build_tokenizer
from appliance.model.layout import tensor_name, tensor_roles

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

_FALCON_TWO_NORMS = {"attention_norm": "attn_norm_2", "mlp_norm": "attn_norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor to convert: its role, its shape and name in Hugging Face files, and where it lies."""

    role: str
    name: str
    shape: tuple[int, ...]
    tensor: GgufTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """A checked file."""

    gguf: Gguf
    config: ModelConfig
    config_json: dict[str, Any]
    generation_json: dict[str, Any]
    tokenizer: TokenizerFiles
    sources: tuple[Source, ...]


def check_gguf(path: Path) -> None:
    """Raise ModelError unless `read_model` understands the whole file."""
    read_model(path)


def read_model(path: Path) -> GgufModel:
    """Read and check a file's header; raises ModelError for what is damaged or unsupported."""
    gguf = read_gguf(path)
    architecture = _architecture(gguf)
    tokenizer = build_tokenizer(gguf, architecture)
    special = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": list(tokenizer.eos_ids),
        "pad_token_id": tokenizer.pad_id,
    }
    fields = {**config_json(gguf, architecture), **special}
    config = parse_config(fields, special, str(path))
    _check_head_widths(Metadata(gguf, architecture), config)
    return GgufModel(
        gguf=gguf,
        config=config,
        config_json=fields,
        generation_json=special,
        tokenizer=tokenizer,
        sources=_match_tensors(gguf, config),
    )


def _architecture(gguf: Gguf) -> str:
    path, metadata = gguf.path, gguf.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in BUILDERS:
        supported = ", ".join(repr(known) for known in BUILDERS)
        raise ModelError(
            f"{path}: architecture {shown(architecture)} is not supported; supported: {supported}"
        )
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        number = metadata.get("split.no", 0)
        number = number + 1 if isinstance(number, int) else "?"
        raise ModelError(
            f"{path}: is part {number} of {parts} of a split GGUF; join the parts with "
            "`llama-gguf-split --merge` first"
        )
    return architecture


def _check_head_widths(metadata: Metadata, config: ModelConfig) -> None:
    """Whole heads are rotated, and values are as wide as keys."""
    path = metadata.gguf.path
    rotated = metadata.get("rope.dimension_count", config.head_dim)
    if rotated != config.head_dim:
        raise ModelError(
            f"{path}: rotates {shown(rotated)} of {config.head_dim} dimensions, "
            "which is not supported"
        )
    values = metadata.get("attention.value_length", config.head_dim)
    if values != config.head_dim:
        raise ModelError(f"{path}: keys and values of different length are not supported")


def _match_tensors(gguf: Gguf, config: ModelConfig) -> tuple[Source, ...]:
    layer_names = dict(_LAYER_NAMES)
    if config.family == "falcon" and config.names.mlp_norm is not None:
        layer_names |= _FALCON_TWO_NORMS
    sources, used = [], {FREQUENCY_TENSOR}
    for role, layer, shape in tensor_roles(config):
        module, _, kind = role.partition(".")
        stem = _OUTER_NAMES[module] if layer is None else f"blk.{layer}.{layer_names[module]}"
        stored = f"{stem}.{kind}"
        tensor = gguf.tensors.get(stored)
        if tensor is None:
            raise ModelError(f"{gguf.path}: tensor {stored!r} is missing")
        if tensor.shape != shape:
            raise ModelError(
                f"{gguf.path}: tensor {stored!r} has shape {list(tensor.shape)}, "
                f"the metadata asks for {list(shape)}"
            )
        used.add(stored)
        name = tensor_name(config, role, layer)
        sources.append(Source(role=role, name=name, shape=shape, tensor=tensor))
    for stored in gguf.tensors.keys() - used:
        raise ModelError(f"{gguf.path}: tensor {stored!r} is not one of a {config.family} model")
    return tuple(sources)
