"""Latency by turns: what it was while label `production` stood at one version, and at another.

Versions that are served side by side slow each other; moved to and fro, each has the box to itself. Reads
the label's history and the ledger. Never: moves a label.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from appliance.errors import InvalidRequest
from appliance.experiment.findings import Effect
from appliance.experiment.samples import time_of
from appliance.experiment.stats.switchback import neighbours, period_values, switchback
from appliance.named_sql import read_queries
from appliance.store.pool import Pool, acquired

QUERIES = read_queries("appliance.experiment", "switching")
TIMEOUT_S = 600.0
ALPHA = 0.05
TIME_MS_MIN = 0.5
"""What a time that is stored as 0 is taken for: a change is a share of something."""

MEASURES = (
    ("ttft", 0.5, "Time to first token, median"),
    ("ttft", 0.95, "Time to first token, 95 of 100"),
    ("reply", 0.5, "Time of a full message, median"),
)
"""What is compared: which time, which quantile of a period's replies, and its title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A stretch of time in which new chats got one version."""

    version: str
    starts: datetime
    ends: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """One time by turns: the change from the first version to the second, over `blocks` of two periods.

    `effect` is for one look, and None with fewer than two blocks.
    """

    title: str
    blocks: int
    effect: Effect | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Switching:
    """A comparison of two versions by turns: of the `periods` in which they were served those in a pair
    are compared, `paired` of them."""

    character: str
    before: str
    after: str
    periods: int
    paired: int
    turns: tuple[Turns, ...]


async def compare_by_turns(
    pool: Pool,
    character: str,
    versions: tuple[str, str],
    *,
    since: datetime | None,
    warm_up: timedelta,
) -> Switching:
    """Compare the second version with the first; each is the beginning of a version.

    Raises InvalidRequest where the label never stood at one of them, or one names several versions;
    TimeoutError.
    """
    async with asyncio.timeout(TIMEOUT_S), acquired(pool) as connection:
        moves = await connection.fetch(QUERIES["moves"], character)
        before, after = (
            _found(start, {move["version"] for move in moves if move["version"]})
            for start in versions
        )
        served = [
            Period(version=move["version"] or "", starts=move["starts"], ends=move["ends"])
            for move in moves
            if since is None or move["starts"] >= since
        ]
        paired = [
            period for pair in paired_periods(served, (before, after), warm_up) for period in pair
        ]
        rows = await connection.fetch(
            QUERIES["latencies"],
            character,
            [period.version for period in paired],
            [period.starts for period in paired],
            [period.ends for period in paired],
        )
    turns = []
    for kind, share, title in MEASURES:
        mine = [row for row in rows if row["kind"] == kind]
        turns.append(
            turns_of(
                title,
                np.array([period.version == after for period in paired], dtype=np.bool_),
                np.array([row["period"] for row in mine], dtype=np.int32),
                np.array([row["step"] for row in mine], dtype=np.float64),
                np.array([row["count"] for row in mine], dtype=np.int64),
                share,
            )
        )
    return Switching(
        character=character,
        before=before,
        after=after,
        periods=sum(period.version in (before, after) for period in served),
        paired=len(paired),
        turns=tuple(turns),
    )


def paired_periods(
    served: Sequence[Period], versions: tuple[str, str], warm_up: timedelta
) -> list[tuple[Period, Period]]:
    """Periods that follow each other at once, in order, each pair cut to equal lengths.

    Of both the first minutes are left out, and of the longer one what is farthest from the other: what a
    version did for a month says nothing of the hour before it went. Those that never had a time of their
    own are in no pair, and nothing is put in their place.
    """
    arms = [versions.index(one.version) if one.version in versions else None for one in served]
    pairs = []
    for place, beside in neighbours(arms):
        first, second = served[place], served[beside]
        length = min(one.ends - one.starts - warm_up for one in (first, second))
        if length > timedelta(0):
            begins = second.starts + warm_up
            pairs.append(
                (
                    replace(first, starts=first.ends - length),
                    replace(second, starts=begins, ends=begins + length),
                )
            )
    return pairs


def turns_of(
    title: str,
    treated: NDArray[np.bool_],
    period: NDArray[np.int32],
    step: NDArray[np.float64],
    count: NDArray[np.int64],
    share: float,
) -> Turns:
    """One time's change, from `count` replies in `step` of a `period` that is `treated` or not; periods
    are pairs, in order, and a pair without a reply in one of them counts for nothing."""
    if not len(period):
        return Turns(title=title, blocks=0, effect=None)
    times = np.maximum(time_of(step), TIME_MS_MIN)
    present, value = period_values(period, times, count, share)
    block = (present // 2).astype(np.int32)
    contrast = switchback(block, treated[present], value)
    blocks = int((np.bincount(block) == 2).sum())
    if contrast is None:
        return Turns(title=title, blocks=blocks, effect=None)
    low, high = contrast.interval(ALPHA)
    change, low, high = np.expm1(np.array([contrast.effect, low, high])).tolist()
    return Turns(
        title=title,
        blocks=blocks,
        effect=Effect(change=change, low=low, high=high, is_share=True),
    )


def _found(start: str, versions: set[str]) -> str:
    matching = sorted(version for version in versions if version.startswith(start))
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(sorted(version[:12] for version in versions)) or "none"
    problem = (
        "stood at no"
        if not matching
        else f"stood at {len(matching)} versions that begin so, not one"
    )
    raise InvalidRequest(f"version {start!r}: production {problem} version; it stood at: {known}")
