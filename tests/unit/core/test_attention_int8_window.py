"""CPU paged attention over int8 caches and with sliding windows, against the slow reference."""

from dataclasses import replace

import pytest
import torch

from appliance import _core
from appliance.tokens import pack
from tests.unit.core.attention_call import Call, assert_close, store

SEQUENCES = [(1, 1), (1, 77), (5, 5), (40, 100), (1, 700), (0, 9), (3, 513), (70, 900)]


def quantised(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and scales of rows, slow and obvious."""
    scales = rows.abs().amax(-1) / 127
    numbers = (rows / scales[..., None]).nan_to_num().round().clamp(-127, 127)
    return numbers.to(torch.int8), scales


@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 1), (9, 3), (4, 4)])
@pytest.mark.parametrize(("head_dim", "page_size"), [(64, 16), (100, 3), (256, 32), (32, 1)])
@pytest.mark.parametrize("window", [None, 1, 48, 100])
@pytest.mark.parametrize("int8", [False, True])
def test_int8_and_windows_equal_the_reference(
    heads: int, kv_heads: int, head_dim: int, page_size: int, window: int | None, int8: bool
) -> None:
    call = Call.random(
        1, SEQUENCES, heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size
    )
    call = replace(call, window=window)
    call = call.with_int8() if int8 else call
    assert_close(call.run(), call.expected())


def test_int8_is_near_what_float32_gives() -> None:
    call = Call.random(2, SEQUENCES, heads=9, kv_heads=3, head_dim=64, page_size=16)
    difference = (call.run() - call.with_int8().run()).abs().max()
    assert 0 < difference < 0.05


def test_int8_rows_are_stored_with_their_scales_and_nothing_else_changes() -> None:
    k, v = torch.randn(2, 3, 2, 24, generator=torch.Generator().manual_seed(3))
    k[1, 0] = 0
    caches = [torch.full((5, 2, 4, 24), 99, dtype=torch.int8) for _ in range(2)]
    scales = torch.full((5, 2, 4), -1.0), torch.full((5, 2, 4), -1.0)
    store(k, v, caches[0], caches[1], [0, 19, 6], scales)
    for rows, cache, scale in zip((k, v), caches, scales, strict=True):
        numbers, expected = quantised(rows)
        for token, (page, row) in enumerate([(0, 0), (4, 3), (1, 2)]):
            assert torch.equal(cache[page, :, row], numbers[token])
            assert torch.equal(scale[page, :, row], expected[token])
        assert (scale >= 0).sum() == 6
        assert (cache != 99).sum() >= 3 * 2 * 24 - 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_seen_through_int8(bad: float) -> None:
    k, v = torch.ones(2, 1, 1, 8)
    v[0, 0, 3] = bad
    k8, v8 = torch.zeros(2, 1, 1, 4, 8, dtype=torch.int8)
    scales = torch.zeros(2, 1, 1, 4)
    store(k, v, k8, v8, [2], (scales[0], scales[1]))
    assert torch.isfinite(scales[0]).all()
    assert torch.isnan(scales[1, 0, 0, 2])


@pytest.mark.parametrize("int8", [False, True])
def test_pages_before_the_window_are_never_read(int8: bool) -> None:
    call = Call.random(4, [(1, 500), (30, 400)], heads=4, kv_heads=2, head_dim=64, page_size=16)
    call = replace(call, window=50)
    call = call.with_int8() if int8 else call
    expected = call.run()
    tensors = call.int8[2:] if call.int8 is not None else (call.k_cache, call.v_cache)
    for table, queries, context in zip(call.page_tables, call.queries, call.contexts, strict=True):
        for page in table[: (context - queries + 1 - 50) // 16]:
            for tensor in tensors:
                tensor[page] = float("nan")
    assert torch.equal(call.run(), expected)


@pytest.mark.parametrize("int8", [False, True])
def test_chunks_and_threads_do_not_change_a_bit_with_a_window(int8: bool) -> None:
    whole = Call.random(5, [(900, 900)], heads=9, kv_heads=3, head_dim=64, page_size=16)
    whole = replace(whole, window=333)
    whole = whole.with_int8() if int8 else whole
    expected = whole.run()
    done = 0
    for chunk in (100, 3, 397, 400):
        q = whole.q[done : done + chunk].clone()
        part = replace(whole, q=q, queries=[chunk], contexts=[done + chunk])
        assert torch.equal(part.run(), expected[done : done + chunk])
        done += chunk


@pytest.mark.parametrize("slots", [pack([20]), pack([0, 2**32 - 1])])
def test_slots_outside_of_an_int8_cache_write_nothing(slots: bytes) -> None:
    k8, v8 = torch.zeros(2, 5, 2, 4, 24, dtype=torch.int8)
    scales = torch.zeros(2, 5, 2, 4)
    rows = torch.ones(2, 2, 24)
    with pytest.raises(ValueError, match="slot"):
        _core.store_kv(
            rows.data_ptr(),
            rows.data_ptr(),
            k8.data_ptr(),
            v8.data_ptr(),
            slots,
            scales=(scales[0].data_ptr(), scales[1].data_ptr()),
            kv_heads=2,
            head_dim=24,
            pages=5,
            page_size=4,
        )
    assert not k8.any()
    assert not scales.any()
