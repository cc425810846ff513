"""Paged attention: every back end against the slow reference, on random ragged batches."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.model.attention import (
    Backend,
    LayerAttention,
    reference_attention,
    torch_attention,
)
from appliance.model.batch import StepBatch
from appliance.model.config import parse_config
from appliance.model.cpu_attention import CpuAttention
from appliance.model.kv_cache import KVCache, quantise
from appliance.tokens import pack
from tests.model_fixtures import tiny_model
from tests.unit.core.attention_call import scored_against_int8

TOLERANCE = 2e-5
PAGES = 24
CPU = torch.device("cpu")


Shape = tuple[int, int, int, int, list[tuple[int, int]], int | None, float | None, int]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """(kv heads, queries per key head, head_dim, page_size, [(cached, new)], window, soft-cap, seed)."""
    return (
        draw(st.sampled_from([1, 2, 3, 4])),
        draw(st.sampled_from([1, 2, 3])),
        draw(st.sampled_from([2, 6, 16, 64])),
        draw(st.sampled_from([1, 3, 4, 16])),
        draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), min_size=1, max_size=4)),
        draw(st.none() | st.integers(1, 12)),
        draw(st.none() | st.sampled_from([0.5, 30.0])),
        draw(st.integers(0, 2**32 - 1)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("backend", [CpuAttention, torch_attention])
@settings(max_examples=40, deadline=None)
@given(shape=shapes())
def test_a_back_end_agrees_with_the_reference(
    backend: Backend, dtype: torch.dtype, shape: Shape
) -> None:
    kv_heads, repeat, head_dim, page_size, lengths, window, softcap, seed = shape
    if backend is CpuAttention:
        softcap = None  # The kernel knows none: `choose_backend`.
    heads = kv_heads * repeat
    random = torch.Generator().manual_seed(seed)
    needed = [-(-(cached + new) // page_size) for cached, new in lengths]
    pages = max(PAGES, sum(needed))
    order = torch.randperm(pages, generator=random).tolist()
    tables = [
        order[stop - count : stop] for count, stop in zip(needed, accumulate(needed), strict=True)
    ]
    batch = batch_of(lengths, tables, page_size)
    config = parse_config(
        tiny_model().config
        | {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim},
        {},
        "config.json",
    )
    caches = [
        KVCache(config, pages=pages, page_size=page_size, device=CPU, dtype=dtype) for _ in range(2)
    ]
    content = torch.randn(caches[0].data.shape, generator=random)
    numbers, scales = quantise(content)
    q, k, v = (
        torch.randn(batch.tokens, count, head_dim, generator=random)
        for count in (heads, kv_heads, kv_heads)
    )
    layer = LayerAttention(kv_layer=1, scale=head_dim**-0.5, window=window, softcap=softcap)
    scored = q
    if backend is CpuAttention and dtype == torch.int8:
        scored = scored_against_int8(q)
    outputs = []
    for cache, function, own in zip(
        caches, (reference_attention, backend), (scored, q), strict=True
    ):
        cache.data.copy_(content if cache.scales is None else numbers)
        if cache.scales is not None:
            cache.scales.copy_(scales)
        outputs.append(function(batch, cache, heads)(layer, own, k, v))
    torch.testing.assert_close(outputs[1], outputs[0], atol=TOLERANCE, rtol=0)
    assert torch.equal(caches[0].data, caches[1].data)
    before = content if dtype == torch.float32 else numbers
    assert torch.equal(caches[0].data[0], before[0]), "another layer was touched"
    if caches[0].scales is not None:
        assert caches[1].scales is not None
        assert torch.equal(caches[0].scales, caches[1].scales)
        assert torch.equal(caches[0].scales[0], scales[0])


def batch_of(lengths: list[tuple[int, int]], tables: list[list[int]], page_size: int) -> StepBatch:
    """A batch of sequences with `cached` positions before their `new` ones."""
    positions = [
        (sequence, position)
        for sequence, (cached, new) in enumerate(lengths)
        for position in range(cached, cached + new)
    ]
    return StepBatch(
        token_ids=torch.zeros(len(positions), dtype=torch.int64),
        positions=torch.tensor([position for _, position in positions]),
        slots=pack(
            tables[sequence][position // page_size] * page_size + position % page_size
            for sequence, position in positions
        ),
        query_starts=pack(accumulate((new for _, new in lengths), initial=0)),
        context_lens=pack(cached + new for cached, new in lengths),
        page_tables=pack(page for table in tables for page in table),
        page_starts=pack(accumulate((len(table) for table in tables), initial=0)),
        logit_rows=torch.tensor([0]),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("backend", [CpuAttention, torch_attention])
def test_what_an_earlier_sequence_left_in_a_page_is_not_seen(
    backend: Backend, dtype: torch.dtype
) -> None:
    config = parse_config(tiny_model().config, {}, "config.json")
    batch = batch_of([(2, 1), (0, 6)], [[3], [1, 2]], 4)
    layer = LayerAttention(kv_layer=0, scale=config.attention_scale)
    random = torch.Generator().manual_seed(1)
    outputs = []
    for left_over in (0.0, float("nan")):
        cache = KVCache(config, pages=4, page_size=4, device=CPU, dtype=dtype)
        floats = cache.data if cache.scales is None else cache.scales
        floats.fill_(left_over)
        floats[:, :, 3, :, :2] = 0.5
        random.manual_seed(1)
        q, k, v = (
            torch.randn(batch.tokens, heads, config.head_dim, generator=random)
            for heads in (config.heads, config.kv_heads, config.kv_heads)
        )
        outputs.append(backend(batch, cache, config.heads)(layer, q, k, v))
    assert torch.equal(outputs[0], outputs[1])
