"""Causal attention over paged K/V, slow and obvious: the oracle of the fast kernels.

Gathers every position by hand and computes in float64; never fast, never in place.
"""

import torch


def gather(cache: torch.Tensor, page_table: list[int], context: int) -> torch.Tensor:
    """K or V of one sequence, [context, kv_heads, head_dim].

    `cache`: [pages, kv_heads, page_size, head_dim].
    """
    page_size = cache.shape[2]
    rows = [cache[page_table[p // page_size], :, p % page_size] for p in range(context)]
    return torch.stack(rows)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None = None
) -> torch.Tensor:
    """Attention of one sequence whose queries are the last positions of its context, float64.

    `q`: [queries, heads, head_dim]; `k`, `v`: [context, kv_heads, head_dim]. Query head h uses K/V
    head h // (heads // kv_heads), and sees its own position and the `window - 1` before it.
    """
    queries, heads, _ = q.shape
    context, kv_heads, _ = k.shape
    q, k, v = q.double(), k.double(), v.double()
    k = k.repeat_interleave(heads // kv_heads, dim=1)
    v = v.repeat_interleave(heads // kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    query_positions = torch.arange(context - queries, context)
    hidden = torch.arange(context)[None, :] > query_positions[:, None]
    if window is not None:
        hidden |= torch.arange(context)[None, :] <= query_positions[:, None] - window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    queries: list[int],
    contexts: list[int],
    page_tables: list[list[int]],
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of a ragged batch, float64 [tokens, heads, head_dim].

    `q`: [tokens, heads, head_dim], sequence after sequence; `queries` and `contexts`: positions of
    each sequence, new ones and all.
    """
    parts = []
    for part, context, table in zip(
        torch.split_with_sizes(q, queries), contexts, page_tables, strict=True
    ):
        k, v = gather(k_cache, table, context), gather(v_cache, table, context)
        parts.append(attend(part, k, v, scale, window))
    return torch.cat(parts)
