"""Intervals and p-values that stay true however often one looks, and stops where one likes.

Never: a bound for one planned look; that is `Contrast.interval`.
"""

from __future__ import annotations

import numpy as np

from appliance.experiment.stats.contrast import Contrast
from appliance.experiment.stats.moments import Floats

TUNED_FOR = 0.05
"""The level at which the bound is narrowest after the planned number of units."""


def running_interval(
    contrast: Contrast, alpha: float, units_planned: float
) -> tuple[Floats, Floats]:
    """Holds the truth at every look at once, in 1 - alpha of experiments.

    The asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas (Annals of
    Statistics 2024, arXiv:2103.06476, theorem 2.2): the mixture sequential probability ratio test of
    Robbins (1970) and Johari, Koomen, Pekelis & Walsh (Operations Research 2022) with a normal mixture,
    turned round. Its approximation is the central limit theorem's, so arms below a hundred users are not
    judged. `units_planned` is fixed before the experiment: it decides where the bound is narrow, not
    whether it holds.
    """
    half = np.sqrt(contrast.variance) * bound(contrast.units, alpha, units_planned)
    return contrast.effect - half, contrast.effect + half


def running_p_value(contrast: Contrast, units_planned: float) -> Floats:
    """At most alpha where `running_interval(alpha)` is without zero: one over the mixture's ratio."""
    weight = _weight(contrast.units, units_planned)
    log_ratio = contrast.errors_away**2 * weight / (2 * (1 + weight)) - np.log1p(weight) / 2
    return np.exp(np.minimum(0.0, -log_ratio))


def bound(units: Floats, alpha: float, units_planned: float) -> Floats:
    """How many standard errors the interval reaches to each side (1.96 for a single look at 5 %)."""
    weight = _weight(units, units_planned)
    reach: Floats = np.sqrt(2 * (1 + weight) / weight * (np.log1p(weight) / 2 - np.log(alpha)))
    return reach


def _weight(units: Floats, units_planned: float) -> Floats:
    """The mixture's variance over the estimate's: rises with the units, and is best at those planned.

    -2 ln a + ln(-2 ln a + 1) is the closed form of Waudby-Smith et al., appendix B.2.
    """
    reach = -2 * np.log(TUNED_FOR)
    return np.asarray((reach + np.log1p(reach)) * units / units_planned, dtype=np.float64)
