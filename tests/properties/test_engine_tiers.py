"""Cached = recomputed through every tier: a real loop, host memory, a real file, and restarts.

`ENGINE_TIER_OPERATIONS` sets how many random operations there are, a quarter of them in each form.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from appliance.model.decoder import Decoder
from appliance.wire.frames import Sampling
from tests.engine_fixtures import decoder, model_directory
from tests.properties.test_engine_cache import CLOSING, Chats, assert_nothing_is_held, ids
from tests.unit.engine.driver import Driver

__all__ = ["decoder", "model_directory"]

OPERATIONS = int(os.environ.get("ENGINE_TIER_OPERATIONS", "2000"))


class Box:
    """Chats on an engine whose device holds two of them, and which is stopped now and then."""

    def __init__(
        self, decoder: Decoder, path: Path, seed: int, *, host: int, disk: int, dtype: torch.dtype
    ) -> None:
        self.random = random.Random(seed)
        self.decoder, self.path, self.host, self.disk = decoder, path, host, disk
        self.dtype = dtype
        self.totals: dict[str, float] = {}
        self.chats = Chats(self.start(), seed)
        self.chats.histories = [ids(seed * 100 + i, 40 + 3 * i) for i in range(10)]
        self.chats.nodes = [None] * 10

    def start(self) -> Driver:
        return Driver(
            self.decoder,
            pages=14,
            running_max=4,
            step_tokens_max=48,
            host_slots=self.host,
            disk_slots=self.disk,
            kv_slots=self.path if self.disk else None,
            kv_dtype=self.dtype,
        )

    def restart(self) -> None:
        """Orderly, with what is cached saved, or as by `kill -9`."""
        self.end()
        if self.random.random() < 0.6:
            self.chats.driver.tiers.save(60)
        self.chats.driver.tiers.close()
        self.chats.driver = self.start()
        self.chats.nodes = [None] * len(self.chats.nodes)
        self.chats.driver.check()

    def end(self) -> None:
        """Let everything end, and compare it."""
        self.chats.play(0)
        driver = self.chats.driver
        # A reply that has ended may still be closing.
        driver.finish()
        for request_id in self.chats.compared:
            assert driver.reason(request_id) in ("length", "cancelled")
            driver.compare_with_recomputation(request_id)
        self.chats.compared.clear()
        assert_nothing_is_held(driver)
        for name, value in (driver.tiers.stats() | driver.index.stats()).items():
            self.totals[name] = self.totals.get(name, 0) + value


@pytest.mark.parametrize(
    ("host", "disk", "dtype"),
    [
        (9, 0, torch.float32),
        (0, 60, torch.float32),
        (9, 60, torch.float32),
        (9, 60, torch.int8),
    ],
)
def test_random_chats_through_the_tiers_equal_recomputations(
    decoder: Decoder, tmp_path: Path, host: int, disk: int, dtype: torch.dtype
) -> None:
    path = tmp_path / "kv" / "slots"
    box = Box(decoder, path, host + disk, host=host, disk=disk, dtype=dtype)
    operations = OPERATIONS // 4
    for _ in range(operations):
        box.chats.act()
        if box.random.random() < 0.004:
            box.restart()
    box.restart()
    box.chats.driver.tiers.close()
    assert box.totals["offloaded_pages"] > operations / 40
    assert box.totals["tier_restored_pages"] > operations / 100
    assert box.totals["tier_rejected_pages"] == 0
    assert box.totals["tier_dropped_writes"] == 0


def test_a_chat_comes_back_from_host_memory_and_from_disk_and_after_a_restart(
    decoder: Decoder, tmp_path: Path
) -> None:
    def start() -> Driver:
        return Driver(
            decoder, pages=14, host_slots=4, disk_slots=30, kv_slots=tmp_path / "kv" / "slots"
        )

    greedy = Sampling(temperature=0.0, logprobs=3)
    driver = start()
    first = driver.run(ids(1, 100), sampling=greedy, closing=CLOSING)
    driver.run(ids(2, 200), new_tokens_max=20)
    stats = driver.index.stats()
    assert stats["pages_host"] == 4
    assert stats["pages_disk"] >= 2
    again = driver.run(ids(1, 100), sampling=greedy)
    assert driver.hit(again) == 96
    driver.compare_with_recomputation(again)
    driver.tiers.save(60)
    driver.tiers.close()
    other = start()
    after = other.run(ids(1, 100), sampling=greedy)
    assert other.hit(after) == 96
    assert other.reply(after) == driver.reply(first)
    other.compare_with_recomputation(after)
    other.tiers.close()


def test_what_is_restored_for_one_request_is_there_for_the_next_in_the_same_step(
    decoder: Decoder,
) -> None:
    driver = Driver(decoder, pages=14, host_slots=30)
    driver.run(ids(1, 100))
    driver.run(ids(2, 200), new_tokens_max=20)
    runs = [driver.submit(ids(1, 100) + ids(seed, 5)) for seed in (3, 4)]
    driver.step()
    assert [driver.hit(run) for run in runs] == [96, 96]
    assert driver.index.stats()["onloaded_tokens"] == 96, "the pages were restored twice"
    driver.finish()
    for run in runs:
        driver.compare_with_recomputation(run)


def test_a_page_is_offloaded_before_rows_are_copied_into_it(decoder: Decoder) -> None:
    driver = Driver(decoder, pages=14, host_slots=100)
    driver.run(ids(1, 100), new_tokens_max=4)
    driver.run(ids(2, 100), new_tokens_max=4)
    # Every page is in use or cached now, so what is copied into was another chat's.
    for keep in range(21, 31):
        branch = driver.submit(ids(2, 100)[:keep] + ids(keep, 40), new_tokens_max=2)
        driver.finish()
        driver.compare_with_recomputation(branch)
    for seed in (1, 2):
        again = driver.run(ids(seed, 100), new_tokens_max=4)
        assert driver.hit(again) >= 96
        driver.compare_with_recomputation(again)
    assert driver.tiers.stats()["tier_restored_pages"] > 0


def test_a_request_that_is_cancelled_before_its_first_token_keeps_what_was_restored(
    decoder: Decoder,
) -> None:
    driver = Driver(decoder, pages=14, host_slots=30)
    driver.run(ids(1, 150))
    driver.run(ids(2, 200), new_tokens_max=20)
    cut = driver.submit(ids(1, 150) + ids(3, 60))
    driver.step()
    assert driver.hit(cut) == 144
    driver.cancel(cut, 0)
    restored = driver.index.stats()["onloaded_tokens"]
    again = driver.run(ids(1, 150))
    assert driver.hit(again) >= 144
    assert driver.index.stats()["onloaded_tokens"] == restored, "the pages were restored twice"
    driver.compare_with_recomputation(again)
