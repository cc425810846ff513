"""Attention on CUDA over pages in place, through torch's `varlen_attn` with a block table.

Owns the choice between that and gathering pages, made once with its reason logged. Never: projections.
The kernels take bfloat16 and float16; float32 in and out, as the other back ends.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.nn.attention import varlen

from appliance.model.attention import Attend, Backend, torch_attention
from appliance.model.batch import StepBatch
from appliance.model.kv_cache import KVCache
from appliance.tokens import unpack

log = logging.getLogger("appliance.model")

NEEDED = {"block_table", "seqused_k", "num_splits", "window_size", "enable_gqa", "scale"}
"""Parameters of `varlen_attn` that pages in place take; torch 2.11 has not all of them."""

HEAD_DIM_MAX = 256
HEAD_DIM_MULTIPLE = 8


def choose_cuda_backend(cache: KVCache, heads: int, *, is_audited: bool) -> Backend:
    """`varlen_attn` where it takes this cache, else gathered pages; logs which and why.

    `is_audited`: one split over the keys, so that a sequence's result does not depend on its batch.
    """
    reason = refusal(cache.data, heads, set(inspect.signature(varlen.varlen_attn).parameters))
    if reason is None:
        reason = _probe(cache, heads)
    name = "varlen_attn" if reason is None else "gathered"
    log.info("cuda_attention", extra={"backend": name, "cause": reason or "accepted"})
    if reason is not None:
        return torch_attention
    return paged_varlen(varlen.varlen_attn, num_splits=1 if is_audited else None)


def refusal(data: torch.Tensor, heads: int, parameters: set[str]) -> str | None:
    """Why pages of this tensor cannot be read in place, by what is known without a try; else None.

    `data`: as `KVCache.data`; `parameters`: the names of those of `varlen_attn`.
    """
    _, _, _, kv_heads, _, head_dim = data.shape
    missing = sorted(NEEDED - parameters)
    if missing:
        return f"this torch's varlen_attn has no {', '.join(missing)}"
    if data.device.type != "cuda":
        return f"the device is {data.device.type}"
    if data.dtype not in (torch.bfloat16, torch.float16):
        return f"K/V are {data.dtype}; bfloat16 or float16 is needed"
    if head_dim % HEAD_DIM_MULTIPLE != 0 or head_dim > HEAD_DIM_MAX:
        return f"head_dim {head_dim} is not a multiple of {HEAD_DIM_MULTIPLE} up to {HEAD_DIM_MAX}"
    if heads % kv_heads != 0:
        return f"{heads} heads are not a multiple of {kv_heads} K/V heads"
    return None


def paged_varlen(varlen_attn: Callable[..., Any], *, num_splits: int | None) -> Backend:
    """The back end over a function with `varlen_attn`'s signature."""

    def backend(batch: StepBatch, cache: KVCache, heads: int) -> Attend:
        device = cache.data.device
        _, _, _, kv_heads, page_size, head_dim = cache.data.shape
        slots = torch.tensor(list(unpack(batch.slots)), dtype=torch.int64, device=device)
        pages, rows = slots // page_size, slots % page_size
        starts, contexts = unpack(batch.query_starts), unpack(batch.context_lens)
        cu_seq_q = torch.tensor(list(starts), dtype=torch.int32, device=device)
        seqused_k = torch.tensor(list(contexts), dtype=torch.int32, device=device)
        table = block_table(batch, page_size).to(device)
        max_q = max(stop - start for start, stop in pairwise(starts))
        max_k = table.shape[1] * page_size

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            k_cache, v_cache = cache.layer(layer)
            k_cache[pages, :, rows] = k.to(k_cache.dtype)
            v_cache[pages, :, rows] = v.to(v_cache.dtype)
            # [pages, page_size, kv_heads, head_dim] is a view: the kernels go by strides.
            out: torch.Tensor = varlen_attn(
                q.to(k_cache.dtype),
                k_cache.transpose(1, 2),
                v_cache.transpose(1, 2),
                cu_seq_q,
                None,
                max_q,
                max_k,
                scale=head_dim**-0.5,
                window_size=(-1, 0),
                enable_gqa=heads != kv_heads,
                seqused_k=seqused_k,
                block_table=table,
                num_splits=num_splits,
            )
            return out.to(q.dtype)

        return attend

    return backend


def block_table(batch: StepBatch, page_size: int) -> torch.Tensor:
    """Pages of each sequence, int32 [sequences, most pages] on the CPU; behind a context page 0.

    Kernels look at no entry behind the context.
    """
    contexts, starts = unpack(batch.context_lens), unpack(batch.page_starts)
    page_ids = unpack(batch.page_tables)
    counts = [-(-context // page_size) for context in contexts]
    table = torch.zeros(len(contexts), max(counts), dtype=torch.int32)
    for index, count in enumerate(counts):
        first = starts[index]
        table[index, :count] = torch.tensor(list(page_ids[first : first + count]))
    return table


def _probe(cache: KVCache, heads: int) -> str | None:
    """Why the kernel refuses a query over one page of this cache; None when it answers.

    Which page sizes a kernel takes depends on the GPU and the library behind it, so it is asked.
    """
    k_cache, v_cache = cache.layer(0)
    _, kv_heads, page_size, head_dim = k_cache.shape
    device = cache.data.device
    ends = torch.tensor([0, 1], dtype=torch.int32, device=device)
    try:
        varlen.varlen_attn(
            torch.zeros(1, heads, head_dim, dtype=cache.data.dtype, device=device),
            k_cache.transpose(1, 2),
            v_cache.transpose(1, 2),
            ends,
            None,
            1,
            page_size,
            window_size=(-1, 0),
            enable_gqa=heads != kv_heads,
            seqused_k=ends[1:],
            block_table=ends[:1, None],
        )
        torch.cuda.synchronize(device)
    except (RuntimeError, ValueError) as error:
        return f"the kernel refuses it: {str(error).splitlines()[0]}"
    return None
