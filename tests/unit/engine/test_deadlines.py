"""A request past its deadline ends at once in every state, and nothing more is computed for it."""

from __future__ import annotations

import pytest

from appliance.engine.sequence import State
from appliance.model.decoder import Decoder
from tests.unit.engine.driver import Driver


def expire(driver: Driver) -> None:
    driver.now += 60.0
    driver.step()


def test_a_waiting_request_expires_without_a_token_computed(decoder: Decoder) -> None:
    driver = Driver(decoder, running_max=1)
    driver.submit([1, 2, 3], new_tokens_max=60)
    late = driver.submit([4, 5, 6], deadline_ms=1_000)
    driver.step()
    assert driver.finished(late) is None
    expire(driver)
    assert driver.error_code(late) == "deadline_exceeded"
    assert driver.admitted(late) is None
    driver.finish()
    assert driver.loop.counters.deadline_exceeded == 1
    assert driver.loop.counters.failed == 0


@pytest.mark.parametrize(("steps", "tokens"), [(2, 0), (9, 4)])
def test_prefill_and_decode_end_where_they_are(decoder: Decoder, steps: int, tokens: int) -> None:
    driver = Driver(decoder, step_tokens_max=16)
    late = driver.submit(list(range(1, 91)), new_tokens_max=60, deadline_ms=30_000)
    for _ in range(steps):
        driver.step()
    expire(driver)
    assert driver.error_code(late) == "deadline_exceeded"
    assert len(driver.reply(late)) == tokens
    assert driver.loop.is_idle
    assert driver.index.stats()["pages_leased"] == 0
    # What was computed of the prompt is there for the next try.
    again = driver.run(list(range(1, 91)))
    assert driver.hit(again) == min(16 * steps, 89)
    driver.compare_with_recomputation(again)


def test_a_preempted_request_expires_while_it_waits_to_resume(decoder: Decoder) -> None:
    driver = Driver(decoder, pages=14, running_max=4)
    ids = [
        driver.submit([i + 1] * 20, new_tokens_max=120, deadline_ms=100_000 if i else None)
        for i in range(4)
    ]
    while driver.loop.counters.preempted == 0:
        driver.step()
    waiting = driver.loop.sequences[State.WAITING]
    (preempted,) = (sequence for sequence in waiting if sequence.lost_tokens is not None)
    driver.now += 200.0
    driver.step()
    assert driver.error_code(preempted.key[1]) == "deadline_exceeded"
    driver.finish()
    assert driver.reason(ids[0]) == "length"


def test_a_reply_that_is_closing_has_met_its_deadline(decoder: Decoder) -> None:
    driver = Driver(decoder)
    done = driver.submit([1, 2, 3], new_tokens_max=2, closing=[7, 8], deadline_ms=30_000)
    while driver.count(State.CLOSING) == 0:
        driver.step()
    expire(driver)
    assert driver.reason(done) == "length"
    assert driver.loop.is_idle
    assert driver.loop.counters.deadline_exceeded == 0
