"""How many users an experiment needs, how long that takes, and what it could see at all.

Pure arithmetic on a metric's spread as it is today. Never: reads a ledger, or looks at an effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, log1p, sqrt

from scipy import optimize, special

from appliance.experiment.stats.looks import Looks, reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """The plan for one metric and one arm against the control.

    `relative_variance`: the variance of one user's figure over the metric's value squared (`Estimate`),
    times `variance_kept` where a past is used. `shares`: of all users, the control's and the arm's.
    `power`: how often an effect of the size asked for is to be found, at a look when the users are there;
    looks before it that are allowed for find it sometimes where that one would not. Effects are relative
    and multiply what users do (0.05: five per cent more), so on the logarithm's scale the spread stays as
    it is. `users_planned`: where bounds for any look are narrowest; None: where they are needed, as in an
    experiment that is yet to be created.
    """

    relative_variance: float
    looks: Looks
    shares: tuple[float, float] = (0.5, 0.5)
    alpha: float = 0.05
    power: float = 0.8
    users_planned: float | None = None

    def __post_init__(self) -> None:
        assert self.relative_variance >= 0
        assert 0 < self.alpha < 1
        assert 0 < self.power < 1
        assert min(self.shares) > 0

    def users_needed(self, effect: float) -> float:
        """Users of all arms for an effect (not 0, above -1) to be found with the power asked for."""
        needed_once = self._spread / log1p(effect) ** 2

        def lacking(log_users: float) -> float:
            """Of the distance from no effect, squared, at this many users: below 0 where it suffices."""
            users = exp(log_users)
            return self._away(users) ** 2 - users / needed_once

        if needed_once == 0:
            return 0.0
        low = log(needed_once)
        while lacking(low) < 0:
            low -= 1
        high = low + 1
        while lacking(high) > 0:
            high += 1
        return exp(optimize.brentq(lacking, low, high, xtol=1e-12))

    def minimum_effect(self, users: float) -> float:
        """The smallest rise that `users` in all arms together would show with the power asked for."""
        return exp(self._away(users) * self._error(users)) - 1 if users else inf

    def power_at(self, effect: float, users: float) -> float:
        """How often an effect would be found with so many users, at the last look."""
        away, ends = abs(log1p(effect)) / self._error(users), self._reach(users)
        return float(special.ndtr(away - ends) + special.ndtr(-away - ends))

    def _away(self, users: float) -> float:
        """Standard errors that an effect must be from none to be found with the power asked for."""
        return self._reach(users) + float(special.ndtri(self.power))

    def _reach(self, users: float) -> float:
        return reach(self.looks, self.alpha, users / (self.users_planned or users))

    @property
    def _spread(self) -> float:
        control, arm = self.shares
        return self.relative_variance * (1 / control + 1 / arm)

    def _error(self, users: float) -> float:
        return sqrt(self._spread / users)
