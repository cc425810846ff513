"""Latency by turns: what it was while label `production` stood at one version, and at another.

Versions that are served side by side slow each other; moved to and fro, each has the box to itself. Reads
the label's history and the ledger. Never: moves a label.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

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
    """A stretch of time in which new chats got one version; its first minutes are left out."""

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
    """A comparison of two versions by turns."""

    character: str
    before: str
    after: str
    periods: int
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
        before, after = (_found(start, {move["version"] for move in moves}) for start in versions)
        periods = [
            Period(version=move["version"], starts=move["starts"] + warm_up, ends=move["ends"])
            for move in moves
            if move["version"] in (before, after)
            and (since is None or move["starts"] >= since)
            and move["starts"] + warm_up < move["ends"]
        ]
        rows = await connection.fetch(
            QUERIES["latencies"],
            character,
            [period.version for period in periods],
            [period.starts for period in periods],
            [period.ends for period in periods],
        )
    treated = np.array([period.version == after for period in periods], dtype=np.bool_)
    turns = []
    for kind, share, title in MEASURES:
        mine = [row for row in rows if row["kind"] == kind]
        turns.append(
            turns_of(
                title,
                treated,
                np.array([row["period"] for row in mine], dtype=np.int32),
                np.array([row["step"] for row in mine], dtype=np.float64),
                np.array([row["count"] for row in mine], dtype=np.int64),
                share,
            )
        )
    return Switching(
        character=character, before=before, after=after, periods=len(periods), turns=tuple(turns)
    )


def turns_of(
    title: str,
    treated: np.ndarray[tuple[int], np.dtype[np.bool_]],
    period: np.ndarray[tuple[int], np.dtype[np.int32]],
    step: np.ndarray[tuple[int], np.dtype[np.float64]],
    count: np.ndarray[tuple[int], np.dtype[np.int64]],
    share: float,
) -> Turns:
    """One time's change, from `count` replies in `step` of a `period` that is `treated` or not."""
    if not len(period):
        return Turns(title=title, blocks=0, effect=None)
    # Periods in which nobody wrote are as if they had not been.
    times = np.maximum(time_of(step), TIME_MS_MIN)
    present, value = period_values(period, times, count, share)
    block = neighbours(treated[present])
    paired = block >= 0
    contrast = switchback(block[paired], treated[present][paired], value[paired])
    if contrast is None:
        return Turns(title=title, blocks=int(paired.sum()) // 2, effect=None)
    low, high = contrast.interval(ALPHA)
    change, low, high = np.expm1(np.array([contrast.effect, low, high])).tolist()
    return Turns(
        title=title,
        blocks=int(contrast.units),
        effect=Effect(change=change, low=low, high=high),
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
