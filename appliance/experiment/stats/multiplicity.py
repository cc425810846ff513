"""The level at which each of many metrics is judged, so that many looks for luck find none.

Never: drops a metric. The interval of each at its level is without zero exactly where it counts as found.
"""

from __future__ import annotations

from collections.abc import Sequence


def family_level(alpha: float, comparisons: int) -> float:
    """For the metrics that decide: none is found falsely but in alpha of experiments (Bonferroni)."""
    return alpha / max(1, comparisons)


def discovery_level(p_values: Sequence[float], alpha: float) -> float:
    """For the metrics that explain: at most a share alpha of those found is false, on average.

    Benjamini & Hochberg (1995) find the R smallest p-values for the largest R with p(R) <= R alpha / m;
    intervals at R alpha / m for all keep to that (Benjamini & Yekutieli, JASA 2005). With none found the
    level is alpha / m, and no interval is without zero.
    """
    count = len(p_values)
    found = max(
        (
            rank
            for rank, p_value in enumerate(sorted(p_values), start=1)
            if p_value <= rank * alpha / count
        ),
        default=1,
    )
    return alpha * found / max(1, count)
