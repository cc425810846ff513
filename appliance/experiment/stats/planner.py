"""How many users an experiment needs, how long that takes, and what it could see at all.

Pure arithmetic on a metric's spread as it is today. Never: reads a ledger, or looks at an effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, inf, log1p, sqrt

from scipy import special

from appliance.experiment.stats.looks import Looks, reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """The plan for one metric and one arm against the control.

    `relative_variance`: the variance of one user's figure over the metric's value squared (`Estimate`),
    times `variance_kept` where a past is used. `shares`: of all users, the control's and the arm's.
    `power`: how often an effect of the size asked for is to be found. Effects are relative and multiply
    what users do (0.05: five per cent more), so on the logarithm's scale the spread stays as it is.
    """

    relative_variance: float
    looks: Looks
    shares: tuple[float, float] = (0.5, 0.5)
    alpha: float = 0.05
    power: float = 0.8

    def __post_init__(self) -> None:
        assert self.relative_variance >= 0
        assert 0 < self.alpha < 1
        assert 0 < self.power < 1
        assert min(self.shares) > 0

    def users_needed(self, effect: float) -> float:
        """Users of all arms for an effect (not 0, above -1) to be found with the power asked for."""
        squared = (self._reach + float(special.ndtri(self.power))) ** 2
        return self._spread * squared / log1p(effect) ** 2

    def minimum_effect(self, users: float) -> float:
        """The smallest rise that `users` in all arms together would show with the power asked for."""
        if users == 0:
            return inf
        return exp((self._reach + float(special.ndtri(self.power))) * self._error(users)) - 1

    def power_at(self, effect: float, users: float) -> float:
        """How often an effect would be found with so many users, at the last look."""
        away = abs(log1p(effect)) / self._error(users)
        return float(special.ndtr(away - self._reach) + special.ndtr(-away - self._reach))

    def days_needed(self, effect: float, users_per_day: float) -> int:
        """Whole days until enough users came, where so many come for the first time each day."""
        assert users_per_day > 0
        return ceil(self.users_needed(effect) / users_per_day)

    @property
    def _reach(self) -> float:
        return reach(self.looks, self.alpha)

    @property
    def _spread(self) -> float:
        control, arm = self.shares
        return self.relative_variance * (1 / control + 1 / arm)

    def _error(self, users: float) -> float:
        return sqrt(self._spread / users)
