"""Decides what a step computes and which room is asked for: pure functions over sequences.

Never: changes a sequence, takes a page, or decides who goes first (`precedence.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.engine.chunk import Chunk
from appliance.engine.sequence import Sequence
from appliance.engine.step_cost import CostEstimate, shape_of

ADMIT_AHEAD_TOKENS = 64
"""Room taken for the reply at admission, so that a fresh sequence does not ask for pages at once."""

STEP_DECODE_TIMES = 3.0
"""Without `step_ms_max`, a step with prefill lasts this many times as long as its decodes alone:
two thirds of the time then go to prefill, and readers see no gap near five usual steps."""

STEP_S_ALONE = 0.25
"""How long a step of prefills alone lasts: a next turn that arrives meanwhile waits for its end, and
longer steps are hardly cheaper (a matrix is read once a step, about 10 ms of a small model's)."""

PREFILL_TOKENS_MIN = 16
"""A step prefills at least this much, however slow it is: a prompt beside replies always ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBudget:
    """What one step may take: tokens and time.

    `step_s_max`: while replies are being read; None: `STEP_DECODE_TIMES` times the decodes alone.
    `estimate` None: nothing was measured yet, so there is no bound of time.
    """

    tokens_max: int
    step_s_max: float | None
    estimate: CostEstimate | None


def plan_step(
    closing: Iterable[Sequence], running: Iterable[Sequence], budget: StepBudget
) -> list[Chunk]:
    """One step's work, for `running` in the order of `precedence.prefill_order`.

    Closing sequences come first (new requests wait for them), then all decodes, then prefill in the
    order given as far as the budget goes: a long prompt never stops the replies that are being read.
    """
    in_order = list(running)
    decodes = [sequence for sequence in in_order if sequence.pending_tokens == 1]
    prefills = [sequence for sequence in in_order if sequence.pending_tokens > 1]
    untimed = prefills if budget.estimate is None else []
    chunks: list[Chunk] = []
    left = budget.tokens_max
    for sequence, may_sample in (
        *((sequence, False) for sequence in closing),
        *((sequence, True) for sequence in (*decodes, *untimed)),
    ):
        count = min(sequence.pending_tokens, left)
        if count > 0:
            chunks.append(_chunk(sequence, count, may_sample=may_sample))
            left -= count
    if budget.estimate is not None:
        before_s = budget.estimate.seconds(shape_of(chunks))
        step_s = STEP_S_ALONE
        if decodes:
            step_s = budget.step_s_max or STEP_DECODE_TIMES * before_s
        chunks += _timed_prefill(prefills, left, step_s - before_s, budget.estimate)
    return chunks


def _timed_prefill(
    prefills: list[Sequence], tokens_left: int, seconds_left: float, estimate: CostEstimate
) -> list[Chunk]:
    """Prefill that fits into what is left of a step's time, and not under `PREFILL_TOKENS_MIN`.

    At most twice what a measured step prefilled: beyond that the estimate is a guess.
    """
    tokens_left = min(tokens_left, max(PREFILL_TOKENS_MIN, 2 * estimate.prefill_tokens_measured))
    chunks: list[Chunk] = []
    for sequence in prefills:
        least = min(sequence.pending_tokens, PREFILL_TOKENS_MIN, tokens_left)
        fitting = estimate.prefill_tokens(
            seconds_left, start=sequence.computed, most=min(sequence.pending_tokens, tokens_left)
        )
        count = fitting if chunks else max(fitting, least)
        if count == 0 or count < least:
            break
        chunks.append(_chunk(sequence, count, may_sample=True))
        tokens_left -= count
        seconds_left -= estimate.prefill_seconds(count, start=sequence.computed)
    return chunks


def _chunk(sequence: Sequence, count: int, *, may_sample: bool) -> Chunk:
    samples = may_sample and count == sequence.pending_tokens
    return Chunk(sequence=sequence, count=count, samples=samples)


def tokens_to_reserve(sequence: Sequence) -> int:
    """Positions to ask for at admission: never more than the finished sequence can have."""
    left = sequence.request.new_tokens_max - sequence.new_tokens
    return sequence.room_needed - 1 + min(left, 1 + ADMIT_AHEAD_TOKENS)


def is_worth_resuming(
    sequence: Sequence, *, running: int, pages_available: int, page_size: int
) -> bool:
    """Whether a preempted sequence would keep its pages for a while.

    It must leave one page for each running sequence; else the next of them that needs a page takes
    it back. (Counting its own cached pages as available is right: what it finds it need not take.)
    """
    pages_needed = -(-tokens_to_reserve(sequence) // page_size)
    return running == 0 or pages_available >= pages_needed + running
