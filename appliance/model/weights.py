"""A checkpoint's tensors in memory, as the decoder uses them. Never: names or checks of files.

Files are mapped and copied once into float32 tensors of their own, so a file that changes or shrinks
later cannot hurt a running engine.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import torch

from appliance.errors import ModelError
from appliance.model.config import ModelConfig
from appliance.model.layout import EMBEDDING, FINAL_NORM, LM_HEAD, layer_name
from appliance.model.linear import FloatLinear, FloatTable, Linear, Table
from appliance.model.safetensors_reader import read_checkpoint

TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block's weights.

    qkv: the rows of q, then k, then v; gate_up: the rows of gate, then up. Within each head of q and
    k, row i + head_dim / 2 follows row i: elements that are rotated together lie side by side. The
    products of q and k do not change by that.
    """

    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights; norms are float32; `lm_head` is `embedding` itself in a tied model."""

    embedding: Table
    layers: tuple[Layer, ...]
    final_norm: torch.Tensor
    lm_head: Linear


def load_weights(directory: Path, config: ModelConfig, device: torch.device) -> Weights:
    """Read a directory that passed `check_model`. Raises ModelError for a NaN or infinite weight."""
    checkpoint = _Checkpoint(directory)

    def place(*names: str) -> torch.Tensor:
        return _stack([checkpoint.tensor(name) for name in names], device)

    embedding = FloatTable(place(EMBEDDING))
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(checkpoint, config, index, device) for index in range(config.layers)),
        final_norm=place(FINAL_NORM),
        lm_head=embedding if config.tie_embeddings else FloatLinear(place(LM_HEAD)),
    )


def _layer(checkpoint: _Checkpoint, config: ModelConfig, index: int, device: torch.device) -> Layer:
    def part(suffix: str) -> torch.Tensor:
        return checkpoint.tensor(layer_name(index, f"{suffix}.weight"))

    def pairs(suffix: str) -> torch.Tensor:
        halves = part(suffix).view(-1, 2, config.head_dim // 2, config.hidden)
        return halves.transpose(1, 2)

    qkv = [pairs("self_attn.q_proj"), pairs("self_attn.k_proj"), part("self_attn.v_proj")]
    return Layer(
        attention_norm=_stack([part("input_layernorm")], device),
        qkv=FloatLinear(_stack(qkv, device)),
        output=FloatLinear(_stack([part("self_attn.o_proj")], device)),
        mlp_norm=_stack([part("post_attention_layernorm")], device),
        gate_up=FloatLinear(_stack([part("mlp.gate_proj"), part("mlp.up_proj")], device)),
        down=FloatLinear(_stack([part("mlp.down_proj")], device)),
    )


def _stack(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The rows of all parts, one below the other, in memory of their own; float32, on the device.

    A part may have its rows spread over several leading axes.
    """
    width = parts[0].shape[-1:] if parts[0].ndim > 1 else ()
    counts = [part.numel() // math.prod(width) for part in parts]
    stacked = torch.empty((sum(counts), *width), dtype=torch.float32)
    row = 0
    for part, count in zip(parts, counts, strict=True):
        stacked[row : row + count].view(part.shape).copy_(part)
        row += count
    return stacked.to(device)


class _Checkpoint:
    """The weight files of a directory, mapped."""

    def __init__(self, directory: Path) -> None:
        self._entries = read_checkpoint(directory)
        self._maps = {entry.file: _map(entry.file) for entry in self._entries.values()}

    def tensor(self, name: str) -> torch.Tensor:
        """A view into the mapping, in the file's own element type."""
        entry = self._entries[name]
        dtype = TORCH_DTYPES[entry.dtype]
        mapped, count = self._maps[entry.file], entry.nbytes // dtype.itemsize
        flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.offset)
        # A sum of finite weights is finite, so it finds NaN and infinity in one pass.
        if not flat.sum(dtype=torch.float32).isfinite():
            raise ModelError(f"{entry.file}: {name} holds NaN or infinite values")
        return flat.view(entry.shape)


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        # A private writable mapping, because torch warns about buffers it may not write to.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
