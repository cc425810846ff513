"""What each metric comes to in each arm, as it is: no interval, no judgement.

Pure. Never: says whether arms differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from appliance.experiment.metric import Metric
from appliance.experiment.samples import Measured, Observations, Sums, Users


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmValues:
    """A metric's value by arm, None where nothing was measured."""

    metric: Metric
    values: tuple[float | None, ...]


def arm_values(measured: Measured) -> tuple[ArmValues, ...]:
    """Of all metrics of a report, in their order."""
    users = measured.users
    sums = [ArmValues(metric=one.metric, values=_ratios(users, one)) for one in measured.sums]
    quantiles = [
        ArmValues(metric=one.metric, values=_quantiles(users, one)) for one in measured.observations
    ]
    return (*quantiles, *sums)


def _ratios(users: Users, sums: Sums) -> tuple[float | None, ...]:
    count = len(users.arms)
    over = np.bincount(users.arm, weights=sums.denominator, minlength=count)
    total = np.bincount(users.arm, weights=sums.numerator, minlength=count)
    return tuple(float(total[arm] / over[arm]) if over[arm] else None for arm in range(count))


def _quantiles(users: Users, found: Observations) -> tuple[float | None, ...]:
    assert found.metric.quantile is not None
    arm = users.arm[found.user]
    values: list[float | None] = []
    for place in range(len(users.arms)):
        here = arm == place
        order = np.argsort(found.value[here], kind="stable")
        value, reached = found.value[here][order], np.cumsum(found.count[here][order])
        if not len(value):
            values.append(None)
            continue
        wanted = found.metric.quantile * reached[-1]
        values.append(float(value[np.searchsorted(reached, wanted)]))
    return tuple(values)
