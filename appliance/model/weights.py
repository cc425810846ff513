"""A checkpoint's tensors in memory, as the decoder uses them. Never: names or checks of files.

Files are mapped and copied once into memory of their own, so a file that changes or shrinks later
cannot hurt a running engine.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import torch

from appliance.errors import ModelError
from appliance.model.blocks import Layer
from appliance.model.layout import layer_shapes, tensor_name
from appliance.model.linear import Linear, Table, Ungated
from appliance.model.norm import LayerNorm, NormFunction, RmsNorm
from appliance.model.safetensors_reader import model_tensors
from appliance.model.shape import ModelConfig, Norm, QkvOrder
from appliance.model.stack import Stack
from appliance.model.weight_form import FLOAT32, WeightForm

TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights; `lm_head` is `embedding` itself in a tied model. `positions`: [context, hidden]."""

    embedding: Table
    positions: torch.Tensor | None
    layers: tuple[Layer, ...]
    final_norm: NormFunction
    lm_head: Linear


def load_weights(
    directory: Path,
    config: ModelConfig,
    device: torch.device,
    form: WeightForm = FLOAT32,
) -> Weights:
    """Read a directory that passed `check_model`. Raises ModelError for a NaN or infinite weight.

    Matrix by matrix, so that a smaller form of the weights needs little memory beside it.
    """
    loader = _Loader(directory, config, device, form)
    embedding = form.make_table(loader.outer("embedding.weight"))
    return Weights(
        embedding=embedding,
        positions=loader.outer("positions.weight").whole() if config.learned_positions else None,
        layers=tuple(loader.layer(index) for index in range(config.layers)),
        final_norm=loader.norm("final_norm", None),
        lm_head=embedding
        if config.tie_embeddings
        else form.make_linear(loader.outer("lm_head.weight"), None),
    )


class _Loader:
    """Puts the tensors of the checkpoint together."""

    def __init__(
        self, directory: Path, config: ModelConfig, device: torch.device, form: WeightForm
    ) -> None:
        self._checkpoint = _Checkpoint(directory, config)
        self._config = config
        self._device = device
        self._form = form

    def outer(self, role: str) -> Stack:
        """A matrix outside the layers."""
        tensor = self._tensor(role, None)
        return self._stack([tensor], tensor.shape[1:])

    def norm(self, module: str, index: int | None) -> NormFunction:
        """A norm over the whole width."""
        config = self._config
        weight = self._vector([self._tensor(f"{module}.weight", index)])
        if config.norm is Norm.LAYER:
            bias = self._vector([self._tensor(f"{module}.bias", index)])
            return LayerNorm(weight, bias, config.norm_eps)
        return self._rms(weight)

    def layer(self, index: int) -> Layer:
        """One layer's weights."""
        config, form = self._config, self._form
        roles = layer_shapes(config, config.per_layer[index], index)

        def parts(*modules: str) -> tuple[Stack, torch.Tensor | None]:
            kinds = ("weight", "bias") if f"{modules[0]}.bias" in roles else ("weight",)
            return self._parts(
                *([self._tensor(f"{m}.{kind}", index) for m in modules] for kind in kinds)
            )

        def norm(module: str) -> NormFunction | None:
            return self.norm(module, index) if f"{module}.weight" in roles else None

        kinds = ("weight", "bias") if config.biases.qkv else ("weight",)
        return Layer(
            attention_norm=self.norm("attention_norm", index),
            qkv=form.make_linear(*self._parts(*(self._qkv(kind, index) for kind in kinds))),
            head_norm=self._head_norm(index) if "q_norm.weight" in roles else None,
            output=form.make_linear(*parts("output")),
            post_attention_norm=norm("post_attention_norm"),
            mlp_norm=norm("mlp_norm"),
            up=form.make_gate(*parts("gate", "up"), config.activation)
            if config.gated
            else Ungated(form.make_linear(*parts("up")), config.activation),
            down=form.make_linear(*parts("down")),
            post_mlp_norm=norm("post_mlp_norm"),
        )

    def _qkv(self, kind: str, index: int) -> list[torch.Tensor]:
        """Rows of q, k and v, each [..., head_dim or its pairs, in], or of q alone."""
        config = self._config
        layer = config.per_layer[index]

        def heads(module: str) -> torch.Tensor:
            tensor = self._tensor(f"{module}.{kind}", index)
            return tensor.view(-1, config.head_dim, *tensor.shape[1:])

        if config.qkv_order is QkvOrder.SEPARATE:
            own = ("q", "k", "v") if layer.kv_layer == index else ("q",)
            parts = [heads(module) for module in own]
        elif config.qkv_order is QkvOrder.SPLIT:
            counts = [config.heads, config.kv_heads, config.kv_heads]
            parts = list(torch.split_with_sizes(heads("qkv"), counts))
        else:
            groups = torch.unflatten(heads("qkv"), 0, (config.kv_heads, -1))
            parts = [groups[:, :-2], groups[:, -2], groups[:, -1]]
        if layer.rope is not None:
            axis = -1 if kind == "bias" else -2
            parts[:2] = [_pairs(part, axis) for part in parts[:2]]
        return parts

    def _head_norm(self, index: int) -> NormFunction:
        """The norms of each head of q and k, one below the other."""
        config = self._config
        layer = config.per_layer[index]
        modules = ("q_norm", "k_norm") if layer.kv_layer == index else ("q_norm",)
        rows = []
        for module, count in zip(modules, (config.heads, config.kv_heads), strict=False):
            weight = self._tensor(f"{module}.weight", index)
            rows += [weight if layer.rope is None else _pairs(weight, -1)] * count
        return self._rms(self._vector(rows).view(-1, config.head_dim))

    def _rms(self, weight: torch.Tensor) -> RmsNorm:
        if self._config.norm is Norm.RMS_OFFSET:
            weight += 1.0
        return RmsNorm(weight, self._config.norm_eps)

    def _parts(
        self, weights: list[torch.Tensor], biases: list[torch.Tensor] | None = None
    ) -> tuple[Stack, torch.Tensor | None]:
        bias = None if biases is None else self._vector(biases)
        return self._stack(weights, weights[0].shape[-1:]), bias

    def _tensor(self, role: str, layer: int | None) -> torch.Tensor:
        return self._checkpoint.tensor(tensor_name(self._config, role, layer))

    def _stack(self, parts: list[torch.Tensor], row: tuple[int, ...]) -> Stack:
        return Stack(parts, row, self._device)

    def _vector(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The values of all parts, float32 on the device."""
        return self._stack(parts, ()).whole()


def _pairs(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """An axis of head_dim as [head_dim / 2, 2]: i and i + head_dim / 2 side by side (see `Layer`)."""
    halves = torch.unflatten(tensor, axis, (2, -1))
    return halves.transpose(*((0, 1) if tensor.ndim == 1 else (axis - 1, axis)))


class _Checkpoint:
    """The weight files of a directory, mapped; what was read counts as this process's memory only
    until the next tensor is asked for."""

    def __init__(self, directory: Path, config: ModelConfig) -> None:
        self._entries = model_tensors(directory, config.names)
        self._maps = {entry.file: _map(entry.file) for entry in self._entries.values()}

    def tensor(self, name: str) -> torch.Tensor:
        """A view into the mapping, in the file's own element type."""
        self._forget()
        entry = self._entries[name]
        dtype = TORCH_DTYPES[entry.dtype]
        mapped, count = self._maps[entry.file], entry.nbytes // dtype.itemsize
        flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.offset)
        # A sum of finite weights is finite, so it finds NaN and infinity in one pass.
        if not flat.sum(dtype=torch.float32).isfinite():
            raise ModelError(f"{entry.file}: {name} holds NaN or infinite values")
        return flat.view(entry.shape)

    def _forget(self) -> None:
        """Give the pages read so far back to the system; views read them anew."""
        for mapped in self._maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        # A private writable mapping, because torch warns about buffers it may not write to.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
