"""Copies of pages beside a GPU's steps: pytest -m device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from appliance.model.config import read_config
from appliance.model.kv_cache import KVCache
from tests.model_fixtures import write_tiny_llama

pytestmark = pytest.mark.device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_page_that_moves_out_and_back_is_the_same_though_its_place_is_written_at_once(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    config = read_config(write_tiny_llama(tmp_path))
    cache = KVCache(config, pages=4, page_size=16, device=torch.device("cuda"), dtype=dtype)
    cache.data.copy_(torch.randn(cache.data.shape) * 50)
    before = cache.data[:, :, 2].clone()
    buffer = torch.empty(cache.page_content_bytes, dtype=torch.uint8, pin_memory=True)
    for _ in range(50):
        cache.read_page(2, buffer)
        cache.join_copies()
        cache.data[:, :, 2].fill_(7)
        cache.write_page(2, buffer)
        cache.join_copies()
        assert torch.equal(cache.data[:, :, 2], before)
    cache.read_page(2, buffer)
    cache.finish_copies()
    other = KVCache(config, pages=4, page_size=16, device=torch.device("cpu"), dtype=dtype)
    other.write_page(1, buffer)
    assert torch.equal(other.data[:, :, 1], before.cpu())
