"""Decides what runs next: pure functions over sequences. Never: changes a sequence or takes a page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.engine.sequence import Sequence

ADMIT_AHEAD_TOKENS = 64
"""Room taken for the reply at admission, so that a fresh sequence does not ask for pages at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The next `count` tokens of a sequence, to be computed in one step.

    `samples`: the chunk ends at the sequence's last token, so the next one is to be chosen.
    """

    sequence: Sequence
    count: int
    samples: bool


def plan_step(
    closing: Iterable[Sequence], running: Iterable[Sequence], step_tokens_max: int
) -> list[Chunk]:
    """One step's work, at most `step_tokens_max` tokens.

    Closing sequences come first (new requests wait for them), then all decodes, then prefill of the
    oldest as far as the budget goes: a long prompt never stops the replies that are being read.
    """
    oldest_first = sorted(running, key=lambda sequence: sequence.ordinal)
    decodes = [sequence for sequence in oldest_first if sequence.pending_tokens == 1]
    prefills = [sequence for sequence in oldest_first if sequence.pending_tokens > 1]
    chunks: list[Chunk] = []
    budget = step_tokens_max
    for sequence, may_sample in (
        *((sequence, False) for sequence in closing),
        *((sequence, True) for sequence in (*decodes, *prefills)),
    ):
        count = min(sequence.pending_tokens, budget)
        if count > 0:
            samples = may_sample and count == sequence.pending_tokens
            chunks.append(Chunk(sequence=sequence, count=count, samples=samples))
            budget -= count
    return chunks


def admission_order(waiting: Iterable[Sequence], closing: Iterable[Sequence]) -> list[Sequence]:
    """Who may be admitted now, oldest first.

    A request that arrived after a reply had ended is kept back until that reply is closed, one step
    later: it may be the next turn of that conversation, and then finds all of it.
    """
    youngest = min(
        (s.arrivals_before_end for s in closing if s.arrivals_before_end is not None), default=None
    )
    return sorted(
        (s for s in waiting if youngest is None or s.ordinal <= youngest),
        key=lambda sequence: sequence.ordinal,
    )


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


def preemption_victim(running: Iterable[Sequence]) -> Sequence:
    """The youngest: it has waited least, and the oldest can always go on."""
    return max(running, key=lambda sequence: sequence.ordinal)
