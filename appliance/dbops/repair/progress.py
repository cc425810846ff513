"""How far a stage is: bytes done, the rate, the time left. Arithmetic only; reads no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.dbops.plan.step import Step
from appliance.dbops.plan.vacuum import SECONDS_EACH

SMOOTHING = 0.2
"""Weight of the newest second in the rate: a checkpoint's pause should not double the time left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a stage stands; `running` are the objects being worked on, with their share done."""

    stage: int
    steps_done: int
    steps_total: int
    bytes_done: int
    bytes_total: int
    rate_bytes_per_s: float
    seconds_left: float
    running: tuple[tuple[str, float], ...]


class ProgressMeter:
    """Counts one stage's steps; steps are known by key."""

    def __init__(self, steps: Iterable[Step], *, rate_bytes_per_s: float, now_s: float) -> None:
        self._steps = {step.key: step for step in steps}
        self._stage = min((step.stage for step in self._steps.values()), default=1)
        self._ended: set[str] = set()
        self._shares: dict[str, float] = {}
        self._rate = rate_bytes_per_s
        self._seen_s = now_s
        self._seen_bytes = 0.0

    def started(self, key: str) -> None:
        """A step is worked on."""
        self._shares[key] = 0.0

    def advanced(self, key: str, pages_done: int, pages_total: int) -> None:
        """How much of a running step is done, as the server tells it."""
        if key in self._shares and pages_total > 0:
            self._shares[key] = min(1.0, max(self._shares[key], pages_done / pages_total))

    def ended(self, key: str) -> None:
        """A step has ended, however it did: nothing more of it is to come."""
        self._shares.pop(key, None)
        self._ended.add(key)

    def at(self, now_s: float) -> Progress:
        """Where it stands, with the rate measured since the last call."""
        done = sum(self._steps[key].bytes for key in self._ended if key in self._steps)
        moving = done + sum(
            self._steps[key].bytes * share
            for key, share in self._shares.items()
            if key in self._steps
        )
        elapsed = now_s - self._seen_s
        if elapsed > 0 and moving > self._seen_bytes:
            newest = (moving - self._seen_bytes) / elapsed
            self._rate += SMOOTHING * (newest - self._rate)
            self._seen_bytes, self._seen_s = moving, now_s
        total = sum(step.bytes for step in self._steps.values())
        left = len(self._steps) - len(self._ended)
        return Progress(
            stage=self._stage,
            steps_done=len(self._ended),
            steps_total=len(self._steps),
            bytes_done=int(moving),
            bytes_total=total,
            rate_bytes_per_s=self._rate,
            seconds_left=max(0.0, total - moving) / self._rate + left * SECONDS_EACH,
            running=tuple(
                (self._steps[key].object, share)
                for key, share in self._shares.items()
                if key in self._steps
            ),
        )
