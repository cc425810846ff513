"""How long the last steps took, for statistics. Never: decides anything by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from statistics import median

STEPS_KEPT = 512


class StepTimes:
    """A window of the last steps; those with decodes, which readers notice, are told apart."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=STEPS_KEPT)
        self._decoding: deque[float] = deque(maxlen=STEPS_KEPT)

    def note(self, seconds: float, *, decodes: int) -> None:
        """A step took that long, from admission to the last event."""
        self._all.append(seconds)
        if decodes:
            self._decoding.append(seconds)

    @property
    def gauges(self) -> dict[str, float]:
        """Median and maximum in milliseconds, of all steps and of those with decodes; 0 for none."""
        return {
            "step_ms_median": _ms(median, self._all),
            "step_ms_max": _ms(max, self._all),
            "decode_step_ms_median": _ms(median, self._decoding),
            "decode_step_ms_max": _ms(max, self._decoding),
        }


def _ms(summary: Callable[[Iterable[float]], float], seconds: Iterable[float]) -> float:
    values = list(seconds)
    return 1000 * summary(values) if values else 0.0
