"""What is decided about tiers: whether to restore, what to save, how many slots a budget has."""

from __future__ import annotations

import pytest

from appliance.config import EngineConfig
from appliance.engine.limits import available_memory_bytes, check_memory, fit_limits
from appliance.engine.tier_costs import FIXED_S, PROBE_EVERY, TierCosts
from appliance.engine.tier_save import Move, SavedPage, plan_save
from appliance.errors import ConfigError


def test_restoring_is_tried_until_it_is_measured() -> None:
    costs = TierCosts(16)
    assert costs.onload_tokens_min("disk") == 16
    costs.took_step(512, 1.0)
    assert costs.onload_tokens_min("disk") == 16
    costs.took_restore("disk", 10, 100.0)
    assert costs.onload_tokens_min("disk") is None
    assert costs.onload_tokens_min("host") == 16


def test_restoring_begins_where_its_fixed_cost_is_won_back() -> None:
    costs = TierCosts(16)
    costs.took_step(1000, 1.0)
    # A page takes 16 ms to compute; restored in 15.6 ms it gains 0.4 ms.
    costs.took_restore("host", 10, 0.156)
    assert FIXED_S == 0.001
    assert costs.onload_tokens_min("host") == 3 * 16
    assert costs.onload_tokens_min("disk") == 16


def test_where_restoring_does_not_pay_it_is_measured_again_now_and_then() -> None:
    costs = TierCosts(16)
    costs.took_step(1000, 0.1)
    costs.took_restore("disk", 1, 1.0)
    answers = [costs.onload_tokens_min("disk") for _ in range(2 * PROBE_EVERY)]
    assert answers.count(16) == 2
    assert answers.count(None) == 2 * PROBE_EVERY - 2
    for _ in range(100):
        costs.took_restore("disk", 1, 0.0001)
    assert costs.onload_tokens_min("disk") == 16


def test_decode_steps_say_nothing_about_prefills() -> None:
    costs = TierCosts(16)
    costs.took_step(8, 100.0)
    costs.took_step(512, 0.0)
    assert costs.prefill_token_s == 0
    costs.took_step(100, 1.0)
    costs.took_step(100, 2.0)
    assert costs.prefill_token_s == pytest.approx(0.011)


def key(number: int) -> bytes:
    return bytes([number]) * 32


def test_the_most_recent_pages_are_saved_from_where_they_are() -> None:
    # Host slots 0 and 1 had pages 3 and 4, disk slots 0 and 2 pages 1 and 2; the device had 5, 6, 7.
    moves: list[Move] = [
        ("host", 0, "disk", 1, key(3)),
        ("device", 9, "host", 0, key(5)),
        ("host", 1, "disk", 0, key(4)),
        ("device", 8, "host", 1, key(6)),
        ("host", 0, "disk", 2, key(5)),
        ("device", 7, "host", 0, key(7)),
    ]
    plan = plan_save(
        moves,
        host=[(key(6), 1), (key(7), 0)],
        disk=[(key(3), 1), (key(4), 0), (key(5), 2)],
        disk_slots=3,
    )
    assert plan == [
        SavedPage(key=key(5), source=("device", 9), slot=0),
        SavedPage(key=key(6), source=("device", 8), slot=1),
        SavedPage(key=key(7), source=("device", 7), slot=2),
    ]


def test_what_is_on_disk_stays_in_its_slot_and_is_not_written_over() -> None:
    plan = plan_save(
        [("device", 5, "host", 0, key(9))],
        host=[(key(9), 0)],
        disk=[(key(1), 3), (key(2), 0)],
        disk_slots=4,
    )
    assert plan == [SavedPage(key=key(9), source=("device", 5), slot=1)]
    full = plan_save([], host=[(key(9), 0)], disk=[(key(1), 1), (key(2), 0)], disk_slots=2)
    assert full == [SavedPage(key=key(9), source=("host", 0), slot=1)], "the oldest page goes"


def fit(**settings: int) -> tuple[int, int]:
    limits = fit_limits(
        EngineConfig(**settings),  # type: ignore[arg-type]
        model_context_tokens=512,
        bytes_per_page=100_000,
        cores=1,
    )
    return limits.host_slots, limits.disk_slots


def test_budgets_become_slots() -> None:
    assert fit() == (0, 0)
    assert fit(host_cache_bytes=10_000_000, disk_cache_bytes=10_000_000) == (99, 99)


@pytest.mark.parametrize("name", ["host_cache_bytes", "disk_cache_bytes"])
def test_a_budget_without_room_for_a_page_is_refused_with_both_numbers(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.{name} \(100000\).*100000 bytes"):
        fit(**{name: 100_000})


def test_a_host_tier_must_fit_into_memory_beside_the_cache() -> None:
    config = EngineConfig(host_cache_bytes=600, kv_cache_bytes=500)
    check_memory(config, on_gpu=False, available_bytes=1100)
    with pytest.raises(ConfigError, match=r"host_cache_bytes \(600\).*\(500\).*1100 .*1099"):
        check_memory(config, on_gpu=False, available_bytes=1099)
    check_memory(EngineConfig(kv_cache_bytes=500), on_gpu=False, available_bytes=100)
    # On a GPU the cache is in the GPU's memory.
    check_memory(config, on_gpu=True, available_bytes=600)
    with pytest.raises(ConfigError, match=r"host_cache_bytes \(600\) take 600"):
        check_memory(config, on_gpu=True, available_bytes=599)


def test_available_memory_is_what_the_machine_says() -> None:
    assert 2**20 < available_memory_bytes() < 2**50
