"""A checkpoint's tensors in memory, as the decoder uses them. Never: names or checks of files.

Files are mapped and copied once into float32 tensors of their own, so a file that changes or shrinks
later cannot hurt a running engine.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from appliance.errors import ModelError
from appliance.model.config import ModelConfig
from appliance.model.layout import EMBEDDING, FINAL_NORM, LM_HEAD, layer_name
from appliance.model.safetensors_reader import TensorEntry, read_checkpoint

TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block's weights, float32; matrices are [out, in].

    qkv: the rows of q, then k, then v; gate_up: the rows of gate, then up.
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights, float32; `lm_head` is `embedding` itself in a tied model."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    final_norm: torch.Tensor
    lm_head: torch.Tensor


def load_weights(directory: Path, config: ModelConfig, device: torch.device) -> Weights:
    """Read a directory that passed `check_model`. Raises ModelError for a NaN or infinite weight."""
    tensors = read_checkpoint(directory)
    maps = {entry.file: _map(entry.file) for entry in tensors.values()}

    def read(*names: str) -> torch.Tensor:
        return _join([(name, tensors[name]) for name in names], maps, device)

    embedding = read(EMBEDDING)
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(read, index) for index in range(config.layers)),
        final_norm=read(FINAL_NORM),
        lm_head=embedding if config.tie_embeddings else read(LM_HEAD),
    )


def _layer(read: Callable[..., torch.Tensor], index: int) -> Layer:
    def part(*suffixes: str) -> torch.Tensor:
        return read(*(layer_name(index, f"{suffix}.weight") for suffix in suffixes))

    return Layer(
        attention_norm=part("input_layernorm"),
        qkv=part("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=part("self_attn.o_proj"),
        mlp_norm=part("post_attention_layernorm"),
        gate_up=part("mlp.gate_proj", "mlp.up_proj"),
        down=part("mlp.down_proj"),
    )


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        # A private writable mapping, because torch warns about buffers it may not write to.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _join(
    parts: list[tuple[str, TensorEntry]], maps: dict[Path, mmap.mmap], device: torch.device
) -> torch.Tensor:
    """The tensors stacked along their first axis, float32, on the device."""
    rows = sum(entry.shape[0] for _, entry in parts)
    joined = torch.empty((rows, *parts[0][1].shape[1:]), dtype=torch.float32)
    row = 0
    for name, entry in parts:
        dtype = TORCH_DTYPES[entry.dtype]
        count = entry.nbytes // dtype.itemsize
        source = torch.frombuffer(maps[entry.file], dtype=dtype, count=count, offset=entry.offset)
        target = joined[row : row + entry.shape[0]]
        target.copy_(source.view(entry.shape))
        # A sum of finite weights is finite, so it finds NaN and infinity in one pass.
        if not target.sum().isfinite():
            raise ModelError(f"{entry.file}: {name} holds NaN or infinite values")
        row += entry.shape[0]
    return joined.to(device)
