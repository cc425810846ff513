"""When an experiment may be judged: once, as planned, or at any time. Owns the choice of the bound.

Never: decides when to look.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from scipy import special

from appliance.experiment.stats.contrast import Contrast
from appliance.experiment.stats.moments import Floats
from appliance.experiment.stats.sequential import bound, running_interval, running_p_value


class Looks(Enum):
    """What the intervals allow for."""

    ANY = "any"
    """Look whenever you like, stop when you like: intervals are about half as wide again."""

    PLANNED = "planned"
    """One look, after the planned time; whatever is seen before it decides nothing."""


def interval(
    contrast: Contrast, looks: Looks, alpha: float, units_planned: float
) -> tuple[Floats, Floats]:
    """The interval that is true in 1 - alpha of experiments that are looked at in this way."""
    if looks is Looks.ANY:
        return running_interval(contrast, alpha, units_planned)
    return contrast.interval(alpha)


def p_value(contrast: Contrast, looks: Looks, units_planned: float) -> Floats:
    """Below alpha where `interval` at alpha is without zero."""
    if looks is Looks.ANY:
        return running_p_value(contrast, units_planned)
    return contrast.p_value()


def reach(looks: Looks, alpha: float, present: float = 1.0) -> float:
    """Standard errors from the estimate to the end of its interval, when `present` of the users planned
    (1: as many as planned) are there."""
    if looks is Looks.ANY:
        return float(bound(np.asarray(present), alpha, 1.0))
    return float(special.ndtri(1 - alpha / 2))
