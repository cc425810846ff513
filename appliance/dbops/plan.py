"""What brings a cluster back: from a snapshot and a policy, the ordered steps. Pure.

Stage 1 brings writes back: what holds the horizon is ended, then only the relations that are too old are
frozen. Stage 2 restores a comfortable margin, stage 3 repairs what was left out. Never: reads a server.
A plan is made anew whenever something was done, so a step that is done is not in the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from appliance.dbops.plan_blockers import (
    Hold,
    horizon_holds,
    live_temp_step,
    lock_steps,
    owned_temp,
)
from appliance.dbops.plan_databases import autovacuum_step, probe_step, refresh_step
from appliance.dbops.plan_vacuum import (
    AgeLimits,
    age_limits,
    order,
    repair_step,
    vacuum_settings,
    vacuum_step,
)
from appliance.dbops.policy import Policy
from appliance.dbops.quoting import identifier
from appliance.dbops.snapshot import Database, Relation, Snapshot
from appliance.dbops.step import Choice, Consent, Step, StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A relation by where it is."""

    database: str
    oid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What earlier plans of a run did, where a snapshot does not show it."""

    settled: frozenset[str] = frozenset()
    """Keys of steps that are not to be taken again: done, failed for good, or not agreed to."""
    frozen: frozenset[Place] = frozenset()
    """Relations whose index cleanup was left out and is still to be made up for."""
    damaged: frozenset[Place] = frozenset()
    """Relations in which a VACUUM met a page that cannot be read."""
    bad_indexes: frozenset[Place] = frozenset()
    """Relations in whose indexes a repair met damage."""
    rate_bytes_per_s: float | None = None
    """Measured; None before anything large was frozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in the order in which they are taken; VACUUMs next to each other may run at once."""

    taken_at: datetime
    system_id: str
    xids_left: int
    mxids_left: int
    limits: AgeLimits
    steps: tuple[Step, ...]
    rate_bytes_per_s: float
    rate_measured: bool
    maintenance: bool
    """Whether the server's turns wait in its journal during stage 1."""
    notes: tuple[str, ...] = field(default=())
    """What the operator should know: what this plan cannot see or leaves alone."""

    def stage(self, number: int) -> tuple[Step, ...]:
        """The steps of one stage."""
        return tuple(step for step in self.steps if step.stage == number)

    @property
    def next_stage(self) -> int | None:
        """The stage that is worked on now; None when there is nothing to do."""
        return min((step.stage for step in self.steps), default=None)


def make_plan(snapshot: Snapshot, policy: Policy, history: History | None = None) -> Plan:
    """The steps that are left, for this snapshot, after what `history` knows.

    Raises nothing: what cannot be done is a step for a person, or a note.
    """
    past = history or History()
    limits = age_limits(snapshot, policy)
    rate = past.rate_bytes_per_s or policy.rate_bytes_per_s
    temp = list(_temp_steps(snapshot, limits, policy))
    owners = frozenset(step.pid for step in temp if step.pid is not None)
    holds = horizon_holds(snapshot, limits, owners)
    ended = owners | {hold.step.pid for hold in holds if hold.step.pid is not None}
    vacuums = list(_vacuums(snapshot, limits, policy, past, rate, holds))
    wanted = {
        (0 if relation.shared else database.oid, relation.oid): step
        for database, relation, step in vacuums
    }
    steps = [
        *lock_steps(snapshot, wanted, policy, ended),
        *(hold.step for hold in holds),
        *temp,
        *(step for _, _, step in vacuums),
        *_zeroing(snapshot, limits, policy, past),
        *_endings(snapshot, limits, {database.name for database, _, _ in vacuums}, holds),
        *_repairs(snapshot, policy, past, rate, [(d, r) for d, r, _ in vacuums]),
    ]
    left = [s for s in steps if s.stage <= policy.last_stage and s.key not in past.settled]
    if any(step.stage == 1 for step in left):
        left.append(probe_step())
    left.sort(key=lambda step: step.stage)  # stable: within a stage the order is the one above
    return Plan(
        taken_at=snapshot.taken_at,
        system_id=snapshot.system_id,
        xids_left=snapshot.xids_left,
        mxids_left=snapshot.mxids_left,
        limits=limits,
        steps=tuple(left),
        rate_bytes_per_s=rate,
        rate_measured=past.rate_bytes_per_s is not None,
        maintenance=policy.maintenance and any(step.stage == 1 for step in left),
        notes=tuple(_notes(snapshot, limits)),
    )


def _vacuums(
    snapshot: Snapshot,
    limits: AgeLimits,
    policy: Policy,
    past: History,
    rate: float,
    holds: Sequence[Hold],
) -> Iterator[tuple[Database, Relation, Step]]:
    """One step for each relation that is too old, in their order."""
    found = [
        (database, relation)
        for database in snapshot.databases
        for relation in database.relations or ()
        if not relation.temporary
        and Place(database=database.name, oid=relation.oid) not in past.damaged
    ]
    for database, relation in sorted(found, key=lambda pair: order(pair[1])):
        stage = limits.stage_of(relation.xid_age, relation.mxid_age)
        if stage is not None:
            step = vacuum_step(
                snapshot,
                database.name,
                relation,
                stage=stage,
                limits=limits,
                policy=policy,
                rate_bytes_per_s=rate,
            )
            yield database, relation, replace(step, needs=_needs(database, relation, step, holds))


def _needs(
    database: Database, relation: Relation, step: Step, holds: Sequence[Hold]
) -> tuple[str, ...]:
    """What has to be ended before the relation can become younger. Of multixacts nothing is known."""
    if relation.xid_age < step.xid_age_max:
        return ()
    return tuple(hold.step.key for hold in holds if hold.holds(database.name, relation))


def _temp_steps(snapshot: Snapshot, limits: AgeLimits, policy: Policy) -> Iterator[Step]:
    """Old temporary tables, which VACUUM passes over: with their owner, or without one."""
    in_stop = snapshot.xids_left <= 0
    sessions = {session.pid: session for session in snapshot.sessions}
    for database in snapshot.databases:
        for schema, owners, tables in owned_temp(database):
            old = [table for table in tables if limits.stage_of(table.xid_age, table.mxid_age)]
            if not old:
                continue
            oldest = max(old, key=lambda table: max(table.xid_age, table.mxid_age))
            stage = limits.stage_of(oldest.xid_age, oldest.mxid_age)
            assert stage is not None
            if not owners:
                for table in old:
                    yield _orphan_step(database, table, stage, policy, offline=in_stop)
                continue
            names = ", ".join(f"{schema}.{table.name}" for table in old)
            for owner in (sessions[pid] for pid in owners if pid in sessions):
                yield live_temp_step(
                    owner,
                    names,
                    oldest.xid_age,
                    stage=stage,
                    # Which of several it is, PostgreSQL before 16 does not tell.
                    offered=len(owners) == 1 and (policy.single_user or not in_stop),
                    taken_at=snapshot.taken_at,
                )


def _orphan_step(
    database: Database, table: Relation, stage: int, policy: Policy, *, offline: bool
) -> Step:
    name = identifier(table.schema, table.name)
    asked = not offline or policy.single_user
    reason = f"its owner is gone, it is {table.xid_age:,} XIDs old, and VACUUM passes it over"
    if offline:
        reason += (
            "; dropping it takes an XID, which in the stop only single-user mode gives"
            if asked
            else "; in the stop only single-user mode can drop it: stop the server and run this again "
            f"with --single-user, or by hand: echo 'DROP TABLE {name}' | postgres --single -D FOLDER "
            f"{database.name}"
        )
    step = Step(
        key=f"temp:{database.name}:{table.oid}",
        kind=StepKind.DROP_TEMP_OFFLINE if offline else StepKind.DROP_TEMP,
        stage=stage,
        database=database.name,
        object=f"orphaned temporary table {database.name}.{table.schema}.{table.name}",
        reason=reason,
        relation_oid=table.oid,
        xid_age=table.xid_age,
        mxid_age=table.mxid_age,
    )
    if not asked:
        return replace(step, kind=StepKind.ASK)
    consent = Consent.SINGLE_USER if offline else Consent.TEMP_TABLE
    loses = "the rows of a session that has ended, which nobody can read any more"
    return replace(
        step,
        choices=(
            Choice(
                consent=consent,
                statements=(f"DROP TABLE {name}",),
                loses=f"{loses}; the server is stopped and started" if offline else loses,
            ),
        ),
    )


def _zeroing(
    snapshot: Snapshot, limits: AgeLimits, policy: Policy, past: History
) -> Iterator[Step]:
    """For a relation with a page that cannot be read: the one way on that does not restore it."""
    for database in snapshot.databases:
        for relation in database.relations or ():
            stage = limits.stage_of(relation.xid_age, relation.mxid_age)
            place = Place(database=database.name, oid=relation.oid)
            if stage is None or place not in past.damaged:
                continue
            plain = vacuum_step(
                snapshot,
                database.name,
                relation,
                stage=stage,
                limits=limits,
                policy=policy,
                rate_bytes_per_s=policy.rate_bytes_per_s,
            )
            settings = {
                **vacuum_settings(stage, policy, members_short=limits.members_short),
                "zero_damaged_pages": "on",
            }
            yield replace(
                plain,
                key=f"zero:{database.name}:{relation.oid}",
                kind=StepKind.ZERO_PAGES,
                reason="a page of it cannot be read. Restore the page from a backup, or give it up",
                statements=(),
                settings=settings,
                choices=(
                    Choice(
                        consent=Consent.ZERO_DAMAGED_PAGES,
                        statements=plain.statements,
                        loses="every row on the damaged pages (zero_damaged_pages); the pages are copied "
                        "to the state folder first",
                    ),
                ),
            )


def _endings(
    snapshot: Snapshot, limits: AgeLimits, worked_in: set[str], holds: Sequence[Hold]
) -> Iterator[Step]:
    """What advances each database once its relations are young; those that take no connections last,
    for autovacuum goes to the oldest database first."""
    closed = []
    for database in snapshot.databases:
        stage = limits.stage_of(database.xid_age, database.mxid_age)
        if stage is None:
            continue
        if not database.connectable:
            closed.append((database, stage))
        elif database.relations is not None:
            yield refresh_step(
                snapshot, database, limits, stage, stale=database.name not in worked_in
            )
    for database, stage in closed:
        needs = tuple(
            hold.step.key for hold in holds if hold.database is None and hold.age >= limits.xid[0]
        )
        step = autovacuum_step(snapshot, database, limits, stage)
        if step is not None:
            yield replace(step, needs=needs)


def _repairs(
    snapshot: Snapshot,
    policy: Policy,
    past: History,
    rate: float,
    planned: Sequence[tuple[Database, Relation]],
) -> Iterator[Step]:
    """For every relation frozen before, and every one that this plan freezes."""
    now = {Place(database=database.name, oid=relation.oid) for database, relation in planned}
    for database in snapshot.databases:
        for relation in sorted(database.relations or (), key=order):
            place = Place(database=database.name, oid=relation.oid)
            if place not in past.frozen and place not in now:
                continue
            if place in past.bad_indexes:
                yield _reindex_step(database.name, relation)
            yield repair_step(
                snapshot, database.name, relation, policy=policy, rate_bytes_per_s=rate
            )


def _reindex_step(database: str, relation: Relation) -> Step:
    # Beside traffic, but for catalogs, which PostgreSQL rebuilds under a lock only.
    how = "" if relation.catalog else "CONCURRENTLY "
    return Step(
        key=f"reindex:{database}:{relation.oid}",
        kind=StepKind.REINDEX,
        stage=3,
        database=database,
        object=f"{database}.{relation.schema}.{relation.name}",
        reason="an index of it is damaged; its table is not, and the index can be built again",
        statements=(f"REINDEX TABLE {how}{identifier(relation.schema, relation.name)}",),
        relation_oid=relation.oid,
    )


def _notes(snapshot: Snapshot, limits: AgeLimits) -> Iterator[str]:
    if not snapshot.superuser:
        yield "the session is no superuser's: what it may not vacuum stays old"
    for missing in snapshot.missing:
        where = "" if missing.database is None else f" of database {missing.database}"
        yield f"{missing.part}{where} could not be read: {missing.reason}"
    for database in snapshot.databases:
        stage = limits.stage_of(database.xid_age, database.mxid_age)
        if stage is None or database.connectable:
            continue
        if autovacuum_step(snapshot, database, limits, stage) is None:
            yield (
                f"{database.name} takes no connections and is {database.xid_age:,} XIDs old: "
                "autovacuum freezes it at autovacuum_freeze_max_age"
            )
