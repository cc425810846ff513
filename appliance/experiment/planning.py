"""What an experiment needs before it starts: users, days, and the change that it could show. Pure.

By what the character's users did in as long a time just before. Never: reads the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np

from appliance.experiment.comparing import USERS_MIN, is_base_of_shares
from appliance.experiment.findings import Plan
from appliance.experiment.metric import Metric
from appliance.experiment.samples import Measured, Observations, Sums
from appliance.experiment.stats.estimates import Estimate, raw_estimate, variance_kept
from appliance.experiment.stats.moments import Floats, Moments
from appliance.experiment.stats.multiplicity import family_level
from appliance.experiment.stats.planner import Planner
from appliance.experiment.stats.quantile import quantile_estimate
from appliance.store.experiment_records import Experiment

SECONDS_A_DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPlan:
    """One metric that decides; without a past of its own, `lacks` says why and the rest is None.

    `users` of all arms show the smallest change worth finding in four of five experiments; they come in
    `days` (None: they do not come). `detectable` is the rise that the days of the definition would show
    as often. `variance_kept`: the share that is left when what users did before is taken off.
    """

    metric: Metric
    lacks: str | None = None
    value: float | None = None
    variance_kept: float | None = None
    users: int | None = None
    days: float | None = None
    detectable: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """`came`: users in as many `days` as the definition has, of whom `let_in` would have been in it.

    `users` is enough for all metrics that decide (None: of none is anything known).
    """

    days: int
    came: int
    let_in: int
    minimum_effect: float
    users: int | None
    metrics: tuple[MetricPlan, ...]


def plan_experiment(history: Measured, draft: Experiment) -> ExperimentPlan:
    """From what was measured of the time before a draft (`measure_history`)."""
    arrivals = np.sort(history.users.exposed_at) / SECONDS_A_DAY
    share = draft.coverage * (draft.range_end - draft.range_start)
    named = {source.metric.name: source for source in history.sources}
    metrics = tuple(
        _metric_plan(named[name], draft, arrivals, share)
        for name in draft.options.primary
        if name in named
    )
    return ExperimentPlan(
        days=draft.options.days,
        came=len(arrivals),
        let_in=int(len(arrivals) * share),
        minimum_effect=draft.options.minimum_effect,
        users=max((item.users for item in metrics if item.users is not None), default=None),
        metrics=metrics,
    )


def _metric_plan(
    source: Sums | Observations, draft: Experiment, arrivals: Floats, share: float
) -> MetricPlan:
    estimate, kept = _estimated(source, len(arrivals))
    if estimate is None or not (estimate.value or estimate.variance):
        return MetricPlan(metric=source.metric, lacks="nothing was measured before")
    if not is_base_of_shares(estimate):
        return MetricPlan(
            metric=source.metric,
            value=float(estimate.value),
            lacks="is not clearly above zero: a change is no share of it, and nothing is planned by it",
        )
    plan = Plan.of(draft.options)
    smallest = min(arm.share for arm in draft.arms[1:])
    planner = Planner(
        relative_variance=float(estimate.variance / estimate.value**2) * kept,
        looks=plan.looks,
        shares=(draft.arms[0].share, smallest),
        alpha=family_level(plan.alpha, len(plan.deciding) * (len(draft.arms) - 1)),
    )
    judged = USERS_MIN / min(smallest, draft.arms[0].share)
    users = ceil(max(judged, planner.users_needed(plan.minimum_effect)))
    detectable = planner.minimum_effect(len(arrivals) * share)
    return MetricPlan(
        metric=source.metric,
        value=float(estimate.value),
        variance_kept=kept,
        users=users,
        days=_days(arrivals, users / share, draft.options.days),
        detectable=detectable if isfinite(detectable) else None,
    )


def _estimated(source: Sums | Observations, users: int) -> tuple[Estimate | None, float]:
    """The metric over all users, and the share of its variance that their past leaves."""
    if isinstance(source, Observations):
        assert source.metric.quantile is not None
        if source.is_empty:
            return None, 1.0
        found = quantile_estimate(source.user, source.value, source.count, source.metric.quantile)
        return found, 1.0
    if source.is_empty or users < 2:
        return None, 1.0
    figures = Moments.of(source.rows)
    estimate = raw_estimate(figures)
    has_past = bool(source.rows[:, 3:].any()) and estimate.variance > 0
    return estimate, float(variance_kept(figures)) if has_past else 1.0


def _days(arrivals: Floats, users: float, days: int) -> float | None:
    """Until so many came: as they did, and after that as in the second half of the time."""
    if users <= len(arrivals):
        return float(arrivals[ceil(users) - 1])
    a_day = float((arrivals >= days / 2).sum()) / (days / 2)
    return days + (users - len(arrivals)) / a_day if a_day else None
