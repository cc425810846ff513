"""Copies of pages beside the steps, and int8 products, on a GPU: pytest -m device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from appliance.model.config import read_config
from appliance.model.int8_mm import TorchInt8Linear
from appliance.model.kv_cache import KVCache
from appliance.model.page_copies import PageCopies
from tests.model_fixtures import write_tiny_llama

pytestmark = pytest.mark.device


def test_a_page_that_moves_out_and_back_is_the_same_though_its_place_is_written_at_once(
    tmp_path: Path,
) -> None:
    config = read_config(write_tiny_llama(tmp_path))
    cache = KVCache(config, pages=4, page_size=16, device=torch.device("cuda"))
    cache.data.normal_()
    before = cache.data[:, :, 2].clone()
    copies = PageCopies(cache)
    buffer = torch.empty(cache.bytes_per_page, dtype=torch.uint8, pin_memory=True)
    copies.read_page(2, buffer)
    copies.before_step()
    cache.data[:, :, 2].fill_(7)
    copies.write_page(3, buffer)
    copies.before_step()
    assert torch.equal(cache.data[:, :, 3], before)
    copies.wait()


@pytest.mark.parametrize("tokens", [1, 17, 64])
def test_int8_products_on_the_gpu_are_those_of_the_cpu(tokens: int) -> None:
    weight, x = torch.randn(64, 128), torch.randn(tokens, 128)
    on_gpu = TorchInt8Linear(weight.cuda())(x.cuda()).cpu()
    torch.testing.assert_close(on_gpu, TorchInt8Linear(weight)(x), atol=1e-2, rtol=1e-3)
