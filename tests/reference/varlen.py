"""`torch.nn.attention.varlen.varlen_attn` with a block table, as its documentation says, slowly."""

from __future__ import annotations

import torch

from tests.reference.attention import paged_attention


def slow_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """Like `query`; `key` and `value`: [pages, page_size, kv_heads, head_dim]. Causal windows only."""
    left, right = window_size
    assert cu_seq_k is None
    assert right == 0
    assert cu_seq_q.dtype == seqused_k.dtype == block_table.dtype == torch.int32
    assert query.dtype == key.dtype == value.dtype
    assert enable_gqa == (query.shape[1] != key.shape[2])
    assert int(cu_seq_q.diff().max()) <= max_q
    assert int(seqused_k.max()) <= max_k == block_table.shape[1] * key.shape[1]
    return paged_attention(
        query,
        key.transpose(1, 2),
        value.transpose(1, 2),
        queries=cu_seq_q.diff().tolist(),
        contexts=seqused_k.tolist(),
        page_tables=block_table.tolist(),
        scale=scale,
        window=None if left < 0 else left + 1,
    ).to(query.dtype)
