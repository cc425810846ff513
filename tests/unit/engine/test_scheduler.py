"""What the scheduler decides, case by case."""

from __future__ import annotations

from appliance.engine.chunk import Chunk
from appliance.engine.scheduler import (
    ADMIT_AHEAD_TOKENS,
    PREFILL_TOKENS_MIN,
    STEP_DECODE_TIMES,
    STEP_S_ALONE,
    StepBudget,
    is_worth_resuming,
    plan_step,
    tokens_to_reserve,
)
from appliance.engine.sequence import Sequence, State
from appliance.engine.step_cost import CostEstimate, shape_of
from tests.unit.engine.sequences import sequence


def tokens_only(tokens_max: int) -> StepBudget:
    return StepBudget(tokens_max=tokens_max, step_s_max=None, estimate=None)


def shape(chunks: list[Chunk]) -> list[tuple[int, int, bool]]:
    return [(chunk.sequence.ordinal, chunk.count, chunk.samples) for chunk in chunks]


def test_decodes_come_before_prefill_and_the_first_prompt_goes_first() -> None:
    long = sequence(1, prompt_tokens=100)
    short = sequence(2, prompt_tokens=8)
    decode = sequence(3, prompt_tokens=3, new_tokens=1, computed=3)
    chunks = plan_step([], [long, short, decode], tokens_only(64))
    assert shape(chunks) == [(3, 1, True), (1, 63, False)]


def test_what_the_first_prompt_leaves_of_the_budget_goes_to_the_next() -> None:
    first = sequence(1, prompt_tokens=20, computed=10)
    second = sequence(2, prompt_tokens=30)
    third = sequence(3, prompt_tokens=30)
    chunks = plan_step([], [first, second, third], tokens_only(32))
    assert shape(chunks) == [(1, 10, True), (2, 22, False)]


def test_closing_sequences_come_first_and_never_sample() -> None:
    closing = sequence(1, prompt_tokens=6, computed=3, state=State.CLOSING)
    decode = sequence(2, prompt_tokens=4, computed=3)
    chunks = plan_step([closing], [decode], tokens_only(8))
    assert shape(chunks) == [(1, 3, False), (2, 1, True)]


def test_the_budget_is_never_exceeded_even_by_closing_sequences() -> None:
    closing = [sequence(i, prompt_tokens=9, state=State.CLOSING) for i in range(3)]
    chunks = plan_step(closing, [sequence(9)], tokens_only(16))
    assert sum(chunk.count for chunk in chunks) == 16
    assert plan_step([], [], tokens_only(16)) == []


def test_admission_reserves_some_room_ahead_but_never_more_than_the_reply_can_use() -> None:
    whole = 3 + 10 + 2
    assert tokens_to_reserve(sequence(1, new_tokens_max=10)) == whole
    assert tokens_to_reserve(sequence(1, new_tokens=4, new_tokens_max=10)) == whole
    assert tokens_to_reserve(sequence(1, new_tokens_max=5000)) == 3 + 2 + 1 + ADMIT_AHEAD_TOKENS
    assert tokens_to_reserve(sequence(1, new_tokens_max=1)) == sequence(1).room_needed


def test_a_preempted_sequence_resumes_when_one_page_is_left_for_each_that_runs() -> None:
    waiting = sequence(5, prompt_tokens=17, new_tokens_max=10, closing=5)  # 32 tokens, 2 pages
    for available, expected in ((4, False), (5, True)):
        assert (
            is_worth_resuming(waiting, running=3, pages_available=available, page_size=16)
            is expected
        )
    assert is_worth_resuming(waiting, running=0, pages_available=0, page_size=16)


def test_a_running_sequence_always_has_room_to_close() -> None:
    running = sequence(1, prompt_tokens=10, new_tokens=5, computed=14, closing=3)
    assert running.room_needed == 10 + 5 + 1 + 3
    closing = sequence(1, prompt_tokens=19, computed=15, closing=3, state=State.CLOSING)
    assert closing.room_needed == 19


def known(prefill_tokens_measured: int = 512) -> CostEstimate:
    """A step costs 20 ms, 4 ms a decode, 2 ms a token of prefill."""
    return CostEstimate(
        costs=(0.020, 0.004, 0.0, 0.002, 0.0), prefill_tokens_measured=prefill_tokens_measured
    )


def decoding(ordinal: int) -> Sequence:
    return sequence(ordinal, prompt_tokens=3, new_tokens=1, computed=3)


def timed(estimate: CostEstimate, step_s_max: float | None = None) -> StepBudget:
    return StepBudget(tokens_max=512, step_s_max=step_s_max, estimate=estimate)


def test_prefill_beside_decodes_takes_what_fits_into_the_steps_time() -> None:
    running = [decoding(1), sequence(2, prompt_tokens=900)]
    chunks = plan_step([], running, timed(known()))
    seconds = known().seconds(shape_of(chunks))
    decodes = known().seconds(shape_of(chunks[:1]))
    assert STEP_DECODE_TIMES * decodes - 0.002 < seconds <= STEP_DECODE_TIMES * decodes
    assert shape(plan_step([], running, timed(known(), 0.1))) == [(1, 1, True), (2, 38, False)]


def test_prefill_never_stops_and_never_dribbles() -> None:
    running = [decoding(1), sequence(2, prompt_tokens=20), sequence(3, prompt_tokens=900)]
    assert shape(plan_step([], running, timed(known(), 0.001)))[1:] == [
        (2, PREFILL_TOKENS_MIN, False)
    ]
    assert shape(plan_step([], running, timed(known(), 0.080)))[1:] == [(2, 20, True)]
    assert shape(plan_step([], running, timed(known(), 0.100)))[1:] == [
        (2, 20, True),
        (3, 18, False),
    ]


def test_a_chunk_at_most_doubles_what_was_measured() -> None:
    running = [decoding(1), sequence(2, prompt_tokens=900)]
    assert shape(plan_step([], running, timed(known(40), 9.0)))[1:] == [(2, 80, False)]
    assert shape(plan_step([], running, timed(known(1), 9.0)))[1:] == [
        (2, PREFILL_TOKENS_MIN, False)
    ]


def test_prefills_alone_end_in_time_for_who_comes_next() -> None:
    """Whatever is allowed while replies are read: here none is."""
    running = [sequence(2, prompt_tokens=900)]
    chunks = plan_step([], running, timed(known(), 0.01))
    seconds = known().seconds(shape_of(chunks))
    assert STEP_S_ALONE - 0.002 < seconds <= STEP_S_ALONE
    assert shape(plan_step([], running, timed(known(1)))) == [(2, PREFILL_TOKENS_MIN, False)]


def test_before_anything_is_measured_the_whole_budget_of_tokens_is_used() -> None:
    budget = StepBudget(tokens_max=512, step_s_max=0.01, estimate=None)
    assert shape(plan_step([], [sequence(2, prompt_tokens=900)], budget)) == [(2, 512, False)]
