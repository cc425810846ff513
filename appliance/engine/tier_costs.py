"""What restoring a page costs and what computing it would, as measured. Never: moves anything."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

Tier: TypeAlias = Literal["host", "disk"]

WEIGHT = 0.1
"""Of a new measurement in the exponential means: the last twenty or so count."""
PREFILL_TOKENS_MIN = 32
"""Steps of fewer tokens are mostly decodes, whose tokens cost more than a prefill's."""
FIXED_S = 0.001
"""What a restoration takes however few its pages are: handing it to a thread, and waiting for it."""
PROBE_EVERY = 32
"""Where restoring does not pay, every so many admissions may restore all the same: to be measured."""


class TierCosts:
    """Exponential means of seconds, and the decision that they lead to."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._token_s: float | None = None
        self._page_s: dict[Tier, float | None] = {"host": None, "disk": None}
        self._refusals = 0

    @property
    def prefill_token_s(self) -> float:
        """Seconds to compute a token of a prefill; 0 while unknown."""
        return self._token_s or 0.0

    def page_s(self, tier: Tier) -> float:
        """Seconds to restore a page; 0 while unknown."""
        return self._page_s[tier] or 0.0

    def took_step(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens."""
        if tokens >= PREFILL_TOKENS_MIN and seconds > 0:
            self._token_s = _mean(self._token_s, seconds / tokens)

    def took_restore(self, tier: Tier, pages: int, seconds: float) -> None:
        """So many pages came back from a tier."""
        self._page_s[tier] = _mean(self._page_s[tier], seconds / pages)

    def onload_tokens_min(self, tier: Tier) -> int | None:
        """From how many tokens on restoring from a tier is faster than computing; None for never.

        One page while either cost is unknown: a copy is nearly always faster, and has to be tried to
        be measured.
        """
        page_s, token_s = self._page_s[tier], self._token_s
        if page_s is None or token_s is None:
            return self._page_size
        gain_s = self._page_size * token_s - page_s
        if gain_s > 0:
            return math.ceil(FIXED_S / gain_s) * self._page_size
        self._refusals += 1
        return self._page_size if self._refusals % PROBE_EVERY == 0 else None


def _mean(before: float | None, new: float) -> float:
    return new if before is None else before + WEIGHT * (new - before)
