"""What was measured of an experiment's users: the seam between the ledger's queries and the statistics.

Arrays only, a row a user. Never: a user's name, an SQL statement, or a judgement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.experiment.metric import Metric, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Who counts in a report: users exposed to exactly one arm; each has one row, in all arrays.

    `arms` are the arms' names, the control arm first, `shares` the share of users that each was to get
    (they sum to 1). `arm[row]` is a place in `arms`. `exposed_at[row]` is when the user first saw what
    differs, in seconds since the start of the experiment. `crossed` are users left out because they
    appeared in two arms.
    """

    arms: tuple[str, ...]
    shares: tuple[float, ...]
    arm: NDArray[np.int16]
    exposed_at: NDArray[np.float64]
    crossed: int = 0

    def __post_init__(self) -> None:
        assert len(self.arms) == len(self.shares) >= 2
        assert self.arm.shape == self.exposed_at.shape
        assert self.arm.ndim == 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Users by arm."""
        found = np.bincount(self.arm, minlength=len(self.arms))
        return tuple(int(count) for count in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A metric of the shape MEAN or RATIO: sums by user from the exposure on, rows as in `Users`.

    `denominator` is 1 everywhere for MEAN. `before` and `before_denominator` are the same sums over the
    period before the experiment began (zeros of a user who was not there), None where the metric has no
    past: the covariate of CUPED. All float64, of one length, none NaN.
    """

    metric: Metric
    numerator: NDArray[np.float64]
    denominator: NDArray[np.float64]
    before: NDArray[np.float64] | None = None
    before_denominator: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        assert self.metric.shape is not Shape.QUANTILE
        assert self.numerator.shape == self.denominator.shape
        assert (self.before is None) == (self.before_denominator is None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was measured."""
        return not self.denominator.any() or not (self.numerator.any() or self.has_events)

    @property
    def has_events(self) -> bool:
        """Whether what the numerator is a share of has happened: a zero over it is a measurement."""
        return self.metric.shape is Shape.RATIO and bool(self.denominator.any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """A metric of the shape QUANTILE: `count` observations of `value` made of the user in row `user`.

    Values are rounded to 1 %, so that there are few rows for each user. `period[i]` is the number of the
    time slice the observations are of, counted from the start of the experiment, where the experiment
    switches arms by time; else 0.
    """

    metric: Metric
    user: NDArray[np.int32]
    value: NDArray[np.float64]
    count: NDArray[np.int64]
    period: NDArray[np.int32]

    def __post_init__(self) -> None:
        assert self.metric.shape is Shape.QUANTILE
        assert self.user.shape == self.value.shape == self.count.shape == self.period.shape

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was measured."""
        return not self.count.any()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that one report is made of. `hours` is how long the experiment ran so far.

    Metrics of the cache leave out the replies of the first `warm_up_minutes`, in which it has nothing
    of a version that is new: `warm_up_hit_ratio` is what it found then, by arm (None: no reply).
    """

    users: Users
    sums: tuple[Sums, ...]
    observations: tuple[Observations, ...]
    hours: float
    warm_up_minutes: int = 0
    warm_up_hit_ratio: tuple[float | None, ...] = ()

    @property
    def sources(self) -> tuple[Sums | Observations, ...]:
        """Every metric that was measured."""
        return (*self.sums, *self.observations)
