"""The difference between two arms, its uncertainty, and the interval for a look that was planned.

Never: chooses between scales or looks (`analysis.py` does), or corrects for many metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from appliance.experiment.stats.estimates import Estimate
from appliance.experiment.stats.moments import Floats

ROUNDING = 1e-12
"""Of the values: a sum of ten million float64 terms is off by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An effect and its estimate's variance; `dof`: Welch's degrees of freedom, `units`: all users."""

    effect: Floats
    variance: Floats
    dof: Floats
    units: Floats

    def interval(self, alpha: float) -> tuple[Floats, Floats]:
        """Holds the truth in 1 - alpha of experiments that are looked at once, as planned (Welch's t)."""
        half = np.sqrt(self.variance) * special.stdtrit(self.dof, 1 - alpha / 2)
        return self.effect - half, self.effect + half

    def p_value(self) -> Floats:
        """Two-sided, for one planned look; below alpha where `interval(alpha)` is without zero."""
        found: Floats = 2 * special.stdtr(self.dof, -self.errors_away)
        return found

    @property
    def errors_away(self) -> Floats:
        """The effect in standard errors: infinite where all users of each arm are alike and the arms are
        not, as when every reply of one fails."""
        away = np.full_like(self.variance, np.inf)
        return np.divide(
            np.abs(self.effect), np.sqrt(self.variance), out=away, where=self.variance > 0
        )


def absolute(control: Estimate, treatment: Estimate, *, times: float = 1.0) -> Contrast:
    """Treatment less control, or less some times the control, in the metric's unit."""
    before = times * control.value
    return _contrast(
        _beyond_rounding(treatment.value - before, np.abs(treatment.value) + np.abs(before)),
        (times**2 * control.variance, control.count),
        (treatment.variance, treatment.count),
    )


def logarithmic(control: Estimate, treatment: Estimate) -> Contrast:
    """The logarithm of treatment over control, by the delta method; both values are above zero.

    The scale of all relative effects: exp(effect) - 1 is the change, and an effect that multiplies what
    users do leaves the variance as it is.
    """
    return _contrast(
        _beyond_rounding(np.log(treatment.value / control.value), np.ones_like(control.value)),
        (control.variance / control.value**2, control.count),
        (treatment.variance / treatment.value**2, treatment.count),
    )


def _beyond_rounding(effect: Floats, scale: Floats) -> Floats:
    """An effect, or none where sums alone were rounded differently."""
    found: Floats = np.where(np.abs(effect) > ROUNDING * scale, effect, 0.0)
    return found


def _contrast(
    effect: Floats, control: tuple[Floats, Floats], treatment: tuple[Floats, Floats]
) -> Contrast:
    """From the two variances of one user, and the numbers of users."""
    (variance_control, count_control), (variance_treatment, count_treatment) = control, treatment
    of_control = variance_control / count_control
    of_treatment = variance_treatment / count_treatment
    variance = of_control + of_treatment
    spread = of_control**2 / (count_control - 1) + of_treatment**2 / (count_treatment - 1)
    # Two arms without any spread: the degrees of freedom are of no account.
    dof = np.divide(variance**2, spread, out=np.ones_like(variance), where=spread > 0)
    return Contrast(
        effect=effect, variance=variance, dof=dof, units=count_control + count_treatment
    )
