"""CPU paged attention: against the slow reference, and on input that does not fit."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance import _core
from appliance.tokens import pack
from tests.unit.core.attention_call import Call, assert_close, store

SHAPES = [
    (heads, kv_heads, head_dim, page_size)
    for heads, kv_heads in [(1, 1), (4, 4), (9, 3), (9, 1), (32, 8)]
    for head_dim, page_size in [(16, 1), (64, 16), (72, 5), (80, 32), (128, 7), (20, 16), (3, 4)]
]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "page_size"), SHAPES)
def test_every_shape_equals_the_reference(
    heads: int, kv_heads: int, head_dim: int, page_size: int
) -> None:
    sequences = [(1, 1), (1, 77), (5, 5), (2, 130), (40, 40), (33, 100), (1, 700), (0, 9), (3, 513)]
    call = Call.random(
        1, sequences, heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size
    )
    assert_close(call.run(), call.expected())


@pytest.mark.parametrize("seed", range(30))
def test_random_batches_equal_the_reference(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(*values: int) -> int:
        return values[int(torch.randint(len(values), (), generator=generator))]

    def upto(most: int) -> int:
        return 1 + int(torch.randint(most, (), generator=generator))

    kv_heads = pick(1, 2, 3)
    sequences = []
    for _ in range(upto(5)):
        context = upto(pick(8, 64, 520, 1600))
        sequences.append((min(context, upto(pick(1, 4, 30, 200))), context))
    call = Call.random(
        seed,
        sequences,
        heads=kv_heads * pick(1, 3, 9),
        kv_heads=kv_heads,
        head_dim=pick(8, 16, 64, 72, 80, 128, 7),
        page_size=upto(32),
    )
    assert_close(call.run(), call.expected())


def test_a_long_context_equals_the_reference_for_decode_and_for_a_chunk() -> None:
    call = Call.random(3, [(1, 3000), (300, 2500)], heads=9, kv_heads=3, head_dim=64, page_size=16)
    assert_close(call.run(), call.expected())


def test_a_sequence_gives_the_same_bits_alone_and_in_any_batch() -> None:
    sequences = [(1, 2000), (120, 700), (1, 3), (17, 1030), (1, 513)]
    call = Call.random(4, sequences, heads=9, kv_heads=3, head_dim=64, page_size=16)
    together = torch.split_with_sizes(call.run(), call.queries)
    for i, part in enumerate(together):
        assert torch.equal(part, call.alone(i).run())


def test_a_prefill_gives_the_same_bits_in_one_chunk_and_in_many() -> None:
    whole = Call.random(5, [(900, 900)], heads=9, kv_heads=3, head_dim=64, page_size=16)
    expected = whole.run()
    done = 0
    for chunk in (100, 3, 397, 400):
        part = replace(
            whole, q=whole.q[done : done + chunk].clone(), queries=[chunk], contexts=[done + chunk]
        )
        assert torch.equal(part.run(), expected[done : done + chunk])
        done += chunk


@pytest.fixture
def _default_threads() -> Iterator[None]:
    yield
    _core.set_kernel_threads(len(os.sched_getaffinity(0)))


@pytest.mark.usefixtures("_default_threads")
def test_the_number_of_threads_does_not_change_a_bit() -> None:
    call = Call.random(
        6, [(1, 2000), (120, 700), (1, 900)], heads=9, kv_heads=3, head_dim=64, page_size=16
    )
    results = []
    for threads in (1, 2, 5):
        _core.set_kernel_threads(threads)
        results += [call.run() for _ in range(3)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_calls_from_several_threads_at_once_do_not_disturb_each_other() -> None:
    calls = [
        Call.random(i, [(1, 1500), (60, 600)], heads=9, kv_heads=3, head_dim=64, page_size=16)
        for i in range(4)
    ]
    expected = [call.run() for call in calls]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(20) if not torch.equal(calls[i].run(), expected[i]))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def helper_ticks() -> dict[str, int]:
    """User and system time of the kernel's helper threads, in clock ticks."""
    ticks = {}
    for task in Path("/proc/self/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        if name.startswith("kernels-"):
            ticks[task.name] = sum(int(field) for field in rest.split()[11:13])
    return ticks


@pytest.mark.usefixtures("_default_threads")
def test_helper_threads_use_no_time_while_there_is_nothing_to_do() -> None:
    _core.set_kernel_threads(4)
    call = Call.random(12, [(1, 2000), (120, 700)], heads=9, kv_heads=3, head_dim=64, page_size=16)
    call.run()
    # On a busy machine the moment in which they look out for the next job may come late.
    for _ in range(20):
        before = helper_ticks()
        assert len(before) >= 3
        time.sleep(0.5)
        if helper_ticks() == before:
            break
    else:
        pytest.fail("helpers that have nothing to do take time")


@pytest.mark.parametrize("spread", [0.0, 30.0, 1e4, 1e15])
def test_extreme_scores_give_finite_results(spread: float) -> None:
    call = Call.random(
        7, [(1, 600), (40, 90)], heads=4, kv_heads=2, head_dim=64, page_size=16, spread=spread
    )
    out = call.run()
    assert torch.isfinite(out).all()
    assert out.abs().max() <= 1.0001 * call.v_cache.nan_to_num().abs().max()
    if spread <= 30:
        torch.testing.assert_close(out.double(), call.expected(), rtol=1e-3, atol=1e-3 * spread)


def test_a_score_far_below_the_others_weighs_nothing() -> None:
    call = Call.random(8, [(1, 40)], heads=1, kv_heads=1, head_dim=8, page_size=8)
    call.q.fill_(1.0)
    call.k_cache.fill_(-1e4)
    call.k_cache[call.page_tables[0][2], 0, 3] = 1e4
    assert torch.equal(call.run()[0, 0], call.v_cache[call.page_tables[0][2], 0, 3])


def test_stored_rows_are_found_in_their_slots_and_nothing_else_changes() -> None:
    generator = torch.Generator().manual_seed(9)
    k, v = torch.randn(2, 3, 2, 24, generator=generator)
    k_cache, v_cache = torch.zeros(2, 5, 2, 4, 24)
    store(k, v, k_cache, v_cache, [0, 19, 6])
    for cache, rows in ((k_cache, k), (v_cache, v)):
        assert torch.equal(cache[0, :, 0], rows[0])
        assert torch.equal(cache[4, :, 3], rows[1])
        assert torch.equal(cache[1, :, 2], rows[2])
        assert cache.count_nonzero() == rows.count_nonzero()


def test_an_empty_batch_does_nothing() -> None:
    call = Call.random(10, [(0, 5)], heads=2, kv_heads=1, head_dim=8, page_size=4)
    assert call.run().numel() == 0
    store(torch.zeros(0, 1, 8), torch.zeros(0, 1, 8), call.k_cache, call.v_cache, [])


GOOD = Call.random(11, [(1, 10), (2, 6)], heads=4, kv_heads=2, head_dim=8, page_size=4)

BAD = {
    "heads no multiple of kv_heads": {"heads": 3},
    "no heads": {"heads": 0},
    "no kv_heads": {"kv_heads": 0},
    "no head_dim": {"head_dim": 0},
    "no page_size": {"page_size": 0},
    "a cache larger than memory": {"pages": 2**62},
    "a page outside of the cache": {"page_tables": pack([0, 1, 2, 3, 99])},
    "a page equal to the number of pages": {"page_tables": pack([0, 1, 2, 3, 8])},
    "too few pages in a table": {"page_starts": pack([0, 2, 5])},
    "too few pages in all": {"page_tables": pack([0, 1, 2, 3])},
    "pages left over": {"page_tables": pack([0, 1, 2, 3, 4, 5])},
    "page starts that fall": {"page_starts": pack([0, 6, 5])},
    "page starts from one": {"page_starts": pack([1, 3, 5])},
    "query starts that fall": {"query_starts": pack([0, 4, 3])},
    "query starts from one": {"query_starts": pack([1, 1, 3])},
    "too few query starts": {"query_starts": pack([0, 3])},
    "no query starts": {"query_starts": b""},
    "more queries than context": {"context_lens": pack([10, 1])},
    "a context beyond its pages": {"context_lens": pack([13, 6])},
    "a huge context": {"context_lens": pack([2**32 - 1, 6])},
    "too few contexts": {"context_lens": pack([10])},
    "half a number": {"context_lens": pack([10, 6]) + b"\0"},
    "a scale that is not finite": {"scale": float("inf")},
    "a scale that is not a number": {"scale": float("nan")},
    "a window of no positions": {"window": 0},
    "a window that is negative": {"window": -1},
    "a window of more than 32 bits": {"window": 2**32},
    "negative heads": {"heads": -1},
    "negative pages": {"pages": -1},
    "scales of no tensor": {"scales": (0, 0)},
    "scales where no float32 can lie": {"scales": (6, 6)},
}


@pytest.mark.parametrize("changed", BAD.values(), ids=BAD.keys())
def test_arguments_that_do_not_fit_raise_value_error(changed: dict[str, Any]) -> None:
    assert torch.isfinite(GOOD.run()).all()
    with pytest.raises(ValueError, match=r"."):
        GOOD.run(**changed)


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("address", [0, 2])
def test_addresses_of_no_tensor_raise_value_error(position: int, address: int) -> None:
    a, b, c, d = (address if i == position else GOOD.q.data_ptr() for i in range(4))
    with pytest.raises(ValueError, match="address"):
        _core.paged_attention(a, b, c, d, **GOOD.arguments())
    with pytest.raises(ValueError, match="address"):
        _core.store_kv(a, b, c, d, pack([0]), kv_heads=1, head_dim=8, pages=1, page_size=1)


@pytest.mark.parametrize("slots", [pack([20]), pack([0, 2**32 - 1]), b"\0\0\0"])
def test_slots_outside_of_the_cache_raise_value_error_and_write_nothing(slots: bytes) -> None:
    k_cache, v_cache = torch.zeros(2, 5, 2, 4, 24)
    rows = torch.ones(2, 2, 24)
    with pytest.raises(ValueError, match="slot"):
        _core.store_kv(
            rows.data_ptr(),
            rows.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            slots,
            kv_heads=2,
            head_dim=24,
            pages=5,
            page_size=4,
        )
    assert not k_cache.any()
    assert not v_cache.any()
