"""From what was measured to what may be said: each metric of each arm against the control. Pure.

Owns which bound and level a metric gets. Never: reads the ledger, or pauses an arm.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np

from appliance.experiment.comparing import Compared, compared
from appliance.experiment.findings import (
    Analysis,
    ArmResult,
    Deleted,
    Effect,
    Finding,
    Plan,
    Reading,
    Verdict,
)
from appliance.experiment.metric import Direction
from appliance.experiment.samples import Measured, Users
from appliance.experiment.stats.contrast import Contrast, absolute
from appliance.experiment.stats.guardrail import Guard, guard, guard_differences
from appliance.experiment.stats.looks import Looks, interval, p_value
from appliance.experiment.stats.multiplicity import discovery_level, family_level
from appliance.experiment.stats.planner import Planner
from appliance.experiment.stats.sample_ratio import SampleRatio, independence, sample_ratio

POWER_ERRORS = 0.8416
"""Standard errors above which four of five estimates lie when their mean is above."""


def analyse(measured: Measured, plan: Plan) -> Analysis:
    """Judge everything that was measured, at this look.

    A metric without data, an arm without users and too few of them give findings that say so.
    """
    users = measured.users
    ratio = sample_ratio(users.spans)
    places = range(1, len(users.arms))
    judged = [measured.judged.get(arm, measured) for arm in users.arms[1:]]
    items = [compared(one, place, plan) for one, place in zip(judged, places, strict=True)]
    looks = [_looks(one, plan) for one in judged]
    levels = _levels(items, looks, plan)
    return Analysis(
        plan=plan,
        arms=users.arms,
        counts=users.counts,
        hours=measured.hours,
        sample_ratio=ratio,
        crossed=users.crossed,
        warm_up_minutes=measured.warm_up_minutes,
        warm_up_hit_ratio=measured.warm_up_hit_ratio,
        deleted=_deleted(users),
        results=tuple(
            _result(measured, items[place - 1], place, levels, plan, ratio) for place in places
        ),
    )


def _deleted(users: Users) -> Deleted | None:
    if not users.deleted:
        return None
    chats, deleters = zip(*users.deleted, strict=True)
    return Deleted(chats=chats, users=deleters, p_value=independence(deleters, users.counts))


def _looks(judged: Measured, plan: Plan) -> Looks:
    """Before the planned end whatever is seen is seen by looking early."""
    return Looks.ANY if judged.hours < plan.hours else plan.looks


def _watched(
    measured: Measured, items: list[Compared], place: int, plan: Plan
) -> dict[str, Compared]:
    """By name what guardrails are judged by: what was measured until their own end."""
    later = measured.watched.get(measured.users.arms[place])
    if later is None or later is measured.judged.get(measured.users.arms[place]):
        return {item.metric.name: item for item in items}
    return {item.metric.name: item for item in compared(later, place, plan)}


def _levels(items: list[list[Compared]], looks: list[Looks], plan: Plan) -> dict[bool, float]:
    """The alpha of the intervals of metrics that decide (True), and of the others."""
    deciding = sum(item.decides for arm in items for item in arm)
    p_values = [
        float(p_value(contrast, one, item.planned))
        for arm, one in zip(items, looks, strict=True)
        for item in arm
        if not item.decides and (contrast := item.judged_by) is not None
    ]
    return {
        True: family_level(plan.alpha, deciding),
        False: discovery_level(p_values, plan.alpha),
    }


def _result(
    measured: Measured,
    items: list[Compared],
    place: int,
    levels: dict[bool, float],
    plan: Plan,
    ratio: SampleRatio,
) -> ArmResult:
    arm = measured.users.arms[place]
    judged = measured.judged.get(arm, measured)
    looks, watched = _looks(judged, plan), _watched(measured, items, place, plan)
    findings = [
        _guarded(
            _finding(item, looks, levels[item.decides], plan, waits=looks is not plan.looks),
            watched.get(item.metric.name),
            levels[True] if item.decides else plan.alpha,
            plan,
        )
        for item in items
    ]
    ordered = sorted(findings, key=lambda one: (not one.decides, one.guard is None))
    counts = judged.users.counts
    return ArmResult(
        arm=arm,
        verdict=_verdict(ordered, ratio, judged.hours >= plan.hours),
        users=counts[0] + counts[place],
        hours=judged.hours,
        findings=tuple(ordered),
    )


def _finding(item: Compared, looks: Looks, level: float, plan: Plan, *, waits: bool) -> Finding:
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
    effect = _effect(item, contrast, looks, level)
    early = item.is_early or waits
    return replace(
        base,
        reading=Reading.TOO_EARLY if early else _reading(effect, item.metric.direction),
        control=item.shown[0],
        value=item.shown[1],
        absolute=_difference(item, looks, level),
        relative=effect if effect.is_share else None,
        level=level,
        looks=looks,
        p_value=float(p_value(contrast, looks, item.planned)),
        variance_kept=item.variance_kept,
        users_needed=_users_needed(item, level, plan),
        detectable=_detectable(item, contrast, looks, level),
    )


def _guarded(told: Finding, item: Compared | None, level: float, plan: Plan) -> Finding:
    """A finding with how its guardrail stands, by the bound for any look, whatever the plan: guardrails
    are watched all the time. At the level of the metric's own interval where it decides, so that the two
    cannot tell two things; of one that does not decide, what its guardrail is sure of is what is told."""
    if item is None or told.metric.guardrail is None or item.is_early:
        return told
    contrast = item.judged_by
    if contrast is None:
        return told
    stands, effect = _guard(item, contrast, level), _effect(item, contrast, Looks.ANY, level)
    is_sure = stands is Guard.BREACHED or (stands is Guard.HARMED and not told.decides)
    if is_sure and told.reading in (Reading.UNCLEAR, Reading.TOO_EARLY, Reading.NO_DATA):
        told = _finding(item, Looks.ANY, level, plan, waits=False)
    return replace(told, guard=stands, guarded=effect)


def _guard(item: Compared, contrast: Contrast, level: float) -> Guard:
    margin = item.metric.guardrail
    assert margin is not None
    assert item.control is not None
    assert item.treatment is not None
    up_is_better = item.metric.direction is Direction.UP
    low, high = interval(contrast, Looks.ANY, level, item.planned)
    if item.has_ratio:
        ends = np.expm1(np.array([low, high])).tolist()
        return guard(ends[0], ends[1], margin, up_is_better=up_is_better)
    # A share of the size of the control's value, which may be below zero, or zero: any harm is too much.
    allowed = float(np.sign(item.control.value)) * (-margin if up_is_better else margin)
    beyond = absolute(item.control, item.treatment, times=1 + allowed)
    ends = interval(beyond, Looks.ANY, level, item.planned)
    return guard_differences(
        (float(low), float(high)),
        (float(ends[0]), float(ends[1])),
        up_is_better=up_is_better,
    )


def _effect(item: Compared, contrast: Contrast, looks: Looks, level: float) -> Effect:
    """The change as it is judged: as a share where there is one."""
    low, high = interval(contrast, looks, level, item.planned)
    if not item.has_ratio:
        return Effect(change=float(contrast.effect), low=float(low), high=float(high))
    change, low, high = np.expm1(np.array([contrast.effect, low, high])).tolist()
    return Effect(change=change, low=low, high=high, is_share=True)


def _difference(item: Compared, looks: Looks, level: float) -> Effect:
    assert item.control is not None
    assert item.treatment is not None
    contrast = absolute(item.control, item.treatment)
    low, high = interval(contrast, looks, level, item.planned)
    return Effect(change=float(contrast.effect), low=float(low), high=float(high))


def _detectable(item: Compared, contrast: Contrast, looks: Looks, level: float) -> float:
    """The rise whose interval would be without zero in four of five experiments like this one."""
    _, high = interval(contrast, looks, level, item.planned)
    rise = float(high - contrast.effect + POWER_ERRORS * np.sqrt(contrast.variance))
    return float(np.expm1(rise)) if item.has_ratio else rise


def _users_needed(item: Compared, level: float, plan: Plan) -> int | None:
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


def _reading(effect: Effect, direction: Direction) -> Reading:
    if effect.low <= 0 <= effect.high:
        return Reading.UNCLEAR
    if direction is Direction.NONE:
        return Reading.CHANGED
    return Reading.BETTER if (effect.low > 0) == (direction is Direction.UP) else Reading.WORSE


def _verdict(findings: list[Finding], ratio: SampleRatio, is_over: bool) -> Verdict:
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
    if Reading.CHANGED in deciding:
        return Verdict.CHANGED
    is_judged = not deciding & {Reading.TOO_EARLY, Reading.NO_DATA}
    return Verdict.NO_DIFFERENCE if is_over and is_judged else Verdict.UNCLEAR
