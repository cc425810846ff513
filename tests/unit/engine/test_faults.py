"""Case O04 and its like: a failing step harms only the requests that caused it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from appliance import tokens
from appliance.engine.runner import DeviceLost
from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.wire.frames import Finished
from tests.unit.engine.driver import Driver
from tests.unit.engine.faulty_decoder import FaultyDecoder

POISON = 200
"""A token id that the faults below react to."""


def raising(error: Exception) -> Callable[[StepBatch], None]:
    def fault(batch: StepBatch) -> None:
        if POISON in batch.token_ids.tolist():
            raise error

    return fault


def plain(seed: int) -> list[int]:
    return [(seed * 37 + place * 11) % 150 + 1 for place in range(12)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "insufficient_memory"),
        (MemoryError(), "insufficient_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "insufficient_memory"),
        (RuntimeError("a kernel failed"), "generation_failed"),
        (AssertionError("a bug"), "generation_failed"),
    ],
)
def test_one_request_that_fails_leaves_four_streams_unchanged(
    decoder: Decoder, error: Exception, code: str
) -> None:
    calm = Driver(decoder)
    expected = [calm.reply(calm.run(plain(i), new_tokens_max=20)) for i in range(4)]
    assert all(POISON not in reply for reply in expected)
    driver = Driver(FaultyDecoder(decoder, raising(error)))
    streams = [driver.submit(plain(i), new_tokens_max=20) for i in range(4)]
    for _ in range(3):
        driver.step()
    bad = driver.submit([*plain(9), POISON, 3])
    driver.finish()
    finished = driver.finished(bad)
    assert finished is not None
    assert (finished.reason, finished.error_code) == ("failed", code)
    assert [driver.reply(r) for r in streams] == expected
    assert [driver.reason(r) for r in streams] == ["length"] * 4
    assert driver.index.stats()["pages_leased"] == 0


def test_a_failure_in_the_middle_of_a_reply_ends_it_with_one_event(decoder: Decoder) -> None:
    calm = Driver(decoder)
    reply = calm.reply(calm.run(plain(1), new_tokens_max=20))
    trigger = reply[7]

    def fault(batch: StepBatch) -> None:
        if trigger in batch.token_ids.tolist() and batch.tokens < 12:
            raise RuntimeError("a kernel failed")

    driver = Driver(FaultyDecoder(decoder, fault))
    request_id = driver.run(plain(1), new_tokens_max=20)
    assert driver.reason(request_id) == "failed"
    assert driver.reply(request_id) == reply[: reply.index(trigger) + 1]


def test_a_step_that_fails_once_is_repeated_unseen(decoder: Decoder) -> None:
    calm = Driver(decoder)
    expected = calm.reply(calm.run(plain(1)))
    failures = iter([False, True, False, False, True])

    def fault(batch: StepBatch) -> None:
        if next(failures, False):
            raise torch.OutOfMemoryError("CUDA out of memory")

    driver = Driver(FaultyDecoder(decoder, fault))
    request_id = driver.run(plain(1))
    assert driver.reply(request_id) == expected
    driver.compare_with_recomputation(request_id)


def test_a_failed_closing_step_keeps_what_was_written_before(decoder: Decoder) -> None:
    driver = Driver(FaultyDecoder(decoder, raising(RuntimeError("a kernel failed"))))
    request_id = driver.run(plain(1), closing=[POISON])
    assert driver.reason(request_id) == "length"
    again = driver.run(plain(1) + driver.reply(request_id))
    assert driver.hit(again) == 12 + 8 - 1


def test_logits_that_are_not_finite_fail_that_request_only_and_are_not_cached(
    decoder: Decoder,
) -> None:
    class NanDecoder(FaultyDecoder):
        def forward(self, batch: StepBatch, cache: KVCache) -> torch.Tensor:
            logits = super().forward(batch, cache)
            starts = tokens.unpack(batch.query_starts)
            for place, row in enumerate(batch.logit_rows.tolist()):
                first = max(start for start in starts if start <= row)
                if POISON in batch.token_ids[first : row + 1].tolist():
                    logits[place, 5] = float("nan")
            return logits

    driver = Driver(NanDecoder(decoder, lambda batch: None))
    bad = driver.submit([*plain(9), POISON])
    good = driver.submit(plain(2))
    driver.finish()
    finished = driver.finished(bad)
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.error_code) == ("failed", "generation_failed")
    assert driver.reason(good) == "length"
    driver.compare_with_recomputation(good)
    assert driver.hit(driver.run(plain(9))) == 0


def test_a_lost_device_ends_the_loop(decoder: Decoder) -> None:
    driver = Driver(FaultyDecoder(decoder, raising(torch.AcceleratorError("illegal address"))))
    driver.submit([POISON, 1])
    with pytest.raises(DeviceLost):
        driver.finish()
