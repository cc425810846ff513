"""The state of a cluster in a few numbers, and how bad it is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from appliance.dbops.blockers.blocker import Blocker
from appliance.dbops.blockers.blockers import due_age
from appliance.dbops.blockers.holders import AUTOVACUUM_WORKER
from appliance.dbops.blockers.laggards import why_off
from appliance.dbops.limits import Stage, stage_of_members
from appliance.dbops.snapshot.rates import Rate, days_left
from appliance.dbops.snapshot.snapshot import Database, Snapshot

DAYS_CRITICAL = 2.0
"""At the faster of the two rates; less than this leaves no night to sleep on it."""


class Severity(IntEnum):
    """Also the exit code for monitoring."""

    OK = 0
    WARNING = 1
    """Something holds freezing back or it lags; or a part of the picture is missing."""
    CRITICAL = 2
    """Vacuum is in its failsafe, or writes stop within two days, or have stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutovacuumLag:
    """How far autovacuum is behind. The counts are None where no relation was looked at."""

    on: bool
    workers: int
    workers_max: int
    to_prevent_wraparound: int
    """Workers that freeze a table because of its age."""
    due: int | None
    """Relations past `autovacuum_freeze_max_age` (or its counterpart for MXIDs)."""
    overdue: int | None
    """Of those, the ones a fifth past it: where it should have been by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a person on call wants to see first."""

    severity: Severity
    stage: Stage
    snapshot: Snapshot
    rate: Rate | None
    """Since the newest sample that was left."""
    daily_rate: Rate | None
    """Since the oldest sample of the last 24 hours."""
    xid_days_left: float | None
    mxid_days_left: float | None
    member_days_left: float | None
    """At the faster of the two rates; None: not known, or none is used."""
    autovacuum: AutovacuumLag
    blockers: tuple[Blocker, ...]


def status_of(
    snapshot: Snapshot,
    blockers: tuple[Blocker, ...],
    *,
    rate: Rate | None,
    daily_rate: Rate | None,
) -> Status:
    """Put together what was read and found."""
    rates = [item for item in (rate, daily_rate) if item is not None]
    xids_per_s = max((item.xids_per_s for item in rates), default=None)
    mxids_per_s = max((item.mxids_per_s for item in rates), default=None)
    members_per_s = max((item.members_per_s or 0.0 for item in rates), default=None)
    members_left = 0 if snapshot.members is None else snapshot.members.left
    days = (
        days_left(snapshot.xids_left, xids_per_s),
        days_left(snapshot.mxids_left, mxids_per_s),
        None if snapshot.members is None else days_left(members_left, members_per_s),
    )
    return Status(
        severity=_severity(snapshot, blockers, days),
        stage=snapshot.stage,
        snapshot=snapshot,
        rate=rate,
        daily_rate=daily_rate,
        xid_days_left=days[0],
        mxid_days_left=days[1],
        member_days_left=days[2],
        autovacuum=autovacuum_lag(snapshot),
        blockers=blockers,
    )


def severity_of(snapshot: Snapshot, blockers: tuple[Blocker, ...]) -> Severity:
    """How bad it is, without regard to rates."""
    return _severity(snapshot, blockers, ())


def stage_of_database(snapshot: Snapshot, database: Database) -> Stage:
    """The worse of its XIDs' and MXIDs'."""
    return max(
        snapshot.stage_of_xid_age(database.xid_age), snapshot.stage_of_mxid_age(database.mxid_age)
    )


def stage_of_member_space(snapshot: Snapshot) -> Stage | None:
    """None where the space in use is not known."""
    return None if snapshot.members is None else stage_of_members(snapshot.members.used)


def autovacuum_lag(snapshot: Snapshot) -> AutovacuumLag:
    """How far autovacuum is behind, over all databases that were looked into."""
    ages = [
        (relation.xid_age, relation.mxid_age)
        for database in snapshot.databases
        for relation in database.relations or ()
        if not relation.temporary
    ]
    looked = any(database.relations is not None for database in snapshot.databases)
    xid_max = snapshot.setting_int("autovacuum_freeze_max_age")
    mxid_max = snapshot.setting_int("autovacuum_multixact_freeze_max_age")
    overdue = due_age(snapshot)
    return AutovacuumLag(
        on=why_off(snapshot) is None,
        workers=sum(item.backend == AUTOVACUUM_WORKER for item in snapshot.sessions),
        workers_max=snapshot.setting_int("autovacuum_max_workers"),
        to_prevent_wraparound=sum(item.to_prevent_wraparound for item in snapshot.vacuums),
        due=sum(xid > xid_max or mxid > mxid_max for xid, mxid in ages) if looked else None,
        overdue=sum(xid >= overdue.xid or mxid >= overdue.mxid for xid, mxid in ages)
        if looked
        else None,
    )


def _severity(
    snapshot: Snapshot, blockers: tuple[Blocker, ...], days: tuple[float | None, ...]
) -> Severity:
    gravest = max((blocker.stage for blocker in blockers), default=Stage.OK)
    soon = any(left is not None and left < DAYS_CRITICAL for left in days)
    if max(snapshot.stage, gravest) >= Stage.FAILSAFE or soon:
        return Severity.CRITICAL
    warned = snapshot.stage > Stage.OK or blockers or snapshot.missing
    return Severity.WARNING if warned else Severity.OK
