"""Attention on the CPU: the Rust kernel, which reads pages in place. Never: projections, rotation."""

from __future__ import annotations

from typing import TypedDict

import torch

from appliance import _core
from appliance.model.attention import LayerAttention
from appliance.model.batch import StepBatch
from appliance.model.kv_cache import CPU_ELEMENTS, KVCache


class Pages(TypedDict):
    """Which positions of which pages a step looks at, as the kernels take them; see `StepBatch`."""

    half: bool
    query_starts: bytes
    context_lens: bytes
    page_tables: bytes
    page_starts: bytes
    pages: int
    page_size: int


class CpuAttention:
    """An `Attend` of one step; the class is the `Backend`."""

    __slots__ = ("_heads", "_key_shape", "_query_shape", "batch", "cache", "pages")

    def __init__(self, batch: StepBatch, cache: KVCache, heads: int) -> None:
        _, _, pages, kv_heads, page_size, head_dim = cache.data.shape
        assert cache.data.device.type == "cpu"
        assert cache.data.dtype in CPU_ELEMENTS
        self.batch = batch
        self.cache = cache
        self.pages = Pages(
            half=cache.data.dtype == torch.float16,
            query_starts=batch.query_starts,
            context_lens=batch.context_lens,
            page_tables=batch.page_tables,
            page_starts=batch.page_starts,
            pages=pages,
            page_size=page_size,
        )
        self._heads = heads
        self._query_shape = (batch.tokens, heads, head_dim)
        self._key_shape = (batch.tokens, kv_heads, head_dim)

    def __call__(
        self, layer: LayerAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """See `Attend`."""
        k_cache, v_cache, scales = self.addresses(layer.kv_layer)
        # The kernel gets bare addresses: what it assumes about memory is proved here.
        assert layer.softcap is None
        q = _checked(q, self._query_shape)
        out = torch.empty(self._query_shape)
        _, kv_heads, head_dim = self._key_shape
        if layer.stores:
            k = _checked(k, self._key_shape)
            v = _checked(v, self._key_shape)
            _core.store_kv(
                k.data_ptr(),
                v.data_ptr(),
                k_cache,
                v_cache,
                self.batch.slots,
                half=self.pages["half"],
                scales=scales,
                kv_heads=kv_heads,
                head_dim=head_dim,
                pages=self.pages["pages"],
                page_size=self.pages["page_size"],
            )
        _core.paged_attention(
            out.data_ptr(),
            q.data_ptr(),
            k_cache,
            v_cache,
            scales=scales,
            heads=self._heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=layer.scale,
            window=layer.window,
            **self.pages,
        )
        return out

    def addresses(self, kv_layer: int) -> tuple[int, int, tuple[int, int] | None]:
        """Where a layer's K, V and scales of both are."""
        k, v = self.cache.layer(kv_layer)
        scales = self.cache.layer_scales(kv_layer)
        both = None if scales is None else (scales[0].data_ptr(), scales[1].data_ptr())
        return k.data_ptr(), v.data_ptr(), both


def _checked(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    assert tensor.shape == shape
    assert tensor.dtype == torch.float32
    assert tensor.device.type == "cpu"
    return tensor.contiguous()
