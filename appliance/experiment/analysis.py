"""From what was measured to what may be said: each metric of each arm against the control. Pure.

Owns which estimate, scale, bound and level a metric gets. Never: reads the ledger, or pauses an arm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from appliance.experiment.findings import (
    Analysis,
    ArmResult,
    Effect,
    Finding,
    Plan,
    Reading,
    Verdict,
)
from appliance.experiment.metric import Direction, Metric
from appliance.experiment.samples import Measured, Observations, Sums, Users
from appliance.experiment.stats.contrast import Contrast, absolute, logarithmic
from appliance.experiment.stats.estimates import Estimate, estimates, raw_estimate, variance_kept
from appliance.experiment.stats.guardrail import Guard, guard
from appliance.experiment.stats.looks import Looks, interval, p_value
from appliance.experiment.stats.moments import Floats, Moments
from appliance.experiment.stats.multiplicity import discovery_level, family_level
from appliance.experiment.stats.planner import Planner
from appliance.experiment.stats.quantile import quantile_estimate
from appliance.experiment.stats.sample_ratio import SampleRatio, sample_ratio

USERS_MIN = 100
"""Users an arm below which nothing is judged: all bounds here rest on the central limit theorem."""

POWER_ERRORS = 0.8416
"""Standard errors above which four of five estimates lie when their mean is above."""


def analyse(measured: Measured, plan: Plan) -> Analysis:
    """Judge everything that was measured, at this look.

    A metric without data, an arm without users and too few of them give findings that say so.
    """
    users = measured.users
    ratio = sample_ratio(users.spans)
    looks = Looks.ANY if measured.hours < plan.hours else plan.looks
    compared = [
        _compared(source, users, place, plan)
        for place in range(1, len(users.arms))
        for source in measured.sources
    ]
    levels = _levels(compared, plan, looks)
    waits = plan.looks is Looks.PLANNED and measured.hours < plan.hours
    findings = [_finding(item, levels[item.decides], plan, looks, waits) for item in compared]
    ended = measured.hours >= plan.hours
    return Analysis(
        plan=plan,
        arms=users.arms,
        counts=users.counts,
        hours=measured.hours,
        sample_ratio=ratio,
        crossed=users.crossed,
        warm_up_minutes=measured.warm_up_minutes,
        warm_up_hit_ratio=measured.warm_up_hit_ratio,
        results=tuple(
            _result(arm, [item for item in findings if item.arm == arm], ratio, ended)
            for arm in users.arms[1:]
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A metric's estimates in one arm and the control; `lacks` says why there are none.

    `shares` are those of the two of all users, `planned` the users of both that were planned.
    """

    metric: Metric
    arm: str
    decides: bool
    lacks: str | None = None
    is_early: bool = False
    shown: tuple[float, float] | None = None
    control: Estimate | None = None
    treatment: Estimate | None = None
    variance_kept: float | None = None
    shares: tuple[float, float]
    planned: float

    @property
    def has_ratio(self) -> bool:
        """Whether both values are above zero, so that a change can be told in per cent."""
        assert self.control is not None
        assert self.treatment is not None
        return bool(self.control.value > 0 and self.treatment.value > 0)

    @property
    def judged_by(self) -> Contrast | None:
        """The contrast that decides: of logarithms, or of the values where one is not above zero."""
        if self.control is None or self.treatment is None:
            return None
        found = (logarithmic if self.has_ratio else absolute)(self.control, self.treatment)
        # All users alike in both arms: nothing to judge by, unless the arms differ.
        return found if found.variance > 0 or found.effect != 0 else None


def _compared(source: Sums | Observations, users: Users, place: int, plan: Plan) -> _Compared:
    shares = users.shares[0], users.shares[place]
    base = _Compared(
        metric=source.metric,
        arm=users.arms[place],
        decides=source.metric.name in plan.deciding,
        shares=shares,
        planned=plan.users * sum(shares),
    )
    chosen = users.in_arm(0, place), users.in_arm(place, 0)
    counts = int(chosen[0].sum()), int(chosen[1].sum())
    if min(counts) < 2:
        empty = [users.arms[at] for at, count in zip((0, place), counts, strict=True) if count < 2]
        return replace(base, lacks=f"no users in {' and '.join(empty)} yet")
    if source.is_empty:
        return replace(base, lacks="nothing was measured yet")
    base = replace(base, is_early=min(counts) < USERS_MIN)
    if isinstance(source, Observations):
        return _of_observations(base, source, users, chosen)
    return _of_sums(base, source, users, chosen)


Chosen: TypeAlias = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""Which users of the control are compared, and which of the arm."""


def _of_sums(base: _Compared, source: Sums, users: Users, chosen: Chosen) -> _Compared:
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
    base: _Compared, source: Observations, users: Users, chosen: Chosen
) -> _Compared:
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


def _levels(compared: list[_Compared], plan: Plan, looks: Looks) -> dict[bool, float]:
    """The alpha of the intervals of metrics that decide (True), and of the others."""
    deciding = sum(item.decides for item in compared)
    p_values = [
        float(p_value(contrast, looks, item.planned))
        for item in compared
        if not item.decides and (contrast := item.judged_by) is not None
    ]
    return {
        True: family_level(plan.alpha, deciding),
        False: discovery_level(p_values, plan.alpha),
    }


def _finding(item: _Compared, level: float, plan: Plan, looks: Looks, waits: bool) -> Finding:
    base = Finding(metric=item.metric, arm=item.arm, decides=item.decides, reading=Reading.NO_DATA)
    if item.control is None or item.treatment is None:
        return replace(base, lacks=item.lacks)
    assert item.shown is not None
    contrast = item.judged_by
    if contrast is None:
        # Every user alike: a value, and nothing to judge it by.
        return replace(
            base,
            control=item.shown[0],
            value=item.shown[1],
            lacks="the same for every user" if any(item.shown) else "none in either arm",
        )
    low, high = interval(contrast, looks, level, item.planned)
    early = item.is_early or waits
    return replace(
        base,
        reading=Reading.TOO_EARLY if early else _reading(low, high, item.metric.direction),
        control=item.shown[0],
        value=item.shown[1],
        absolute=_effect(absolute(item.control, item.treatment), level, item.planned, looks),
        relative=(
            Effect(
                change=float(np.expm1(contrast.effect)),
                low=float(np.expm1(low)),
                high=float(np.expm1(high)),
            )
            if item.has_ratio
            else None
        ),
        level=level,
        p_value=float(p_value(contrast, looks, item.planned)),
        variance_kept=item.variance_kept,
        users_needed=_users_needed(item, level, plan),
        detectable=_detectable(contrast, float(high)) if item.has_ratio else None,
        guard=None if item.is_early else _guard(item, contrast, plan),
    )


def _detectable(contrast: Contrast, high: float) -> float:
    """The rise whose interval would be without zero in four of five experiments like this one."""
    half = high - float(contrast.effect)
    return float(np.expm1(half + POWER_ERRORS * np.sqrt(contrast.variance)))


def _users_needed(item: _Compared, level: float, plan: Plan) -> int | None:
    """By the control's spread so far."""
    if not item.has_ratio:
        return None
    assert item.control is not None
    planner = Planner(
        relative_variance=float(item.control.variance / item.control.value**2),
        looks=plan.looks,
        shares=item.shares,
        alpha=level,
        users_planned=plan.users,
    )
    return ceil(planner.users_needed(plan.minimum_effect))


def _effect(contrast: Contrast, level: float, planned: float, looks: Looks) -> Effect:
    low, high = interval(contrast, looks, level, planned)
    return Effect(change=float(contrast.effect), low=float(low), high=float(high))


def _reading(low: Floats, high: Floats, direction: Direction) -> Reading:
    if low <= 0 <= high:
        return Reading.UNCLEAR
    if direction is Direction.NONE:
        return Reading.CHANGED
    return Reading.BETTER if (low > 0) == (direction is Direction.UP) else Reading.WORSE


def _guard(item: _Compared, contrast: Contrast, plan: Plan) -> Guard | None:
    """By the bound for any look, whatever the plan: guardrails are watched all the time."""
    margin = item.metric.guardrail
    if margin is None:
        return None
    low, high = interval(contrast, Looks.ANY, plan.alpha, item.planned)
    up_is_better = item.metric.direction is Direction.UP
    if item.has_ratio:
        ends = np.expm1(np.array([low, high])).tolist()
        return guard(ends[0], ends[1], margin, up_is_better=up_is_better)
    # Of a control at zero no share can be put up with: any rise that is sure is one too many.
    return guard(float(low), float(high), 0.0, up_is_better=up_is_better)


def _result(arm: str, findings: list[Finding], ratio: SampleRatio, ended: bool) -> ArmResult:
    ordered = sorted(findings, key=lambda item: (not item.decides, item.guard is None))
    return ArmResult(arm=arm, verdict=_verdict(ordered, ratio, ended), findings=tuple(ordered))


def _verdict(findings: list[Finding], ratio: SampleRatio, ended: bool) -> Verdict:
    deciding = {item.reading for item in findings if item.decides}
    guards = {item.guard for item in findings}
    if ratio.alarms:
        return Verdict.VOID
    if Guard.BREACHED in guards or (Reading.WORSE in deciding and Reading.BETTER not in deciding):
        return Verdict.HARMS
    if not deciding - {Reading.TOO_EARLY, Reading.NO_DATA}:
        return Verdict.TOO_EARLY
    if Reading.BETTER in deciding:
        touched = Reading.WORSE in deciding or Guard.HARMED in guards
        return Verdict.MIXED if touched else Verdict.HELPS
    return Verdict.NO_DIFFERENCE if ended else Verdict.UNCLEAR
