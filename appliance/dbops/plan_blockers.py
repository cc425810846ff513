"""What holds the horizon back, as steps that end it: each destructive one a choice to be agreed to. Pure.

From the cheapest loss to the dearest: a session's transaction, a standby's queries, a prepared
transaction, a slot's consumer. Never: a choice that nobody asked for, or a lock of a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from appliance.dbops.plan_vacuum import AgeLimits
from appliance.dbops.policy import Policy
from appliance.dbops.quoting import literal
from appliance.dbops.snapshot import (
    PreparedTransaction,
    Relation,
    Session,
    Slot,
    Snapshot,
    Standby,
)
from appliance.dbops.step import Choice, Consent, Step, StepKind

TERMINATE_WAIT_MS = 5000

GAIN_MIN = 1_000_000
"""XIDs that a VACUUM has to win to be worth its reading while something older still holds it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A step, and which relations stay old until it is taken: `database` None is all of them."""

    step: Step
    age: int
    database: str | None
    catalogs_only: bool = False

    def holds(self, database: str, relation: Relation) -> bool:
        """Whether a VACUUM of the relation would gain next to nothing while this one stands."""
        if self.age < relation.xid_age - GAIN_MIN:
            return False
        if self.catalogs_only:
            return relation.catalog or relation.shared or relation.user_catalog
        return self.database is None or self.database == database or relation.shared


def horizon_holds(snapshot: Snapshot, limits: AgeLimits, passed: frozenset[int]) -> list[Hold]:
    """Everything that keeps rows of a stage's age, but sessions in `passed`: their temporary tables
    have steps of their own."""
    taken_at = snapshot.taken_at
    found = [
        *(_session(one, limits, taken_at) for one in snapshot.sessions if one.pid not in passed),
        *(_standby(one, limits, taken_at) for one in snapshot.standbys),
        *(_prepared(one, limits) for one in snapshot.prepared),
        *(_slot(one, limits, taken_at) for one in snapshot.slots),
    ]
    return [hold for hold in found if hold is not None]


def lock_steps(
    snapshot: Snapshot, wanted: dict[tuple[int, int], Step], policy: Policy, passed: frozenset[int]
) -> Iterator[Step]:
    """Ending the sessions that keep a relation in `wanted` (by database and relation oid) locked.

    A lock that is younger than the time a VACUUM waits for it will have gone by then.
    """
    sessions = {session.pid: session for session in snapshot.sessions}
    seen = set(passed)
    for lock in snapshot.locks:
        step = wanted.get((lock.database_oid, lock.relation_oid))
        if step is None or not lock.granted or lock.pid is None or lock.pid in seen:
            continue
        session = sessions.get(lock.pid)
        if session is None or session.own:
            continue
        seen.add(session.pid)
        if session.backend == "autovacuum worker":
            yield _take_over(session, step, snapshot.taken_at)
        elif (session.transaction_s or 0) * 1000 >= policy.lock_timeout_ms:
            loses = "its VACUUM" if session.vacuuming else "what it has not committed"
            ends = terminate(session.pid, snapshot.taken_at)
            yield Step(
                key=f"lock:{session.pid}",
                kind=StepKind.END_SESSION,
                stage=step.stage,
                database=None,
                object=session_name(session),
                reason=f"it has held {lock.mode} on {step.object} for {session.transaction_s:.0f} s, "
                "and VACUUM would wait for it",
                choices=(Choice(consent=Consent.LOCK, statements=ends, loses=loses),),
                pid=session.pid,
            )


def _session(session: Session, limits: AgeLimits, taken_at: datetime) -> Hold | None:
    age = session.horizon_age
    stage = None if age is None else limits.stage_of(age, 0)
    # A walsender's feedback is told by its standby or slot; a parallel worker ends with its leader.
    if age is None or stage is None or session.own:
        return None
    if session.backend in ("walsender", "parallel worker"):
        return None
    if session.backend == "autovacuum worker":
        step = Step(
            key=f"session:{session.pid}",
            kind=StepKind.END_SESSION,
            stage=stage,
            database=None,
            object=session_name(session),
            reason=f"its snapshot is {age:,} XIDs old; autovacuum will begin again by itself",
            statements=terminate(session.pid, taken_at),
            pid=session.pid,
        )
        return Hold(step=step, age=age, database=session.database)
    state = session.state or session.backend
    since = "" if session.transaction_s is None else f" for {session.transaction_s:,.0f} s"
    step = Step(
        key=f"session:{session.pid}",
        kind=StepKind.END_SESSION,
        stage=stage,
        database=None,
        object=session_name(session),
        reason=f"{state}, in a transaction{since}: no row younger than {age:,} XIDs may be frozen",
        choices=(
            Choice(
                consent=Consent.SESSION,
                statements=terminate(session.pid, taken_at),
                loses="what it has not committed",
            ),
        ),
        pid=session.pid,
        xid_age=age,
    )
    return Hold(step=step, age=age, database=session.database)


def _standby(standby: Standby, limits: AgeLimits, taken_at: datetime) -> Hold | None:
    age = standby.xmin_age
    stage = None if age is None else limits.stage_of(age, 0)
    if age is None or stage is None:
        return None
    step = Step(
        key=f"standby:{standby.pid}",
        kind=StepKind.END_STANDBY,
        stage=stage,
        database=None,
        object=f'standby "{standby.application}" (process {standby.pid})',
        reason=f"a query there needs rows {age:,} XIDs old (hot_standby_feedback)",
        choices=(
            Choice(
                consent=Consent.STANDBY,
                statements=terminate(standby.pid, taken_at, idle_too=True),
                loses="its connection; it comes back by itself, and unless hot_standby_feedback is off "
                "there or the query has ended, so does its hold",
            ),
        ),
        pid=standby.pid,
        xid_age=age,
    )
    return Hold(step=step, age=age, database=None)


def _prepared(prepared: PreparedTransaction, limits: AgeLimits) -> Hold | None:
    stage = limits.stage_of(prepared.xid_age, 0)
    if stage is None:
        return None
    gid = literal(prepared.gid)
    step = Step(
        key=f"prepared:{prepared.database}:{prepared.gid}",
        kind=StepKind.FINISH_PREPARED,
        stage=stage,
        database=prepared.database,
        object=f"prepared transaction {gid}",
        reason=f"prepared {prepared.prepared_s / 86400:,.1f} days ago by {prepared.owner}, never "
        f"finished, {prepared.xid_age:,} XIDs old",
        choices=(
            Choice(
                consent=Consent.PREPARED_COMMIT,
                statements=(f"COMMIT PREPARED {gid}",),
                loses="nothing, but what it did becomes visible",
            ),
            Choice(
                consent=Consent.PREPARED_ROLLBACK,
                statements=(f"ROLLBACK PREPARED {gid}",),
                loses="everything that it did",
            ),
        ),
        xid_age=prepared.xid_age,
    )
    return Hold(step=step, age=prepared.xid_age, database=prepared.database)


def _slot(slot: Slot, limits: AgeLimits, taken_at: datetime) -> Hold | None:
    held = [age for age in (slot.xmin_age, slot.catalog_xmin_age) if age is not None]
    stage = limits.stage_of(max(held), 0) if held and not slot.lost else None
    if stage is None:
        return None
    kind = "logical" if slot.logical else "physical"
    ends = () if slot.active_pid is None else terminate(slot.active_pid, taken_at, idle_too=True)
    user = "nobody reads it" if slot.active_pid is None else f"process {slot.active_pid} reads it"
    step = Step(
        key=f"slot:{slot.name}",
        kind=StepKind.DROP_SLOT,
        stage=stage,
        database=slot.database,
        object=f'{kind} slot "{slot.name}"',
        reason=f"it keeps rows {max(held):,} XIDs old; {user}",
        choices=(
            Choice(
                consent=Consent.SLOT,
                statements=(*ends, f"SELECT pg_drop_replication_slot({literal(slot.name)})"),
                loses="its place in the WAL: what reads it has to be set up again",
            ),
        ),
        pid=slot.active_pid,
        xid_age=max(held),
    )
    # An age of xmin that is as high as catalog_xmin's holds everything, else catalogs alone.
    is_catalogs = (slot.xmin_age or 0) < (slot.catalog_xmin_age or 0) - GAIN_MIN
    return Hold(step=step, age=max(held), database=None, catalogs_only=is_catalogs)


def _take_over(session: Session, step: Step, taken_at: datetime) -> Step:
    return Step(
        key=f"autovacuum-worker:{session.pid}",
        kind=StepKind.END_SESSION,
        stage=step.stage,
        database=None,
        object=session_name(session),
        reason=f"it works on {step.object}, less directly than this plan; what it has frozen stays so",
        statements=terminate(session.pid, taken_at),
        pid=session.pid,
    )


def session_name(session: Session) -> str:
    """Who a session is, in words that name it alone."""
    who = " ".join(
        word for word in (session.user, session.application and f'"{session.application}"') if word
    )
    place = f" in {session.database}" if session.database else ""
    return f"{session.backend} {session.pid}{place}{f' ({who})' if who else ''}"


def terminate(pid: int, taken_at: datetime, *, idle_too: bool = False) -> tuple[str, ...]:
    """No row when it is no longer the session that was seen: its number may be another's by now, and a
    transaction that has ended holds nothing back."""
    begun = "backend_start" if idle_too else "xact_start"
    return (
        f"SELECT pg_terminate_backend(pid, {TERMINATE_WAIT_MS}) FROM pg_stat_activity "
        f"WHERE pid = {pid} AND {begun} <= {literal(taken_at.isoformat())}::timestamptz",
    )
