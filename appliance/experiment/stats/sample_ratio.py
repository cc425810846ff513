"""Whether users came to the arms in the shares they were to, and whether as many of each have something.

Never: says why they did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

ALARM_BELOW = 0.001
"""Looked at daily for a month, a fair split alarms in about 1 % of experiments; at 0.01 in 7 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRatio:
    """Users by arm beside those expected. An alarm voids all comparisons: who lacks is not random."""

    counts: tuple[int, ...]
    expected: tuple[float, ...]
    p_value: float

    @property
    def alarms(self) -> bool:
        """Whether chance does not explain the split."""
        return self.p_value < ALARM_BELOW


def independence(having: Sequence[int], others: Sequence[int]) -> float:
    """The p-value of Pearson's chi-squared test that as large a share has something in every arm; 1 where
    nobody has, or everybody."""
    table = np.array([having, others], dtype=np.float64)
    table = table[:, table.sum(axis=0) > 0]
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / max(table.sum(), 1.0)
    if not expected.all() or table.shape[1] < 2:
        return 1.0
    distance = ((table - expected) ** 2 / expected).sum()
    return float(special.chdtrc(table.shape[1] - 1, distance))


def sample_ratio(spans: Iterable[tuple[Sequence[int], Sequence[float]]]) -> SampleRatio:
    """Pearson's chi-squared test of users by arm against shares that sum to 1, over spans of time.

    A pause changes the shares for whoever comes later (a paused arm has 0 from then on): each span is
    tested by itself, and distances and degrees of freedom add up. As in Fabijan et al., "Diagnosing
    Sample Ratio Mismatch in Online Controlled Experiments", KDD 2019.
    """
    found, wanted, distance, freedom = [], [], 0.0, 0
    for counts, shares in spans:
        count, share = np.array(counts), np.array(shares)
        assert not count[share == 0].any()
        expected = count.sum() * share
        found.append(count)
        wanted.append(expected)
        present = expected > 0
        if present.any():
            distance += float(((count - expected)[present] ** 2 / expected[present]).sum())
            freedom += int(present.sum()) - 1
    return SampleRatio(
        counts=tuple(map(int, np.sum(found, axis=0))),
        expected=tuple(map(float, np.sum(wanted, axis=0))),
        p_value=float(special.chdtrc(freedom, np.float64(distance))) if freedom else 1.0,
    )
