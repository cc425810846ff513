"""Decides who goes first, and who gives way: pure functions over sequences. Never: changes one.

Interactive requests go before batch ones. Among tenants, places are shared by how many each has
running, then by the work each had lately (`shares.py`); within a tenant the oldest goes first, but in
most steps a short prompt is computed before a long one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from appliance.engine.sequence import Sequence

OLDEST_EVERY = 4
"""In one of so many steps the oldest prompt is prefilled first: it has a quarter of prefill at least."""


def next_to_admit(
    waiting: Iterable[Sequence],
    closing: Iterable[Sequence],
    running: Iterable[Sequence],
    served: Mapping[bytes, float],
) -> Sequence | None:
    """Who is to be admitted next; None when nobody may be.

    A request that arrived after a reply had ended is kept back until that reply is closed, one step
    later: it may be the next turn of that conversation, and then finds all of it. A batch request is
    never next while an interactive one waits, even one that is kept back.
    """
    waiting = list(waiting)
    youngest = min(
        (s.arrivals_before_end for s in closing if s.arrivals_before_end is not None), default=None
    )
    only_batch = all(sequence.is_batch for sequence in waiting)
    # Counted as `gives_way` counts, or the two could undo each other without end.
    places = Counter(s.tenant for s in running if s.is_batch == only_batch)
    ready = (
        sequence
        for sequence in waiting
        if sequence.is_batch == only_batch and (youngest is None or sequence.ordinal <= youngest)
    )
    return min(
        ready,
        key=lambda sequence: (
            places[sequence.tenant],
            served.get(sequence.tenant, 0.0),
            sequence.ordinal,
        ),
        default=None,
    )


def gives_way(waiting: Sequence, running: Iterable[Sequence]) -> Sequence | None:
    """Who is to be preempted so that a waiting sequence can be admitted; None: it has to wait.

    A batch request gives way to every interactive one. Between equals a tenant gives way only to one
    that still has fewer running afterwards or as many, so that two never take turns preempting.
    """
    running = list(running)
    if not waiting.is_batch:
        batch = [sequence for sequence in running if sequence.is_batch]
        if batch:
            return preemption_victim(batch)
    equals = [sequence for sequence in running if sequence.is_batch == waiting.is_batch]
    if not equals:
        return None
    victim = preemption_victim(equals)
    places = Counter(sequence.tenant for sequence in equals)
    return victim if places[victim.tenant] > places[waiting.tenant] + 1 else None


def preemption_victim(running: Iterable[Sequence]) -> Sequence:
    """Who loses its pages first: batch, then the tenant with most running, then the youngest.

    The oldest interactive sequence is never chosen beside others, so that one can always go on.
    """
    running = list(running)
    places = Counter((sequence.is_batch, sequence.tenant) for sequence in running)
    return max(
        running,
        key=lambda sequence: (
            sequence.is_batch,
            places[sequence.is_batch, sequence.tenant],
            sequence.ordinal,
        ),
    )


def room_order(running: Iterable[Sequence]) -> list[Sequence]:
    """Who gets pages first: interactive before batch, then the oldest."""
    return sorted(running, key=lambda sequence: (sequence.is_batch, sequence.ordinal))


def prefill_order(
    running: Iterable[Sequence], served: Mapping[bytes, float], *, step: int
) -> list[Sequence]:
    """Who is prefilled first in step number `step`: interactive before batch, the tenant with least
    work, then the shortest, and every `OLDEST_EVERY` steps the oldest.

    A next turn of a few new tokens would else wait for every long prompt that came before it, and a long
    one for ever while short ones come.
    """
    oldest_first = step % OLDEST_EVERY == 0
    return sorted(
        running,
        key=lambda sequence: (
            sequence.is_batch,
            served.get(sequence.tenant, 0.0),
            0 if oldest_first else sequence.pending_tokens,
            sequence.ordinal,
        ),
    )
