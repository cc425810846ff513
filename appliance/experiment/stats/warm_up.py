"""How long an arm's cache was cold because the arm is new. Decides what to leave out, and never hides it.

A new version's public text is in no cache, so its first requests compute what later ones find. What is
left out is the same time for all arms: else one arm's quiet morning would meet another's busy evening.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from appliance.experiment.stats.moments import Floats

NEARLY = 0.95
"""An arm is warm once its share of cached tokens is this much of what it is later."""

LEFT_OUT_MAX = 0.25
"""Never more than this share of the run: what is cold for longer is what the version costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Slices of time left out, from the start of the experiment; shares of cached tokens by arm.

    `still_cold`: an arm was not warm when the most that may be left out was over.
    """

    slices: int
    cold: tuple[float, ...]
    warm: tuple[float, ...]
    still_cold: bool


def warm_up(cached: Floats, asked: Floats) -> WarmUp:
    """From the tokens asked for and those of them found in the cache, both (arms, slices of time).

    The later half of the run says what an arm's share is when it is warm; slices in which nobody asked
    say nothing and count with the next.
    """
    slices = asked.shape[1]
    later = slice(slices // 2, None)
    warm = _share(cached[:, later].sum(axis=1), asked[:, later].sum(axis=1))
    share = _share(cached, asked)
    is_warm = (asked > 0) & (share >= NEARLY * warm[:, None])
    first = np.where(is_warm.any(axis=1), is_warm.argmax(axis=1), slices)
    # Of an arm in which nobody ever asked there is nothing to leave out.
    first[~asked.any(axis=1)] = 0
    most = int(slices * LEFT_OUT_MAX)
    left_out = min(int(first.max(initial=0)), most)
    early = slice(0, left_out)
    cold = _share(cached[:, early].sum(axis=1), asked[:, early].sum(axis=1))
    return WarmUp(
        slices=left_out,
        cold=tuple(cold.tolist()),
        warm=tuple(warm.tolist()),
        still_cold=bool(first.max(initial=0) > most),
    )


def _share(cached: Floats, asked: Floats) -> Floats:
    """Cached over asked, 0 where nobody asked."""
    return np.divide(cached, asked, out=np.zeros_like(asked), where=asked > 0)
