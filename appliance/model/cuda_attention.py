"""Attention on CUDA: pages in place where a kernel takes them, else gathered. Never: projections.

In place are bfloat16 keys and values of layers without a soft-cap, in whatever form `varlen_kernel`
found the GPU's kernels to compute rightly. Everything else is gathered by `attention.torch_attention`:
soft-caps (gemma 2), float32 and int8 keys and values, and what the kernels refuse.
"""

from __future__ import annotations

import functools

import torch

from appliance.model.attention import Attend, LayerAttention, torch_attention
from appliance.model.batch import StepBatch
from appliance.model.kv_cache import KVCache
from appliance.model.paged_step import PagedStep, paged_step
from appliance.model.varlen_kernel import Kernel, call_varlen, refusal


def cuda_attention(batch: StepBatch, cache: KVCache, heads: int) -> Attend:
    """The back end of a GPU: each layer goes the way it can, and a way that none goes costs nothing."""

    @functools.cache
    def in_place() -> Attend:
        step = paged_step(batch, cache.page_size).to(cache.data.device)
        return attend_in_place(step, cache)

    @functools.cache
    def gathered() -> Attend:
        return torch_attention(batch, cache, heads)

    def attend(
        layer: LayerAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        chosen = in_place() if reads_in_place(layer, cache, heads) else gathered()
        return chosen(layer, q, k, v)

    return attend


def attend_in_place(step: PagedStep, cache: KVCache) -> Attend:
    """Attention of one step by `varlen_attn`, for layers that `reads_in_place` accepts.

    It copies nothing from or to the CPU, so it can be captured in a CUDA graph.
    """

    def attend(
        layer: LayerAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        if layer.stores:
            cache.store(layer.kv_layer, step.pages, step.rows, k, v)
        k_pages, v_pages = cache.layer(layer.kv_layer)
        out = call_varlen(
            step, q.to(k_pages.dtype), k_pages, v_pages, scale=layer.scale, window=layer.window
        )
        return out.to(q.dtype)

    return attend


def reads_in_place(layer: LayerAttention, cache: KVCache, heads: int) -> bool:
    """Whether a layer's attention reads this cache's pages where they lie."""
    if layer.softcap is not None:
        return False
    kernel = Kernel(
        device=cache.data.device,
        dtype=cache.data.dtype,
        heads=heads,
        kv_heads=cache.data.shape[3],
        head_dim=cache.data.shape[5],
        page_size=cache.page_size,
        windowed=layer.window is not None,
    )
    return refusal(kernel) is None
