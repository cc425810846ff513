"""The CUDA back end without a GPU: its tables against the reference, its shapes on fake tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from appliance.model.attention import reference_attention
from appliance.model.config import read_config
from appliance.model.cuda_attention import NEEDED, paged_varlen, refusal
from appliance.model.kv_cache import KVCache
from tests.model_fixtures import write_tiny_llama
from tests.reference.attention import paged_attention
from tests.unit.model.steps import Piece, step

PAGE_SIZE, HEADS = 4, 4
PIECES = [
    Piece(token_ids=range(3), start=6, pages=[5, 2, 7]),
    Piece(token_ids=[1], start=4, pages=[3, 6]),
    Piece(token_ids=range(2), start=0, pages=[1]),
]


def slow_varlen(q: Any, k: Any, v: Any, cu_seq_q: Any, cu_seq_k: Any, *_: int, **named: Any) -> Any:
    """`varlen_attn` as its documentation says, by the slow reference."""
    assert cu_seq_k is None
    assert named["window_size"] == (-1, 0)
    assert cu_seq_q.dtype == named["seqused_k"].dtype == named["block_table"].dtype == torch.int32
    return paged_attention(
        q,
        k.transpose(1, 2),
        v.transpose(1, 2),
        queries=cu_seq_q.diff().tolist(),
        contexts=named["seqused_k"].tolist(),
        page_tables=named["block_table"].tolist(),
        scale=named["scale"],
    ).to(q.dtype)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_tables_lead_to_the_references_attention(tmp_path: Path, kv_heads: int) -> None:
    config = read_config(write_tiny_llama(tmp_path, kv_heads=kv_heads))
    batch = step(PIECES, page_size=PAGE_SIZE)
    random = torch.Generator().manual_seed(1)
    q = torch.randn(batch.tokens, HEADS, config.head_dim, generator=random)
    k, v = torch.randn(2, batch.tokens, kv_heads, config.head_dim, generator=random)
    results = []
    for backend in (reference_attention, paged_varlen(slow_varlen, num_splits=1)):
        cache = KVCache(config, pages=8, page_size=PAGE_SIZE, device=torch.device("cpu"))
        cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(2)))
        results.append((backend(batch, cache, HEADS)(1, q, k, v), cache.data))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.skipif(not hasattr(torch.ops.torch_attn, "_varlen_attn"), reason="an older torch")
def test_torchs_own_function_takes_the_arguments_on_fake_tensors(tmp_path: Path) -> None:
    with FakeTensorMode():
        data = torch.empty(8, PAGE_SIZE, 2, 16, dtype=torch.bfloat16, device="cuda")
        out, _, _ = torch.ops.torch_attn._varlen_attn(
            torch.empty(6, HEADS, 16, dtype=torch.bfloat16, device="cuda"),
            data,
            data,
            torch.empty(4, dtype=torch.int32, device="cuda"),
            None,
            3,
            12,
            True,
            0.25,
            [-1, 0],
            True,
            torch.empty(3, dtype=torch.int32, device="cuda"),
            torch.empty(3, 3, dtype=torch.int32, device="cuda"),
            1,
        )
    assert out.shape == (6, HEADS, 16)
    assert out.dtype == torch.bfloat16


def test_what_cannot_be_read_in_place_is_refused_with_its_reason() -> None:
    with FakeTensorMode():

        def data(head_dim: int = 64, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.empty(2, 2, 8, 2, 16, head_dim, dtype=dtype, device="cuda")

        assert refusal(data(), 4, NEEDED) is None
        assert "block_table" in str(refusal(data(), 4, NEEDED - {"block_table"}))
        assert "float32" in str(refusal(data(dtype=torch.float32), 4, NEEDED))
        assert "head_dim 20" in str(refusal(data(20), 4, NEEDED))
        assert "head_dim 264" in str(refusal(data(264), 4, NEEDED))
        assert "5 heads" in str(refusal(data(), 5, NEEDED))
        assert "cpu" in str(refusal(torch.empty(1, 2, 1, 1, 4, 8), 1, NEEDED))
