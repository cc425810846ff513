"""Means and covariances of what users did, for one arm or for thousands of simulated ones at once.

Never: judges a difference, or knows what a figure means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of `count` users with k figures each: `mean` (..., k) and `cov` (..., k, k), over count - 1.

    The leading axes, if any, are separate samples: simulated runs, days. The figures are numerator and
    denominator, and where there is a past the same two of the period before.
    """

    count: Floats
    mean: Floats
    cov: Floats

    @classmethod
    def of(cls, rows: Floats) -> Moments:
        """Of one sample, a user a row: (users, k). At least two users."""
        count = rows.shape[0]
        assert count >= 2
        mean = rows.mean(axis=0)
        centred = rows - mean
        return cls(count=np.asarray(float(count)), mean=mean, cov=centred.T @ centred / (count - 1))

    @classmethod
    def from_sums(cls, count: Floats, sums: Floats, products: Floats) -> Moments:
        """From sums (..., k) and sums of products (..., k, k) over `count` (...) users.

        Loses digits where means are large beside deviations: for simulations, whose figures are not.
        """
        users = count[..., None]
        mean = sums / users
        outer = mean[..., :, None] * mean[..., None, :] * users[..., None]
        return cls(count=count, mean=mean, cov=(products - outer) / (users[..., None] - 1))

    def __add__(self, other: Moments) -> Moments:
        """Of both samples together (Chan, Golub & LeVeque 1983, the pairwise update)."""
        mine, theirs = self.count[..., None], other.count[..., None]
        both = mine + theirs
        apart = other.mean - self.mean
        between = apart[..., :, None] * apart[..., None, :] * (mine * theirs / both)[..., None]
        within = self.cov * (mine - 1)[..., None] + other.cov * (theirs - 1)[..., None]
        return Moments(
            count=self.count + other.count,
            mean=(self.mean * mine + other.mean * theirs) / both,
            cov=(within + between) / (both - 1)[..., None],
        )
