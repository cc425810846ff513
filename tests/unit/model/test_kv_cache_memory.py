"""The cache takes memory when pages are used, not when it is made."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from appliance.model.config import read_config
from appliance.model.kv_cache import KVCache, bytes_per_page
from tests.model_fixtures import tiny_model, write_directory

MIB = 2**20


def test_an_empty_cache_takes_no_memory(tmp_path: Path) -> None:
    write_directory(tmp_path / "m", tiny_model())
    config = read_config(tmp_path / "m")
    before = psutil.Process().memory_info().rss
    pages = 256 * MIB // bytes_per_page(config, 16)
    cache = KVCache(config, pages=pages, page_size=16, device=torch.device("cpu"))
    assert cache.data.nbytes > 255 * MIB
    assert psutil.Process().memory_info().rss - before < 32 * MIB
    assert not cache.data[:, :, -1].any()
