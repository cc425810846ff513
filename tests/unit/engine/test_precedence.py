"""Who goes first and who gives way, case by case."""

from __future__ import annotations

from appliance.engine.precedence import (
    gives_way,
    next_to_admit,
    preemption_victim,
    prefill_order,
    room_order,
)
from appliance.engine.sequence import Sequence, State
from tests.unit.engine.sequences import sequence


def waits(ordinal: int, **options: object) -> Sequence:
    return sequence(ordinal, state=State.WAITING, **options)  # type: ignore[arg-type]


def ordinal_of(chosen: Sequence | None) -> int | None:
    return None if chosen is None else chosen.ordinal


def test_the_oldest_of_one_tenant_is_admitted_first() -> None:
    assert ordinal_of(next_to_admit([waits(3), waits(1), waits(2)], [], [], {})) == 1
    assert next_to_admit([], [], [], {}) is None


def test_only_requests_that_came_after_the_end_of_a_reply_wait_for_its_closing() -> None:
    waiting = [waits(7), waits(6)]
    closing = [sequence(1, state=State.CLOSING, arrivals_before_end=6)]
    assert ordinal_of(next_to_admit(waiting, closing, [], {})) == 6
    assert next_to_admit(waiting[:1], closing, [], {}) is None


def test_batch_is_never_next_while_an_interactive_request_waits() -> None:
    batch = waits(1, priority="batch")
    closing = [sequence(9, state=State.CLOSING, arrivals_before_end=1)]
    assert ordinal_of(next_to_admit([batch, waits(2)], [], [], {})) == 2
    assert next_to_admit([batch, waits(2)], closing, [], {}) is None
    assert ordinal_of(next_to_admit([batch], closing, [], {})) == 1


def test_the_tenant_with_fewest_running_goes_first_then_the_one_served_least() -> None:
    waiting = [waits(1, tenant=b"a"), waits(2, tenant=b"b"), waits(3, tenant=b"c")]
    running = [sequence(0, tenant=b"a")]
    assert ordinal_of(next_to_admit(waiting, [], running, {b"b": 9.0, b"c": 5.0})) == 3
    assert ordinal_of(next_to_admit(waiting, [], [], {b"a": 1.0})) == 2


def test_batch_gives_way_to_interactive_and_not_the_other_way_round() -> None:
    running = [sequence(1), sequence(2, priority="batch"), sequence(3, priority="batch")]
    assert ordinal_of(gives_way(waits(9), running)) == 3
    assert gives_way(waits(9, priority="batch"), running[:1]) is None


def test_a_tenant_gives_way_only_as_far_as_places_become_equal() -> None:
    crowd = [sequence(i, tenant=b"a") for i in (1, 2)]
    assert ordinal_of(gives_way(waits(9, tenant=b"b"), crowd)) == 2
    assert gives_way(waits(9, tenant=b"b"), crowd[:1]) is None
    assert gives_way(waits(9, tenant=b"b"), [*crowd, sequence(3, tenant=b"b")]) is None
    assert gives_way(waits(9, tenant=b"a"), crowd) is None


def test_who_gave_way_is_not_next_at_once() -> None:
    """Interactive places of a tenant do not count against its batch requests in one rule alone."""
    busy = [sequence(i, tenant=b"b") for i in (1, 2)]
    batch = [sequence(i, tenant=b"a", priority="batch") for i in (3, 4)]
    waiting = waits(9, tenant=b"b", priority="batch")
    loser = gives_way(waiting, [*busy, *batch])
    assert ordinal_of(loser) == 4
    back = waits(4, tenant=b"a", priority="batch")
    assert next_to_admit([waiting, back], [], [*busy, batch[0]], {}) is waiting


def test_pages_are_taken_from_batch_then_the_crowd_then_the_youngest() -> None:
    assert preemption_victim([sequence(4), sequence(7), sequence(5)]).ordinal == 7
    crowd = [sequence(1, tenant=b"a"), sequence(2, tenant=b"a"), sequence(9, tenant=b"b")]
    assert preemption_victim(crowd).ordinal == 2
    assert preemption_victim([*crowd, sequence(0, priority="batch")]).ordinal == 0


def test_pages_go_to_interactive_first_and_prefill_to_the_tenant_served_least() -> None:
    running = [
        sequence(1, priority="batch"),
        sequence(3, tenant=b"b"),
        sequence(2, tenant=b"a"),
    ]
    assert [s.ordinal for s in room_order(running)] == [2, 3, 1]
    assert [s.ordinal for s in prefill_order(running, {b"a": 4.0}, step=1)] == [3, 2, 1]


def test_a_short_prompt_passes_long_ones_but_in_every_fourth_step() -> None:
    long = sequence(1, prompt_tokens=3000)
    begun = sequence(2, prompt_tokens=3000, computed=2980)
    short = sequence(3, prompt_tokens=40)
    orders = [
        [s.ordinal for s in prefill_order([short, begun, long], {}, step=step)] for step in range(8)
    ]
    assert orders == [[1, 2, 3], *[[2, 3, 1]] * 3] * 2
    equals = [sequence(5), sequence(4)]
    assert [s.ordinal for s in prefill_order(equals, {}, step=1)] == [4, 5]
