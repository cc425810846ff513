"""What was measured of an experiment's users: the seam between the ledger's queries and the statistics.

Arrays only, a row a user. Never: a user's name, an SQL statement, or a judgement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from appliance.experiment.metric import Metric, Shape

STEP = 0.01
"""Of the logarithm of a time in ms and one more: times are rounded to it (`appliance.time_step`)."""


def steps_of(time_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times as the ledger's queries give them."""
    return np.round(np.log1p(time_ms) / STEP)


def time_of(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """In ms again, each within 0.5 % of itself and a millisecond."""
    return np.expm1(steps * STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Who counts in a report: users exposed to exactly one arm; each has one row, in all arrays.

    `arms` are the arms' names, the control arm first, `shares` the share of users that each was to get
    (they sum to 1). `arm[row]` is a place in `arms`. `exposed_at[row]` is when the user first saw what
    differs, in seconds since the start of the experiment; `paused_at[place]` when its arm was paused, on
    the same scale (infinite: it was not). `crossed` are users left out because they appeared in two arms.
    `deleted` are by arm the exposed chats that were deleted, of which nothing else is left, and how many
    users did so.
    """

    arms: tuple[str, ...]
    shares: tuple[float, ...]
    arm: NDArray[np.int16]
    exposed_at: NDArray[np.float64]
    paused_at: tuple[float, ...]
    crossed: int = 0
    deleted: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        assert len(self.arms) == len(self.shares) == len(self.paused_at) >= 2
        assert self.arm.shape == self.exposed_at.shape
        assert self.arm.ndim == 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Users by arm."""
        return self._counts(np.ones(len(self.arm), dtype=np.bool_))

    @property
    def spans(self) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Of the time between two pauses each: users by arm, and the shares that these were to have."""
        begins = -inf
        for ends in sorted({*self.paused_at, inf}):
            shares = [
                share if paused >= ends else 0.0
                for share, paused in zip(self.shares, self.paused_at, strict=True)
            ]
            is_open = np.array(shares) > 0
            now = (self.exposed_at >= begins) & (self.exposed_at < ends) & is_open[self.arm]
            begins, total = ends, sum(shares)
            if total:
                yield self._counts(now), tuple(share / total for share in shares)

    def _counts(self, rows: NDArray[np.bool_]) -> tuple[int, ...]:
        found = np.bincount(self.arm[rows], minlength=len(self.arms))
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
        # A share of what has happened is measured where it is zero, too.
        is_told = self.metric.shape is Shape.RATIO or self.numerator.any()
        return not (is_told and self.denominator.any())

    @property
    def rows(self) -> NDArray[np.float64]:
        """(users, 2), or (users, 4) with a past: numerators and denominators."""
        figures = [self.numerator, self.denominator]
        if self.before is not None and self.before_denominator is not None:
            figures += [self.before, self.before_denominator]
        return np.stack(figures, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """A metric of the shape QUANTILE: `count` observations of `value` made of the user in row `user`.

    Values are rounded to 1 %, so that there are few rows for each user.
    """

    metric: Metric
    user: NDArray[np.int32]
    value: NDArray[np.float64]
    count: NDArray[np.int64]

    def __post_init__(self) -> None:
        assert self.metric.shape is Shape.QUANTILE
        assert self.user.shape == self.value.shape == self.count.shape

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was measured."""
        return not self.count.any()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that one report is made of. `hours` is how long the experiment ran so far.

    Metrics of the cache leave out the replies of the first `warm_up_minutes`, in which it has nothing
    of a version that is new: `warm_up_hit_ratio` is what it found then, by arm (None: no reply).
    `judged` and `watched` have by arm what was measured until the arm's own end, and until that of its
    guardrails (`ends.py`); what they lack is judged by all there is.
    """

    users: Users
    sums: tuple[Sums, ...]
    observations: tuple[Observations, ...]
    hours: float
    warm_up_minutes: int = 0
    warm_up_hit_ratio: tuple[float | None, ...] = ()
    judged: Mapping[str, Measured] = field(default_factory=dict)
    watched: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Sums | Observations, ...]:
        """Every metric that was measured."""
        return (*self.sums, *self.observations)
