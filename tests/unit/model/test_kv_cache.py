"""Pages as bytes, with int8 and without: sizes, copies, and what the decoder makes of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from appliance import _core
from appliance.model.config import parse_config, read_config
from appliance.model.decoder import Decoder, load_model
from appliance.model.kv_cache import KVCache, bytes_per_page, quantise
from appliance.tokens import pack
from tests.engine_fixtures import decoder, model_directory
from tests.model_fixtures import tiny_model, write_directory
from tests.unit.model.steps import Piece, step

__all__ = ["decoder", "model_directory"]

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.int8]


def filled(dtype: torch.dtype, seed: int = 1) -> KVCache:
    """A cache of 5 pages of 3 rows, all values different."""
    config = parse_config(tiny_model().config, {}, "config.json")
    cache = KVCache(config, pages=5, page_size=3, device=CPU, dtype=dtype)
    random = torch.Generator().manual_seed(seed)
    content = torch.randn(cache.data.shape, generator=random)
    if cache.scales is None:
        cache.data.copy_(content)
    else:
        numbers, scales = quantise(content)
        cache.data.copy_(numbers)
        cache.scales.copy_(scales)
    return cache


def page(cache: KVCache, number: int) -> list[torch.Tensor]:
    return [t[:, :, number].clone() for t in (cache.data, cache.scales) if t is not None]


def test_an_int8_row_takes_a_byte_a_number_and_four_for_its_scale() -> None:
    config = parse_config(tiny_model().config, {}, "config.json")
    heads = config.layers * 2 * config.kv_heads
    assert bytes_per_page(config, 16) == heads * 16 * config.head_dim * 4
    assert bytes_per_page(config, 16, torch.int8) == heads * 16 * (config.head_dim + 4)
    for dtype in DTYPES:
        cache = filled(dtype)
        assert cache.page_content_bytes == bytes_per_page(config, 3, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_page_moves_as_bytes_into_another_cache_and_nothing_else_changes(
    dtype: torch.dtype,
) -> None:
    source, target = filled(dtype, 1), filled(dtype, 2)
    before = [page(target, number) for number in range(5)]
    buffer = torch.empty(source.page_content_bytes, dtype=torch.uint8)
    source.read_page(4, buffer)
    target.write_page(1, buffer)
    expected = [*before[:1], page(source, 4), *before[2:]]
    for number, parts in enumerate(expected):
        for part, other in zip(parts, page(target, number), strict=True):
            assert torch.equal(part, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copied_rows_bring_their_scales(dtype: torch.dtype) -> None:
    cache = filled(dtype)
    old = page(cache, 3)
    cache.copy_rows(0, 3, 2)
    for source, target, before in zip(page(cache, 0), page(cache, 3), old, strict=True):
        assert torch.equal(target[:, :, :, :2], source[:, :, :, :2])
        assert torch.equal(target[:, :, :, 2], before[:, :, :, 2])


@pytest.mark.parametrize(
    "row",
    [
        [127.0, 0.5, 1.5, -2.5, -3.5, 0.0],
        [0.0] * 6,
        [1e-45, -1e-45, 0.0, 0.0, 0.0, 0.0],
        [3.4028235e38, -3.4028235e38, 1.0, 0.0, 2e38, -1e38],
        [1.0, float("nan"), 2.0, 3.0, 4.0, 5.0],
        [1.0, float("-inf"), 2.0, 3.0, 4.0, 5.0],
    ],
)
def test_rows_are_quantised_as_the_kernel_does_it(row: list[float]) -> None:
    random = torch.Generator().manual_seed(3)
    rows = torch.randn(8, 1, 6, generator=random)
    rows[3, 0] = torch.tensor(row)
    numbers, scales = torch.zeros(1, 1, 8, 6, dtype=torch.int8), torch.zeros(1, 1, 8)
    address, scale_address = numbers.data_ptr(), scales.data_ptr()
    _core.store_kv(
        rows.data_ptr(),
        rows.data_ptr(),
        address,
        address,
        pack(range(8)),
        scales=(scale_address, scale_address),
        kv_heads=1,
        head_dim=6,
        pages=1,
        page_size=8,
    )
    ours, our_scales = quantise(rows)
    assert torch.equal(ours[:, 0], numbers[0, 0])
    assert torch.equal(our_scales[:, 0].nan_to_num(nan=-1), scales[0, 0].nan_to_num(nan=-1))


def test_int8_rows_are_the_same_bytes_alone_and_among_others() -> None:
    """Cached = recomputed holds exactly: nothing of a row is taken from its neighbours."""
    rows = torch.randn(12, 2, 16, generator=torch.Generator().manual_seed(4))
    together, alone = filled(torch.int8), filled(torch.int8)
    where = torch.arange(12)
    together.store(0, where // 3, where % 3, rows, -rows)
    for row in reversed(range(12)):
        at = where[row, None]
        alone.store(0, at // 3, at % 3, rows[row, None], -rows[row, None])
    assert torch.equal(together.data, alone.data)
    assert together.scales is not None
    assert alone.scales is not None
    assert torch.equal(together.scales, alone.scales)


@pytest.mark.parametrize("cuts", [[0, 40], [0, 17, 40], [0, 1, 2, 3, 40], [0, 16, 32, 39, 40]])
def test_int8_rows_do_not_depend_on_how_a_prompt_was_cut(decoder: Decoder, cuts: list[int]) -> None:
    """So what is cached equals what a recomputation gives: in the last bit where the matrices do."""
    caches, logits = [], []
    for starts in ([0, 40], cuts):
        cache = decoder.new_cache(3, 16, torch.int8)
        for start, stop in pairwise(starts):
            piece = Piece(token_ids=range(5 + start, 5 + stop), start=start, pages=[2, 0, 1])
            last = decoder.forward(step([piece], page_size=16), cache)
        caches.append(cache)
        logits.append(last[-1])
    (one, other), pages = caches, [2, 0, 1]
    for layer in range(decoder.config.layers):
        values = [cache.gather(layer, torch.tensor(pages)) for cache in (one, other)]
        scales = one.layer_scales(layer)
        assert scales is not None
        for side, (first, second) in enumerate(zip(*values, strict=True)):
            # A rounding of float32 in the matrices can move a number by one step, never more.
            step_size = scales[side][torch.tensor(pages)].unsqueeze(-1)
            assert ((first - second).abs() <= step_size * 1.01).all()
    assert torch.allclose(logits[0], logits[1], atol=1e-2)


def test_int8_caches_give_nearly_the_logits_of_float32(tmp_path: Path) -> None:
    model = load_model(write_directory(tmp_path / "m", tiny_model()), "cpu", 1)
    piece = Piece(token_ids=range(5, 45), start=0, pages=[2, 0, 1])
    logits = [
        model.forward(step([piece], page_size=16), model.new_cache(3, 16, dtype))
        for dtype in DTYPES
    ]
    difference = (logits[0] - logits[1]).abs().max()
    assert 0 < difference < 0.05 * logits[0].abs().max()
    assert read_config(tmp_path / "m") == model.config
