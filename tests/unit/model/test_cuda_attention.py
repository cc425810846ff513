"""Pages in place without a GPU: tables against the slow reference, shapes on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen

from appliance.model import varlen_kernel
from appliance.model.attention import LayerAttention, reference_attention, torch_attention
from appliance.model.config import read_config
from appliance.model.cuda_attention import attend_in_place, cuda_attention
from appliance.model.kv_cache import KVCache
from appliance.model.paged_step import paged_step
from appliance.model.varlen_kernel import NEEDED, Kernel, known_refusal, refusal, trial_difference
from tests.model_fixtures import write_tiny_llama
from tests.reference.varlen import slow_varlen
from tests.unit.model.steps import Piece, step

PAGE_SIZE, HEADS = 4, 4
CPU = torch.device("cpu")
BATCH = step(
    [
        Piece(token_ids=range(3), start=6, pages=[5, 2, 7]),
        Piece(token_ids=[1], start=4, pages=[3, 6]),
        Piece(token_ids=range(2), start=0, pages=[1]),
    ],
    page_size=PAGE_SIZE,
)


@pytest.fixture
def slow_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The slow reference in the kernel's place, asked anew."""
    monkeypatch.setattr(varlen, "varlen_attn", slow_varlen)
    refusal.cache_clear()
    yield
    refusal.cache_clear()


def kernel(
    *,
    dtype: torch.dtype = torch.bfloat16,
    head_dim: int = 64,
    page_size: int = 16,
    windowed: bool = False,
) -> Kernel:
    return Kernel(
        device=CPU,
        dtype=dtype,
        heads=4,
        kv_heads=2,
        head_dim=head_dim,
        page_size=page_size,
        windowed=windowed,
    )


def filled(directory: Path, dtype: torch.dtype, kv_heads: int) -> KVCache:
    config = read_config(write_tiny_llama(directory / str(kv_heads), kv_heads=kv_heads))
    cache = KVCache(config, pages=8, page_size=PAGE_SIZE, device=CPU, dtype=dtype)
    cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(2)))
    return cache


def inputs(kv_heads: int) -> list[torch.Tensor]:
    """q, k and v whose values bfloat16 has too."""
    random = torch.Generator().manual_seed(1)
    return [
        torch.randn(BATCH.tokens, heads, 16, generator=random).bfloat16().float()
        for heads in (HEADS, kv_heads, kv_heads)
    ]


@pytest.mark.usefixtures("slow_kernel")
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_tables_lead_to_the_references_attention(
    tmp_path: Path, kv_heads: int, stores: bool, window: int | None
) -> None:
    layer = LayerAttention(kv_layer=1, scale=0.3, stores=stores, window=window)
    results = []
    for is_reference in (True, False):
        cache = filled(tmp_path, torch.bfloat16, kv_heads)
        attend = (
            reference_attention(BATCH, cache, HEADS)
            if is_reference
            else attend_in_place(paged_step(BATCH, PAGE_SIZE), cache)
        )
        results.append((attend(layer, *inputs(kv_heads)), cache.data))
    (expected, cached), (got, cached_too) = results
    torch.testing.assert_close(got, expected, atol=0.02, rtol=0.01)
    assert torch.equal(cached, cached_too)


@pytest.mark.usefixtures("slow_kernel")
def test_a_soft_cap_or_float32_keys_go_to_the_gather_and_other_layers_of_the_step_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    @wraps(slow_varlen)
    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(named["scale"])
        return slow_varlen(*arguments, **named)

    for dtype in (torch.bfloat16, torch.float32):
        cache, expected_cache = (filled(tmp_path, dtype, 2) for _ in range(2))
        attend = cuda_attention(BATCH, cache, HEADS)
        expected = torch_attention(BATCH, expected_cache, HEADS)
        assert refusal(kernel(head_dim=16, page_size=PAGE_SIZE)) is None
        monkeypatch.setattr(varlen, "varlen_attn", counted)
        for layer in (
            LayerAttention(kv_layer=0, scale=0.3, softcap=5.0),
            LayerAttention(kv_layer=1, scale=0.4),
        ):
            torch.testing.assert_close(
                attend(layer, *inputs(2)), expected(layer, *inputs(2)), atol=0.02, rtol=0.01
            )
    assert [scale for scale in calls if scale in (0.3, 0.4)] == [0.4]


@pytest.mark.usefixtures("slow_kernel")
@pytest.mark.parametrize("windowed", [False, True])
def test_a_kernel_is_taken_when_its_trial_gives_what_plain_attention_gives(
    monkeypatch: pytest.MonkeyPatch, windowed: bool
) -> None:
    call = kernel(windowed=windowed)
    for queries in varlen_kernel.TRIAL_QUERIES:
        assert trial_difference(call, queries) < varlen_kernel.TOLERANCE / 2
    assert refusal(call) is None
    refusal.cache_clear()

    @wraps(slow_varlen)
    def wrong(*arguments: Any, **named: Any) -> Any:
        return slow_varlen(*arguments, **named | {"window_size": (2, 0)})

    monkeypatch.setattr(varlen, "varlen_attn", wrong)
    assert "wrong by" in str(refusal(call))
    refusal.cache_clear()

    @wraps(slow_varlen)
    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Paged KV cache block size must be divisible by 256\nmore")

    monkeypatch.setattr(varlen, "varlen_attn", refused)
    assert refusal(call) == (
        "1 queries refused: Paged KV cache block size must be divisible by 256"
    )
    refusal.cache_clear()

    @wraps(slow_varlen)
    def long_only(q: Any, *arguments: Any, **named: Any) -> Any:
        return (
            torch.full_like(q, float("nan")) if len(q) > 2 else slow_varlen(q, *arguments, **named)
        )

    monkeypatch.setattr(varlen, "varlen_attn", long_only)
    assert refusal(call) == "129 queries wrong by nan"


@pytest.mark.skipif(
    not set(signature(varlen.varlen_attn).parameters) >= NEEDED,
    reason="this torch's varlen_attn has no block table",
)
@pytest.mark.parametrize("window", [None, 5])
def test_torchs_own_function_takes_the_arguments_on_fake_tensors(
    tmp_path: Path, window: int | None
) -> None:
    config = read_config(write_tiny_llama(tmp_path))
    layer = LayerAttention(kv_layer=1, scale=0.25, window=window)
    device = torch.device("cuda")
    # Without cuDNN: choosing it asks the GPU's driver.
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        sdpa_kernel([SDPBackend.FLASH_ATTENTION]),
        torch.inference_mode(),
    ):
        cache = KVCache(config, pages=8, page_size=4, device=device, dtype=torch.bfloat16)
        q, k, v = (torch.empty(6, heads, 16, device=device) for heads in (HEADS, 2, 2))
        out = attend_in_place(paged_step(BATCH, PAGE_SIZE).to(device), cache)(layer, q, k, v)
    assert out.shape == (6, HEADS, 16)
    assert out.dtype == torch.float32
    assert out.device.type == "cuda"


def test_what_cannot_be_read_in_place_is_refused_with_its_reason() -> None:
    assert known_refusal(kernel(), NEEDED) is None
    assert "no block_table" in str(known_refusal(kernel(), NEEDED - {"block_table"}))
    assert "float32" in str(known_refusal(kernel(dtype=torch.float32), NEEDED))
    assert "int8" in str(known_refusal(kernel(dtype=torch.int8), NEEDED))
    assert "head_dim 20" in str(known_refusal(kernel(head_dim=20), NEEDED))
    assert "head_dim 264" in str(known_refusal(kernel(head_dim=264), NEEDED))
