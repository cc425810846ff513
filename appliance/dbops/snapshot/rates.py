"""How fast a cluster uses up its IDs: from two samples of its counters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.dbops.limits import ID_SPACE
from appliance.dbops.snapshot.snapshot import Snapshot

DAY_S = 86_400.0
SECONDS_MIN = 10.0
"""Samples nearer to each other tell nothing: a batch between them would be taken for a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A cluster's counters at one moment, in seconds since 1970 by the server's clock."""

    system_id: str
    at_s: float
    next_xid: int
    next_mxid: int
    next_member: int | None
    wal_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What was used a second, over `over_s` seconds; members only where both samples know them."""

    over_s: float
    xids_per_s: float
    mxids_per_s: float
    members_per_s: float | None
    wal_bytes_per_s: float


def sample_of(snapshot: Snapshot) -> Sample:
    """The counters of a snapshot."""
    return Sample(
        system_id=snapshot.system_id,
        at_s=snapshot.taken_at.timestamp(),
        next_xid=snapshot.next_xid,
        next_mxid=snapshot.next_mxid,
        next_member=None if snapshot.members is None else snapshot.members.next_offset,
        wal_position=snapshot.wal_position,
    )


def rate_between(earlier: Sample, later: Sample) -> Rate | None:
    """None when they are of different clusters, too near, or a counter went back (a restored copy)."""
    seconds = later.at_s - earlier.at_s
    if earlier.system_id != later.system_id or seconds < SECONDS_MIN:
        return None
    xids = later.next_xid - earlier.next_xid
    wal = later.wal_position - earlier.wal_position
    if xids < 0 or wal < 0:
        return None
    members = None
    if earlier.next_member is not None and later.next_member is not None:
        members = (later.next_member - earlier.next_member) % ID_SPACE / seconds
    return Rate(
        over_s=seconds,
        xids_per_s=xids / seconds,
        mxids_per_s=(later.next_mxid - earlier.next_mxid) % ID_SPACE / seconds,
        members_per_s=members,
        wal_bytes_per_s=wal / seconds,
    )


def newest_and_daily_rate(
    samples: Sequence[Sample], now: Sample
) -> tuple[Rate | None, Rate | None]:
    """The rate since the newest sample far enough back, and since the oldest of the last 24 hours."""
    recent = [item for item in samples if now.at_s - DAY_S <= item.at_s <= now.at_s - SECONDS_MIN]
    rates = [rate_between(item, now) for item in sorted(recent, key=lambda item: item.at_s)]
    return (rates[-1], rates[0]) if rates else (None, None)


def days_left(left: int, per_s: float | None) -> float | None:
    """Days until `left` IDs are used up at a rate; None where it is not known or nothing is used."""
    if not per_s:
        return None
    return max(0, left) / per_s / DAY_S
