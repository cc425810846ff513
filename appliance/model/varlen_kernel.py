"""What torch's `varlen_attn` takes here, found out once by asking it. Never: the cache, a step.

It reads pages in place through a block table, by cuDNN or FlashAttention, whichever torch has for the
GPU. Which page sizes, windows and head sizes these take differs (FlashAttention 2 wants pages of 256,
cuDNN no windows), and torch 2.11 may lack the block table: then, as for any other refusal, attention
gathers pages (`attention.torch_attention`).
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from appliance.model.paged_step import PagedStep

log = logging.getLogger("appliance.model")

NEEDED = frozenset({"block_table", "seqused_k", "window_size", "enable_gqa", "scale"})
"""Parameters of `varlen_attn` without which pages cannot be read in place."""

HEAD_DIM_MAX = 256
HEAD_DIM_MULTIPLE = 8

TRIAL_QUERIES = (1, 2, 129)
"""A decode, a few and many new tokens: torch chooses between its libraries by these."""

TOLERANCE = 0.05
"""Of the trial's results, up to 4 in bfloat16 (a spacing of 0.016)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kind of call: one answer holds for all of it. `windowed`: queries see only the last positions."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    windowed: bool


def _torch_varlen() -> Any:
    """Loaded when a GPU needs it: it brings torch's compiler along, which takes five seconds."""
    from torch.nn.attention import varlen

    return varlen


def call_varlen(
    step: PagedStep,
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    *,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of a step over pages in place, like `q`.

    `q`: [tokens, heads, head_dim], of the pages' element type, which are [pages, kv_heads, page_size,
    head_dim]; `window`: how many positions a query sees, its own among them.
    """
    # [pages, page_size, kv_heads, head_dim] is a view: the kernels go by strides.
    out: torch.Tensor = _torch_varlen().varlen_attn(
        q,
        k_pages.transpose(1, 2),
        v_pages.transpose(1, 2),
        step.query_starts,
        None,
        step.queries_max,
        step.table.shape[1] * k_pages.shape[2],
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=q.shape[1] != k_pages.shape[1],
        seqused_k=step.contexts,
        block_table=step.table,
    )
    return out


@cache
def refusal(kernel: Kernel) -> str | None:
    """Why pages cannot be read in place by such calls, None when they can; logged the first time."""
    reason = known_refusal(
        kernel, frozenset(inspect.signature(_torch_varlen().varlen_attn).parameters)
    )
    if reason is None:
        reason = _tried(kernel)
    log.info(
        "cuda_attention",
        extra={
            "in_place": reason is None,
            "windowed": kernel.windowed,
            "cause": reason or "as computed",
        },
    )
    return reason


def known_refusal(kernel: Kernel, parameters: frozenset[str]) -> str | None:
    """Why such calls are not even tried; `parameters`: the names of those of `varlen_attn`."""
    missing = sorted(NEEDED - parameters)
    if missing:
        return f"this torch's varlen_attn has no {', '.join(missing)}"
    if kernel.dtype not in (torch.bfloat16, torch.float16):
        return f"keys and values are {kernel.dtype}; bfloat16 or float16 is needed"
    if kernel.head_dim % HEAD_DIM_MULTIPLE != 0 or kernel.head_dim > HEAD_DIM_MAX:
        return f"head_dim {kernel.head_dim} is not a multiple of {HEAD_DIM_MULTIPLE} up to {HEAD_DIM_MAX}"
    return None


def _tried(kernel: Kernel) -> str | None:
    """Why a small call fails, or by how much it is wrong."""
    for queries in TRIAL_QUERIES:
        try:
            difference = trial_difference(kernel, queries)
        except (RuntimeError, ValueError) as error:
            return f"{queries} queries refused: {str(error).splitlines()[0]}"
        # A result that is not a number is not under anything.
        if not difference < TOLERANCE:
            return f"{queries} queries wrong by {difference:.3g}"
    return None


def trial_difference(kernel: Kernel, queries: int) -> float:
    """Largest difference to plain attention, for one sequence over pages in reverse order.

    Raises RuntimeError or ValueError when the kernel refuses the call.
    """
    device, size = kernel.device, kernel.page_size
    context, window = queries + size, max(1, size // 2) if kernel.windowed else None
    count = -(-context // size)
    random = torch.Generator().manual_seed(1)
    pages = 1 + torch.randn(2, count, kernel.kv_heads, size, kernel.head_dim, generator=random)
    q = torch.randn(queries, kernel.heads, kernel.head_dim, generator=random)
    pages, q = (tensor.to(device, kernel.dtype) for tensor in (pages, q))
    at = torch.arange(context - queries, context, device=device)
    step = PagedStep(
        pages=count - 1 - at // size,
        rows=at % size,
        query_starts=torch.tensor([0, queries], dtype=torch.int32, device=device),
        contexts=torch.tensor([context], dtype=torch.int32, device=device),
        table=torch.arange(count, dtype=torch.int32, device=device).flip(0)[None],
        queries_max=queries,
    )
    scale = kernel.head_dim**-0.5
    out = call_varlen(step, q, pages[0], pages[1], scale=scale, window=window)
    keys, values = (
        side.flip(0).transpose(0, 1).flatten(1, 2)[:, :context].float() for side in pages
    )
    back = at[:, None] - torch.arange(context, device=device)
    mask = (back >= 0) & (back < (context if window is None else window))
    expected = scaled_dot_product_attention(
        q.float().transpose(0, 1)[None],
        keys.repeat_interleave(kernel.heads // kernel.kv_heads, 0)[None],
        values.repeat_interleave(kernel.heads // kernel.kv_heads, 0)[None],
        attn_mask=mask,
        scale=scale,
    )[0].transpose(0, 1)
    return float((out.float() - expected).abs().max())
