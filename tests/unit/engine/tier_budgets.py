"""What the tiers take of memory and disk when they are full, in a process that does nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import torch

from appliance import tokens
from appliance._core import PrefixIndex
from appliance.config import EngineConfig
from appliance.engine import tier_files
from appliance.engine.limits import fit_limits
from appliance.engine.tiers import Tiers
from appliance.model.config import parse_config
from appliance.model.kv_cache import KVCache
from tests.model_fixtures import tiny_model

MIB = 2**20


def fill(path: Path) -> None:
    """Fill both tiers and look; raises AssertionError."""
    model = parse_config(tiny_model().config, {}, "config.json")
    cache = KVCache(model, pages=8, page_size=64, device=torch.device("cpu"))
    limits = fit_limits(
        EngineConfig(
            host_cache_bytes=48 * MIB,
            disk_cache_bytes=32 * MIB,
            page_size=64,
            kv_cache_bytes=8 * cache.page_content_bytes,
        ),
        model_context_tokens=256,
        bytes_per_page=cache.page_content_bytes,
        cores=1,
    )
    disk = tier_files.open_disk(path, limits.disk_slots, cache, "model")
    index = PrefixIndex(
        page_size=64, pages=8, host_slots=limits.host_slots, disk_slots=limits.disk_slots
    )
    places = Tiers(index, cache, host_slots=limits.host_slots, disk=disk)
    assert disk is not None

    def serve(first: int) -> None:
        token_ids = tokens.pack(range(first, first + 513))
        lease = index.admit(token_ids[:2048], [(b"alice", 512)], 512)
        assert lease is not None
        places.settle(lease)
        lease.commit(512)
        lease.release()

    for first in range(20):
        serve(first * 512)
    assert disk.finish(10)
    buffers = 64 * MIB
    before = psutil.Process().memory_info().rss
    written = limits.host_slots + limits.disk_slots + 50
    for first in range(20, 20 + written // 8):
        serve(first * 512)
    assert disk.finish(10)
    stats = index.stats()
    assert stats["pages_host"] == limits.host_slots
    assert stats["pages_disk"] == limits.disk_slots
    used = psutil.Process().memory_info().rss - before + 160 * cache.page_content_bytes
    assert 0.9 * 48 * MIB < used < 1.02 * 48 * MIB + buffers
    assert 0.98 * 32 * MIB < path.stat().st_size <= 32 * MIB
    assert path.stat().st_blocks * 512 <= 32 * MIB * 1.02
    places.close()


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
