"""Arms compared by turns: the whole box serves one arm for a period, then another.

Arms that share a GPU and a cache slow each other, so a comparison of users that are served side by side
cannot show it. Here the period is the unit. Never: decides which arm a period is given to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.experiment.stats.contrast import Contrast
from appliance.experiment.stats.moments import Floats


def switchback(
    block: NDArray[np.int32], treated: NDArray[np.bool_], value: Floats
) -> Contrast | None:
    """Treatment over control on the logarithm's scale, from one value above zero for each period.

    Periods come in blocks of neighbours, in each block one of either arm in an order drawn by lot; the
    difference within a block is free of the time of day, and blocks are the unit (a paired t-test;
    Bojinov, Simchi-Levi & Zhao, Management Science 2023, on why neither messages nor single periods
    are). Blocks that lack an arm are left out. None with fewer than two.
    """
    first = _by_block(block, ~treated, value)
    second = _by_block(block, treated, value)
    complete = np.isfinite(first) & np.isfinite(second)
    units = int(complete.sum())
    if units < 2:
        return None
    difference = second[complete] - first[complete]
    return Contrast(
        effect=np.asarray(difference.mean()),
        variance=np.asarray(difference.var(ddof=1) / units),
        dof=np.asarray(units - 1.0),
        units=np.asarray(float(units)),
    )


def _by_block(block: NDArray[np.int32], chosen: NDArray[np.bool_], value: Floats) -> Floats:
    """The logarithm by block of the arm that is chosen, NaN where a block has none of it."""
    found = np.full(int(block.max(initial=-1)) + 1, np.nan)
    found[block[chosen]] = np.log(value[chosen])
    return found


def period_values(
    period: NDArray[np.int32], value: Floats, count: NDArray[np.int64], share: float
) -> tuple[NDArray[np.int32], Floats]:
    """The `share` quantile of each period's observations: the periods that have any, and their values."""
    order = np.lexsort((value, period))
    period, value, count = period[order], value[order], count[order]
    periods, start = np.unique(period, return_index=True)
    before = np.cumsum(count) - count
    total = np.add.reduceat(count, start)
    wanted = before[start] + share * total
    # The last row of each period whose observations begin before the wanted one.
    row = np.searchsorted(before, wanted, side="left") - 1
    return periods, value[np.maximum(row, start)]


def neighbours(arm: Sequence[int | None]) -> list[tuple[int, int]]:
    """Places of periods that follow each other without anything between, one of either arm, each in one
    pair alone; `arm` is None of a period of another version."""
    pairs, place = [], 0
    while place + 1 < len(arm):
        if None in arm[place : place + 2] or arm[place] == arm[place + 1]:
            place += 1
            continue
        pairs.append((place, place + 1))
        place += 2
    return pairs
