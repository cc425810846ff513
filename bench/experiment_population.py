"""A population of chatting users, and experiments drawn from it by the thousand. Judges nothing.

Users are heavy-tailed (a hundredth sends a seventh of the messages), each has a level of their own that
all their messages share, and they join over the whole run. A drawn experiment is users drawn with
replacement, so what is true of the population is known exactly, and the sums of thousands of experiments
are one product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.experiment.stats.moments import Floats, Moments

USERS = 20_000
DAYS = 30
DRAWN_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages of all users: whose, on which day of the run (0 for those before it), seconds waited."""

    user: NDArray[np.int64]
    day: NDArray[np.int64]
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """`joined[user]` is the day of a user's first message of the run."""

    joined: NDArray[np.int64]
    during: Messages
    before: Messages

    @property
    def users(self) -> int:
        """How many there are."""
        return len(self.joined)


def population(seed: int, *, users: int = USERS) -> Population:
    """About 14 messages a user in the run, and about as many before it."""
    rng = np.random.default_rng(seed)
    rate = np.minimum(0.3 + rng.pareto(1.8, users), 60.0)
    level = rng.normal(0, 0.5, users)
    # The past foretells a user's level, and not all of it.
    level_before = 0.8 * level + 0.6 * rng.normal(0, 0.5, users)
    joined = rng.integers(0, DAYS, users)
    since = np.arange(DAYS) - joined[:, None]
    sent = rng.poisson(rate[:, None] * np.where(since >= 0, 1.6 * 0.85 ** since.clip(0), 0.0))
    sent += since == 0
    sent_before = rng.poisson(8.0 * rate)
    user, day = np.divmod(np.repeat(np.arange(users * DAYS), sent.ravel()), DAYS)
    user_before = np.repeat(np.arange(users), sent_before)
    return Population(
        joined=joined,
        during=Messages(user=user, day=day, seconds=_seconds(rng, level[user])),
        before=Messages(
            user=user_before,
            day=np.zeros_like(user_before),
            seconds=_seconds(rng, level_before[user_before]),
        ),
    )


def _seconds(rng: np.random.Generator, level: Floats) -> Floats:
    return np.exp(level + rng.normal(0, 0.8, len(level)))


def by_day(people: Population) -> Floats:
    """By user, up to each day, (users, DAYS, 4): joined, seconds, messages, seconds squared."""
    place = people.during.user * DAYS + people.during.day
    seconds = people.during.seconds
    daily = [
        np.bincount(place, weights=weights, minlength=people.users * DAYS).reshape(-1, DAYS)
        for weights in (seconds, np.ones_like(seconds), seconds**2)
    ]
    joined = np.arange(DAYS) >= people.joined[:, None]
    return np.stack([joined, *(figures.cumsum(axis=1) for figures in daily)], axis=2)


def by_user(people: Population) -> Floats:
    """By user at the end of the run: (users, 4): seconds, messages, and both of the time before."""
    return np.stack(
        [
            np.bincount(messages.user, weights=weights, minlength=people.users)
            for messages in (people.during, people.before)
            for weights in (messages.seconds, np.ones_like(messages.seconds))
        ],
        axis=1,
    )


def draws(rng: np.random.Generator, runs: int, users: int, drawn: int) -> Iterator[Floats]:
    """How often each user is in an arm of `drawn`: arrays (up to DRAWN_AT_ONCE runs, 2 arms, users)."""
    for first in range(0, runs, DRAWN_AT_ONCE):
        shape = (min(DRAWN_AT_ONCE, runs - first), 2)
        arms = shape[0] * shape[1]
        place = np.arange(arms)[:, None] * users + rng.integers(0, users, (arms, drawn))
        often = np.bincount(place.ravel(), minlength=arms * users)
        yield often.reshape(*shape, users).astype(np.float64)


def pairs(rows: Floats) -> Floats:
    """All products of the figures in the last axis: (..., k) to (..., k, k)."""
    return rows[..., :, None] * rows[..., None, :]


def drawn_moments(often: Floats, count: Floats, figures: Floats, products: Floats) -> Moments:
    """Moments of drawn arms: `often` is (..., users); `count`, `figures`, `products` have users first."""
    return Moments.from_sums(
        np.tensordot(often, count, 1),
        np.tensordot(often, figures, 1),
        np.tensordot(often, products, 1),
    )
