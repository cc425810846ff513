"""The tensors that hold keys and values by page. Never: which sequence owns a page."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeAlias

import numpy
import torch

from appliance.model.config import ModelConfig
from appliance.model.copy_stream import CopyStream

KVDtype: TypeAlias = Literal["float32", "float16", "bfloat16", "int8"]

ELEMENT_TYPES: dict[KVDtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
"""The element types by name."""

CPU_ELEMENTS = (torch.float32, torch.float16, torch.int8)
"""Those that the CPU's kernel reads."""

KVSetting: TypeAlias = Literal["auto"] | KVDtype

SCALE_BYTES = 4
INT8_MAX = 127


def kv_type(setting: KVSetting, *, on_gpu: bool) -> torch.dtype:
    """What a setting `engine.kv_dtype` means. `auto` is what the kernels read in place at half the
    bytes: bfloat16 on a GPU, float16 on the CPU, which is the nearer of the two."""
    return ELEMENT_TYPES[("bfloat16" if on_gpu else "float16") if setting == "auto" else setting]


class KVCache:
    """K and V of all layers, in pages of `page_size` positions.

    `data`: of a type in ELEMENT_TYPES [kv_layers, 2, pages, kv_heads, page_size, head_dim]; index 0 of
    the second axis is K (rotated, its pairs side by side as in `blocks.Layer`), 1 is V. `scales`: None,
    or of int8 float32 [kv_layers, 2, pages, kv_heads, page_size]; a value is its number times the scale
    of its row, as `_core.store_kv` writes it. Rows are quantised each by itself, so what a row holds does
    not depend on when, or with which others, it was computed.

    On a GPU, pages are copied beside the steps (`copy_stream`): a step over the cache begins with
    `join_copies`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        pages: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        assert pages > 0
        assert page_size > 0
        assert dtype in ELEMENT_TYPES.values()
        self.pages = pages
        self.page_size = page_size
        shape = (config.kv_layers, 2, pages, config.kv_heads, page_size, config.head_dim)
        self.data = _zeros(shape, dtype, device)
        self._copies: CopyStream | None = None
        self.scales: torch.Tensor | None = None
        self._layers = [(layer[0], layer[1]) for layer in self.data]
        self._layer_scales: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        if dtype == torch.int8:
            self.scales = _zeros(shape[:-1], torch.float32, device)
            self._layer_scales = [(layer[0], layer[1]) for layer in self.scales]

    @property
    def page_content_bytes(self) -> int:
        """Bytes of one page over all layers, scales included."""
        scales = 0 if self.scales is None else self.scales.nbytes
        return (self.data.nbytes + scales) // self.pages

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one layer, each contiguous [pages, kv_heads, page_size, head_dim]."""
        return self._layers[index]

    def layer_scales(self, index: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Scales of K and of V of one layer, each contiguous [pages, kv_heads, page_size]."""
        return None if self._layer_scales is None else self._layer_scales[index]

    def store(
        self, layer: int, pages: torch.Tensor, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Write new K and V, float32 [tokens, kv_heads, head_dim], at (page, row), int64 [tokens]."""
        scales = self.layer_scales(layer)
        for side, (new, cache) in enumerate(zip((k, v), self.layer(layer), strict=True)):
            if scales is None:
                cache[pages, :, rows] = new.to(cache.dtype)
            else:
                cache[pages, :, rows], scales[side][pages, :, rows] = quantise(new)

    def gather(self, layer: int, page_table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of pages, float32 [*page_table, kv_heads, page_size, head_dim]; `page_table`: int64."""
        k, v = (cache[page_table] for cache in self.layer(layer))
        scales = self.layer_scales(layer)
        if scales is None:
            return k.float(), v.float()
        return k * scales[0][page_table].unsqueeze(-1), v * scales[1][page_table].unsqueeze(-1)

    @torch.inference_mode()
    def copy_rows(self, source_page: int, target_page: int, rows: int) -> None:
        """Copy the first `rows` positions of a page, all layers, into another page."""
        assert 0 <= source_page < self.pages
        assert 0 <= target_page < self.pages
        assert 0 < rows <= self.page_size
        self.join_copies()
        for tensor in (self.data, self.scales):
            if tensor is not None:
                tensor[:, :, target_page, :, :rows].copy_(tensor[:, :, source_page, :, :rows])

    @torch.inference_mode()
    def read_page(self, page: int, buffer: torch.Tensor) -> None:
        """Copy one page's whole content into `buffer`, uint8 [page_content_bytes] on the CPU.

        Ordered with the device's work so far; into pinned memory it may still be under way on return.
        """
        with self._beside():
            for part, place in zip(self._parts(page), self._places(buffer), strict=True):
                place.copy_(part, non_blocking=True)

    @torch.inference_mode()
    def write_page(self, page: int, buffer: torch.Tensor) -> None:
        """Set one page's whole content from what `read_page` gave; orders as there."""
        with self._beside():
            for part, place in zip(self._parts(page), self._places(buffer), strict=True):
                part.copy_(place, non_blocking=True)

    def join_copies(self) -> None:
        """Order the copies of `read_page` and `write_page` so far before the device's next work."""
        if self._copies is not None:
            self._copies.join()

    def finish_copies(self) -> None:
        """Wait until the copies of `read_page` and `write_page` are done, so that the CPU may use
        their buffers."""
        if self._copies is not None:
            self._copies.wait()

    def _beside(self) -> AbstractContextManager[None]:
        """Where copies of pages are enqueued: beside a GPU's steps; on the CPU they are done at once."""
        if self.data.device.type != "cuda":
            return nullcontext()
        if self._copies is None:
            self._copies = CopyStream(self.data.device)
        return self._copies.beside()

    def _parts(self, page: int) -> list[torch.Tensor]:
        assert 0 <= page < self.pages
        # Scales first: the float32 then begin where the buffer does, and are aligned with it.
        tensors = [self.data] if self.scales is None else [self.scales, self.data]
        return [tensor[:, :, page] for tensor in tensors]

    def _places(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        assert buffer.dtype == torch.uint8
        assert buffer.shape == (self.page_content_bytes,)
        places, at = [], 0
        for part in self._parts(0):
            place = buffer[at : at + part.nbytes]
            places.append(place.view(part.dtype).view(part.shape))
            at += part.nbytes
        return places


def quantise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers, int8 like `rows`, and scales, float32 without the last axis, as `_core.store_kv` does.

    Scale = largest magnitude / 127, numbers = values / scale rounded to the nearest, ties to even; a
    value that is not finite makes the scale NaN and the numbers 0.
    """
    largest = rows.abs().amax(-1)
    # By a tensor: CUDA divides by a Python number by multiplying with its inverse.
    scales = largest / largest.new_full((), INT8_MAX)
    scales = scales.masked_fill(~largest.isfinite(), float("nan"))
    numbers = (rows / scales.unsqueeze(-1)).nan_to_num().round().clamp(-INT8_MAX, INT8_MAX)
    return numbers.to(torch.int8), scales


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy leaves it to the kernel to give out zeroed memory on first use; torch writes the zeros,
    # which would take the whole budget at once.
    *outer, width = shape
    zeros = numpy.zeros((*outer, width * dtype.itemsize), dtype=numpy.uint8)
    return torch.from_numpy(zeros).view(dtype)


def bytes_per_page(config: ModelConfig, page_size: int, dtype: torch.dtype = torch.float32) -> int:
    """Memory of one page over all layers, scales included, before a cache exists."""
    row = config.head_dim * dtype.itemsize + (SCALE_BYTES if dtype == torch.int8 else 0)
    return config.kv_layers * 2 * config.kv_heads * page_size * row
