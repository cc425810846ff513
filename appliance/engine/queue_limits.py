"""Bounds of the waiting queue, and how long a refused caller should stay away. Never: holds the queue."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.engine.sequence import Sequence
from appliance.errors import Overloaded
from appliance.wire.frames import Generate

RETRY_AFTER_S_MIN = 1
RETRY_AFTER_S_MAX = 120
ADMISSIONS_KEPT = 32


class AdmissionPace:
    """How fast the queue moves: measured while there is one, over its last admissions."""

    def __init__(self) -> None:
        self._times: deque[float] = deque([0.0], maxlen=ADMISSIONS_KEPT + 1)

    def queue_formed(self, now: float) -> None:
        """A request waits where none did: what was before says nothing of this queue."""
        self._times.clear()
        self._times.append(now)

    def admitted(self, now: float) -> None:
        """A waiting request was admitted for the first time."""
        self._times.append(now)

    def seconds_each(self, now: float) -> float:
        """Seconds for each admission; where there was none yet, as if one came now."""
        return max(now - self._times[0], 0.0) / max(len(self._times) - 1, 1)


def retry_after_s(ahead: int, seconds_each: float) -> int:
    """Whole seconds until as many requests as wait now will have been admitted, within bounds."""
    return math.ceil(min(max(ahead * seconds_each, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class FullQueue:
    """Why a request cannot be queued, and whose place it may take instead, if anyone's."""

    refusal: Overloaded
    loser: Sequence | None


def full_queue(
    waiting: Iterable[Sequence],
    request: Generate,
    *,
    waiting_max: int,
    waiting_per_tenant_max: int,
    seconds_each: float,
) -> FullQueue | None:
    """Whether the queue, or its tenant's part of it, is full for a request; None: it may wait.

    An interactive request takes the place of the youngest batch one that has not begun. A tenant's
    own requests are admitted at its share of the pace: others are admitted in between.
    """
    queued = list(waiting)
    own = [sequence for sequence in queued if sequence.tenant == request.tenant]
    if len(own) >= waiting_per_tenant_max:
        tenants = len({sequence.tenant for sequence in queued})
        crowd, seconds_each = own, seconds_each * tenants
        message = f"{len(own)} of your requests are waiting already"
    elif len(queued) >= waiting_max:
        crowd = queued
        message = f"{len(queued)} requests are waiting already"
    else:
        return None
    refusal = Overloaded(message, retry_after_s=retry_after_s(len(crowd), seconds_each))
    loser = None
    if request.priority == "interactive":
        fresh = (sequence for sequence in crowd if sequence.is_batch and not sequence.announced)
        loser = max(fresh, key=lambda sequence: sequence.ordinal, default=None)
    return FullQueue(refusal=refusal, loser=loser)
