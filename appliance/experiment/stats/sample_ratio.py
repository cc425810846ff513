"""Whether users came to the arms in the shares they were to. Never: says why they did not."""

from __future__ import annotations

from collections.abc import Sequence
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


def sample_ratio(counts: Sequence[int], shares: Sequence[float]) -> SampleRatio:
    """Pearson's chi-squared test of users by arm against `shares`, which are above 0 and sum to 1.

    As in Fabijan et al., "Diagnosing Sample Ratio Mismatch in Online Controlled Experiments", KDD 2019.
    """
    users = sum(counts)
    expected = tuple(users * share for share in shares)
    if users == 0:
        return SampleRatio(counts=tuple(counts), expected=expected, p_value=1.0)
    distance = sum(
        (count - wanted) ** 2 / wanted for count, wanted in zip(counts, expected, strict=True)
    )
    p_value = float(special.chdtrc(len(counts) - 1, np.float64(distance)))
    return SampleRatio(counts=tuple(counts), expected=expected, p_value=p_value)
