"""When a queue is full, for whom, and what the refused are told."""

from __future__ import annotations

from appliance.engine.queue_limits import AdmissionPace, FullQueue, full_queue, retry_after_s
from appliance.engine.sequence import Sequence, State
from appliance.engine.shares import TenantShares
from appliance.model.decoder import Decoder
from appliance.wire.frames import Finished, Generate
from tests.unit.engine.driver import Driver
from tests.unit.engine.sequences import request, sequence


def full(waiting: list[Sequence], asked: Generate, own: int = 2, all_: int = 4) -> FullQueue | None:
    return full_queue(
        waiting, asked, waiting_max=all_, waiting_per_tenant_max=own, seconds_each=5.0
    )


def waits(ordinal: int, **options: object) -> Sequence:
    return sequence(ordinal, state=State.WAITING, **options)  # type: ignore[arg-type]


def test_a_tenants_part_is_full_before_the_queue_is_and_others_share_its_pace() -> None:
    waiting = [waits(1, tenant=b"a"), waits(2, tenant=b"a"), waits(3, tenant=b"b")]
    found = full(waiting, request(tenant=b"a"))
    assert found is not None
    assert found.refusal.retry_after_s == 2 * 5 * 2
    assert full(waiting, request(tenant=b"b")) is None


def test_an_interactive_request_takes_the_place_of_the_youngest_batch_one_not_begun() -> None:
    waiting = [
        waits(1, tenant=b"a"),
        waits(2, tenant=b"b", priority="batch"),
        waits(3, tenant=b"c", priority="batch"),
        waits(4, tenant=b"c", priority="batch", announced=True),
    ]
    found = full(waiting, request(tenant=b"d"))
    assert found is not None
    assert found.loser is waiting[2]
    found = full(waiting, request(tenant=b"d", priority="batch"))
    assert found is not None
    assert found.loser is None
    assert found.refusal.retry_after_s == 20


def test_the_pace_is_that_of_the_queue_there_is_now() -> None:
    pace = AdmissionPace()
    pace.queue_formed(1000.0)
    assert pace.seconds_each(1004.0) == 4.0
    for at in (1001.0, 1002.0, 1003.0, 1004.0):
        pace.admitted(at)
    assert pace.seconds_each(1004.0) == 1.0
    assert pace.seconds_each(1040.0) == 10.0
    pace.queue_formed(2000.0)
    assert pace.seconds_each(2002.0) == 2.0


def test_the_time_to_stay_away_is_whole_and_bounded() -> None:
    assert retry_after_s(10, 0.0) == 1
    assert retry_after_s(3, 1.5) == 5
    assert retry_after_s(200, 30.0) == 120


def test_a_refused_request_is_told_the_measured_time(decoder: Decoder) -> None:
    driver = Driver(decoder, running_max=1, waiting_max=3, waiting_per_tenant_max=2)
    for _ in range(3):
        driver.submit([1, 2, 3], new_tokens_max=40, tenant=b"a")
        driver.step()
    driver.now += 30.0
    refused = driver.finished(driver.submit([1, 2], tenant=b"a"))
    assert isinstance(refused, Finished)
    assert refused.error_code == "overloaded"
    assert refused.retry_after_s is not None
    assert 60 <= refused.retry_after_s <= 62
    batch = driver.submit([4, 5], tenant=b"b", priority="batch")
    urgent = driver.submit([4, 6], tenant=b"c")
    assert driver.error_code(batch) == "overloaded"
    driver.finish()
    assert driver.reason(urgent) == "length"
    assert driver.loop.counters.refused == 2


def test_a_tenant_that_comes_back_is_lifted_to_the_lowest_at_work() -> None:
    shares = TenantShares()
    shares.arrive(b"a", set())
    shares._served[b"a"] = 100.0
    shares.arrive(b"b", {b"a"})
    assert dict(shares.served) == {b"a": 100.0, b"b": 100.0}
    shares._served[b"b"] = 300.0
    shares.arrive(b"b", {b"a"})
    assert shares.served[b"b"] == 300.0
    shares.arrive(b"c", set())
    assert dict(shares.served) == {b"c": 0.0}
