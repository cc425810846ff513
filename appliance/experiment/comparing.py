"""One metric's estimates in one arm and the control, out of the figures of their users. Pure.

Owns which estimate a metric gets, and on which scale the two may be compared. Never: judges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from appliance.experiment.findings import Plan
from appliance.experiment.metric import Metric
from appliance.experiment.samples import Measured, Observations, Sums, Users
from appliance.experiment.stats.contrast import Contrast, absolute, logarithmic
from appliance.experiment.stats.estimates import Estimate, estimates, raw_estimate, variance_kept
from appliance.experiment.stats.moments import Moments
from appliance.experiment.stats.quantile import quantile_estimate

USERS_MIN = 100
"""Users an arm below which nothing is judged: all bounds here rest on the central limit theorem."""

RATIO_ERRORS_MIN = 3.0
"""Standard errors that a value is above zero for a change to be a share of it. A sum of what is never
below zero is as soon as some ten users have any; what has either sign may never be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A metric's estimates in one arm and the control; `lacks` says why there are none.

    `counts` are their users, `shares` theirs of all users, `planned` the users of both that were planned.
    """

    metric: Metric
    arm: str
    decides: bool
    lacks: str | None = None
    shown: tuple[float, float] | None = None
    control: Estimate | None = None
    treatment: Estimate | None = None
    variance_kept: float | None = None
    counts: tuple[int, int]
    shares: tuple[float, float]
    planned: float

    @property
    def is_early(self) -> bool:
        """Whether there are too few users for any bound."""
        return min(self.counts) < USERS_MIN

    @property
    def has_ratio(self) -> bool:
        """Whether both values are clearly above zero, so that a change can be told in per cent."""
        assert self.control is not None
        assert self.treatment is not None
        return is_base_of_shares(self.control) and is_base_of_shares(self.treatment)

    @property
    def judged_by(self) -> Contrast | None:
        """The contrast that decides: of logarithms, or of the values where there is no ratio."""
        if self.control is None or self.treatment is None:
            return None
        found = (logarithmic if self.has_ratio else absolute)(self.control, self.treatment)
        # All users alike in both arms: nothing to judge by, unless the arms differ.
        return found if found.variance > 0 or found.effect != 0 else None


def is_base_of_shares(estimate: Estimate) -> bool:
    """Whether a value is so far above zero that a change can be told as a share of it."""
    error = np.sqrt(estimate.variance / estimate.count)
    return bool(estimate.value > RATIO_ERRORS_MIN * error)


def compared(measured: Measured, place: int, plan: Plan) -> list[Compared]:
    """Every metric that was measured, in the arm at `place` beside the control."""
    return [_compared(source, measured.users, place, plan) for source in measured.sources]


def _compared(source: Sums | Observations, users: Users, place: int, plan: Plan) -> Compared:
    shares = users.shares[0], users.shares[place]
    chosen = users.arm == 0, users.arm == place
    counts = int(chosen[0].sum()), int(chosen[1].sum())
    base = Compared(
        metric=source.metric,
        arm=users.arms[place],
        decides=source.metric.name in plan.deciding,
        counts=counts,
        shares=shares,
        planned=plan.users * sum(shares),
    )
    if min(counts) < 2:
        empty = [users.arms[at] for at, count in zip((0, place), counts, strict=True) if count < 2]
        return replace(base, lacks=f"no users in {' and '.join(empty)} yet")
    if source.is_empty:
        return replace(base, lacks="nothing was measured yet")
    if isinstance(source, Observations):
        return _of_observations(base, source, users, chosen)
    return _of_sums(base, source, users, chosen)


Chosen: TypeAlias = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""Which users of the control are compared, and which of the arm."""


def _of_sums(base: Compared, source: Sums, users: Users, chosen: Chosen) -> Compared:
    rows = source.rows
    past = rows[:, 3:]
    if past.size and not all(past[arm].any() for arm in chosen):
        rows = rows[:, :2]
    arms = [Moments.of(rows[arm]) for arm in chosen]
    names = users.arms[0], base.arm
    lacking = [name for name, arm in zip(names, arms, strict=True) if not arm.mean[1]]
    if lacking:
        return replace(base, lacks=f"nothing was measured in {' and '.join(lacking)} yet")
    control, treatment = estimates(*arms)
    kept = variance_kept(arms[0]) if past.size and raw_estimate(arms[0]).variance > 0 else None
    return replace(
        base,
        shown=(float(raw_estimate(arms[0]).value), float(raw_estimate(arms[1]).value)),
        control=control,
        treatment=treatment,
        variance_kept=None if kept is None or rows.shape[1] == 2 else float(kept),
    )


def _of_observations(
    base: Compared, source: Observations, users: Users, chosen: Chosen
) -> Compared:
    share = source.metric.quantile
    assert share is not None
    found = []
    for name, arm in zip((users.arms[0], base.arm), chosen, strict=True):
        rows = arm[source.user] & (source.count > 0)
        if not rows.any():
            return replace(base, lacks=f"nothing was measured in {name} yet")
        estimate = quantile_estimate(
            source.user[rows], source.value[rows], source.count[rows], share
        )
        if estimate is None:
            return replace(base, lacks=f"too few users in {name} for p{100 * share:g}")
        found.append(estimate)
    control, treatment = found
    return replace(
        base,
        shown=(float(control.value), float(treatment.value)),
        control=control,
        treatment=treatment,
    )
