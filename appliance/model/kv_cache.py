"""The tensor that holds keys and values by page. Never: which sequence owns a page."""

from __future__ import annotations

import numpy
import torch

from appliance.model.config import ModelConfig


class KVCache:
    """K and V of all layers, in pages of `page_size` positions.

    `data`: float32 [layers, 2, pages, kv_heads, page_size, head_dim]; index 0 of the second axis is
    K (rotated, its pairs side by side as in `weights.Layer`), 1 is V.
    """

    def __init__(
        self, config: ModelConfig, *, pages: int, page_size: int, device: torch.device
    ) -> None:
        assert pages > 0
        assert page_size > 0
        self.pages = pages
        self.page_size = page_size
        shape = (config.layers, 2, pages, config.kv_heads, page_size, config.head_dim)
        self.data = _zeros(shape, device)
        self._layers = [(layer[0], layer[1]) for layer in self.data]

    @property
    def bytes_per_page(self) -> int:
        """Memory of one page over all layers."""
        return self.data.nbytes // self.pages

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one layer, each contiguous [pages, kv_heads, page_size, head_dim]."""
        return self._layers[index]

    def gather(self, layer: int, page_table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of pages, float32 [*page_table, kv_heads, page_size, head_dim]; `page_table`: int64."""
        k, v = self.layer(layer)
        return k[page_table], v[page_table]

    @torch.inference_mode()
    def copy_rows(self, source_page: int, target_page: int, rows: int) -> None:
        """Copy the first `rows` positions of a page, all layers, into another page."""
        assert 0 <= source_page < self.pages
        assert 0 <= target_page < self.pages
        assert 0 < rows <= self.page_size
        self.data[:, :, target_page, :, :rows].copy_(self.data[:, :, source_page, :, :rows])


def _zeros(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=torch.float32, device=device)
    # numpy leaves it to the kernel to give out zeroed memory on first use; torch writes the zeros,
    # which would take the whole budget at once.
    return torch.from_numpy(numpy.zeros(shape, dtype=numpy.float32))


def bytes_per_page(config: ModelConfig, page_size: int) -> int:
    """Memory of one page over all layers, before a cache exists."""
    return config.layers * 2 * config.kv_heads * page_size * config.head_dim * 4
