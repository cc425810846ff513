"""What holds the horizon back, as steps that end it: each destructive one a choice to be agreed to. Pure.

From the cheapest loss to the dearest: a session's transaction, a standby's queries, a prepared
transaction, a slot's consumer. Never: a choice that nobody asked for, or a lock of a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from appliance.dbops.blockers.blocker import Blocker, BlockerKind
from appliance.dbops.blockers.holders import AUTOVACUUM_WORKER, holders
from appliance.dbops.duration import duration
from appliance.dbops.plan.history import Pin
from appliance.dbops.plan.policy import LAST_STAGE, Policy
from appliance.dbops.plan.step import Choice, Consent, Step, StepKind
from appliance.dbops.plan.vacuum import AgeLimits
from appliance.dbops.remedies import (
    commit_prepared,
    drop_slot,
    end_session_seen,
    rollback_prepared,
)
from appliance.dbops.snapshot.snapshot import (
    Database,
    Lock,
    Relation,
    Session,
    Snapshot,
    Standby,
)

GAIN_MIN = 1_000_000
"""XIDs that a VACUUM has to win to be worth its reading while something older still holds it back."""

_SESSIONS = (BlockerKind.IDLE_IN_TRANSACTION, BlockerKind.LONG_TRANSACTION)
_ORDER = (
    *_SESSIONS,
    BlockerKind.STANDBY_FEEDBACK,
    BlockerKind.PREPARED_TRANSACTION,
    BlockerKind.PHYSICAL_SLOT,
    BlockerKind.LOGICAL_SLOT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A blocker of the horizon, and the step that ends it."""

    step: Step
    blocker: Blocker

    def holds(self, database: Database, relation: Relation) -> bool:
        """Whether a VACUUM of the relation would gain next to nothing while this one stands."""
        is_as_old = (self.blocker.age or 0) >= relation.xid_age - GAIN_MIN
        return is_as_old and self.blocker.reach.holds(database, relation)


LATER = 9
"""Than any stage."""


def horizon_holds(snapshot: Snapshot, limits: AgeLimits, ended: Mapping[int, int]) -> list[Hold]:
    """Everything that keeps rows of a stage's age, but sessions that have a step in a stage no later
    (`ended`: by pid).

    A slot that keeps both rows and catalogs back is two holds with one step.
    """
    found = []
    for blocker in sorted(holders(snapshot), key=lambda item: _ORDER.index(item.kind)):
        stage = limits.stage_of(blocker.age or 0, 0)
        if stage is None:
            continue
        if blocker.kind in _SESSIONS and ended.get(blocker.pid or 0, LATER) <= stage:
            continue
        step = _hold_step(blocker, stage, snapshot.taken_at)
        if blocker.kind is BlockerKind.STANDBY_FEEDBACK:
            step = replace(_named(step, snapshot.standbys), xid_age_max=limits.xid[stage - 1])
        found.append(Hold(step=step, blocker=blocker))
    return found


def _named(step: Step, standbys: Sequence[Standby]) -> Step:
    """With what tells its standby from all others when it comes back, where anything does."""
    ended = next(one for one in standbys if one.pid == step.pid)
    names = [(one.application, one.client) for one in standbys]
    if names.count((ended.application, ended.client)) > 1:
        return step
    return replace(step, application=ended.application, client=ended.client)


def _hold_step(blocker: Blocker, stage: int, taken_at: datetime) -> Step:
    kind, key, statements, choices = _deed(blocker, taken_at)
    return Step(
        key=key,
        kind=kind,
        stage=stage,
        database=blocker.database if kind is not StepKind.END_SESSION else None,
        object=blocker.id,
        reason=f"keeps {blocker.scope} from being frozen past {blocker.age:,} XIDs: {blocker.detail}",
        statements=statements,
        choices=choices,
        pid=blocker.pid,
        xid_age=blocker.age or 0,
    )


def _deed(
    blocker: Blocker, taken_at: datetime
) -> tuple[StepKind, str, tuple[str, ...], tuple[Choice, ...]]:
    """Kind, key, statements and choices of the step against one blocker."""
    pid = blocker.pid
    if blocker.kind is BlockerKind.PREPARED_TRANSACTION:
        assert blocker.gid is not None
        key = f"prepared:{blocker.database}:{blocker.gid}"
        return StepKind.FINISH_PREPARED, key, (), _prepared_choices(blocker.gid)
    if blocker.kind in (BlockerKind.PHYSICAL_SLOT, BlockerKind.LOGICAL_SLOT):
        assert blocker.slot is not None
        ends = () if pid is None else (end_session_seen(pid, taken_at, idle_too=True),)
        loses = "its place in the WAL: what reads it has to be set up again"
        choice = Choice(
            consent=Consent.SLOT, statements=(*ends, drop_slot(blocker.slot)), loses=loses
        )
        return StepKind.DROP_SLOT, f"slot:{blocker.slot}", (), (choice,)
    assert pid is not None
    if blocker.kind is BlockerKind.STANDBY_FEEDBACK:
        choice = Choice(
            consent=Consent.STANDBY,
            statements=(end_session_seen(pid, taken_at, idle_too=True),),
            loses="its connection, and again whenever it comes back with so old a snapshot while this "
            "stage lasts; unless its query ends or hot_standby_feedback is off there, it will hold again",
        )
        return StepKind.END_STANDBY, f"standby:{pid}", (), (choice,)
    ends = (end_session_seen(pid, taken_at),)
    if blocker.automatic:
        return StepKind.END_SESSION, f"session:{pid}", ends, ()
    choice = Choice(consent=Consent.SESSION, statements=ends, loses="what it has not committed")
    return StepKind.END_SESSION, f"session:{pid}", (), (choice,)


def _prepared_choices(gid: str) -> tuple[Choice, ...]:
    return (
        Choice(
            consent=Consent.PREPARED_COMMIT,
            statements=(commit_prepared(gid),),
            loses="nothing: what it wrote becomes visible; right if its coordinator committed",
        ),
        Choice(
            consent=Consent.PREPARED_ROLLBACK,
            statements=(rollback_prepared(gid),),
            loses="everything it wrote; right if its coordinator gave up",
        ),
    )


def prepared_lock_steps(
    snapshot: Snapshot, wanted: Mapping[tuple[int, int], Step], policy: Policy
) -> Iterator[Step]:
    """Finishing the prepared transactions that keep a relation in `wanted` locked, however young."""
    prepared = {one.gid: one for one in snapshot.prepared}
    for lock, step in _locks_on(snapshot, wanted):
        found = None if lock.gid is None else prepared.get(lock.gid)
        if found is None or found.prepared_s * 1000 < policy.lock_timeout_ms:
            continue
        yield Step(
            key=f"prepared:{found.database}:{found.gid}",
            kind=StepKind.FINISH_PREPARED,
            stage=step.stage,
            database=found.database,
            object=f"gid {found.gid}",
            reason=f"prepared by {found.owner} {found.prepared_s:,.0f} s ago, it holds {lock.mode} on "
            f"{step.object}, and VACUUM would wait for it",
            choices=_prepared_choices(found.gid),
        )


def _locks_on(
    snapshot: Snapshot, wanted: Mapping[tuple[int, int], Step]
) -> Iterator[tuple[Lock, Step]]:
    """The locks on relations in `wanted`, each with what it is in the way of."""
    for lock in snapshot.locks:
        step = wanted.get((lock.database_oid, lock.relation_oid))
        if step is not None:
            yield lock, step


def lock_steps(
    snapshot: Snapshot,
    wanted: Mapping[tuple[int, int], Step],
    policy: Policy,
    ended: Mapping[int, int],
) -> Iterator[Step]:
    """Ending the sessions that keep a relation in `wanted` (by database and relation oid) locked, or
    wait for a lock on it that a VACUUM would wait behind; but those that have a step in a stage no later
    than the relation's (`ended`: by pid).

    An autovacuum is ended unasked: what it has frozen stays so, and this plan goes on with the rest
    without its pauses and its passes over indexes. Anyone else's lock that is younger than the time a
    VACUUM waits for it will have gone by then.
    """
    sessions = {session.pid: session for session in snapshot.sessions}
    seen = dict(ended)
    for lock, step in _locks_on(snapshot, wanted):
        session = None if lock.pid is None else sessions.get(lock.pid)
        if not lock.delays_vacuum or session is None or session.own:
            continue
        automatic = session.backend == AUTOVACUUM_WORKER
        is_old = (session.transaction_s or 0) * 1000 >= policy.lock_timeout_ms
        if seen.get(session.pid, LATER) <= step.stage or not (automatic or is_old):
            continue
        seen[session.pid] = step.stage
        ends = (end_session_seen(session.pid, snapshot.taken_at),)
        loses = "its VACUUM" if session.vacuuming else "what it has not committed"
        yield Step(
            key=f"lock:{session.pid}",
            kind=StepKind.END_SESSION,
            stage=step.stage,
            database=None,
            object=session_name(session),
            reason=f"in a transaction of {session.transaction_s or 0:.0f} s it "
            f"{'holds' if lock.granted else 'waits for'} {lock.mode} on {step.object}, and VACUUM would "
            f"wait {'for' if lock.granted else 'behind'} it",
            statements=ends if automatic else (),
            choices=()
            if automatic
            else (Choice(consent=Consent.LOCK, statements=ends, loses=loses),),
            pid=session.pid,
        )


def pin_steps(
    snapshot: Snapshot,
    pins: Iterable[Pin],
    wanted: Mapping[tuple[int, int], Step],
    ended: Mapping[int, int],
) -> Iterator[Step]:
    """Ending the transactions that may have in use a page for which a VACUUM waited, the oldest first;
    but those that have a step in a stage no later (`ended`: by pid)."""
    sessions = {session.pid: session for session in snapshot.sessions}
    seen = dict(ended)
    for pin in sorted(pins, key=lambda one: one.begun):
        database = snapshot.database(pin.place.database)
        session = sessions.get(pin.pid)
        if database is None or session is None:
            continue
        step = wanted.get((database.oid, pin.place.oid)) or wanted.get((0, pin.place.oid))
        stage = LAST_STAGE if step is None else step.stage
        if seen.get(session.pid, LATER) <= stage:
            continue
        lasted_s = (snapshot.taken_at - pin.begun).total_seconds()
        if session.transaction_s is None or session.transaction_s < lasted_s - 1:
            continue  # It has ended that transaction.
        seen[session.pid] = stage
        relation = next((r for r in database.relations or () if r.oid == pin.place.oid), None)
        name = "a relation" if relation is None else f"{relation.schema}.{relation.name}"
        yield Step(
            key=f"lock:{session.pid}",
            kind=StepKind.END_SESSION,
            stage=stage,
            database=None,
            object=session_name(session),
            reason=f"in a transaction of {duration(lasted_s)} it has "
            f"{database.name}.{name} open, and a VACUUM of that waits for a page that is in use",
            choices=(
                Choice(
                    consent=Consent.LOCK,
                    statements=(end_session_seen(session.pid, pin.begun),),
                    loses="what it has not committed, and its open cursors",
                ),
            ),
            pid=session.pid,
        )


def session_name(session: Session) -> str:
    """Who a session is, in words that name it alone."""
    who = " ".join(
        word for word in (session.user, session.application and f'"{session.application}"') if word
    )
    place = f" in {session.database}" if session.database else ""
    return f"{session.backend} {session.pid}{place}{f' ({who})' if who else ''}"
