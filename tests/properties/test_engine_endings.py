"""Every request gets exactly one terminal event, whatever is cancelled, late, preempted or refused."""

from __future__ import annotations

import random

import pytest

from appliance.model.decoder import Decoder
from tests.engine_fixtures import decoder, model_directory
from tests.unit.engine.driver import Driver
from tests.unit.engine.simulation import TimedDecoder

__all__ = ["decoder", "model_directory"]


@pytest.mark.parametrize("seed", range(3))
def test_random_tenants_priorities_deadlines_and_cancels(decoder: Decoder, seed: int) -> None:
    source = random.Random(seed)
    driver: Driver

    def spend(shape: object) -> None:
        driver.now += source.uniform(0.01, 0.05)

    driver = Driver(
        TimedDecoder(decoder, spend),
        pages=16,
        running_max=4,
        waiting_max=12,
        waiting_per_tenant_max=8,
        step_tokens_max=32,
    )
    asked: list[str] = []
    for _ in range(900):
        if source.random() < 0.3:
            asked.append(
                driver.submit(
                    [source.randrange(1, 60) for _ in range(source.randrange(1, 90))],
                    new_tokens_max=source.choice([2, 20, 120]),
                    closing=[5, 6],
                    tenant=source.choice([b"a", b"a", b"b", b"c"]),
                    priority=source.choice(["interactive", "batch"]),
                    deadline_ms=source.choice([None, None, 300, 3_000]),
                    connection=source.randrange(2),
                )
            )
        if asked and source.random() < 0.05:
            driver.cancel(source.choice(asked[-20:]), source.randrange(9), source.randrange(2))
        if source.random() < 0.005:
            driver.loop.disconnect(source.randrange(2))
        driver.step()
    driver.finish()
    # `finished` also asserts that there is at most one, and that it is the last event.
    ends = [driver.finished(request_id) for request_id in asked]
    assert all(end is not None for end in ends)
    counters = driver.loop.counters
    counted = {
        "finished": counters.finished,
        "cancelled": counters.cancelled,
        "refused": counters.refused,
        "deadline_exceeded": counters.deadline_exceeded,
    }
    assert all(counted.values()), counted
    assert sum(counted.values()) == counters.submitted == len(asked)
    assert counters.preempted > counters.preempted_for_others > 0
    assert driver.index.stats()["pages_leased"] == 0
