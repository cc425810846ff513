"""What brings a cluster back: from a snapshot and a policy, the ordered steps. Pure.

Stage 1 brings writes back: what holds the horizon is ended, then only the relations that are too old are
frozen. Stage 2 restores a comfortable margin, stage 3 repairs what was left out. Never: reads a server.
A plan is made anew whenever something was done, so a step that is done is not in the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from appliance.dbops.plan.databases import (
    autovacuum_step,
    probe_step,
    recount_step,
    refresh_step,
    unread_step,
)
from appliance.dbops.plan.history import History, RelationKey
from appliance.dbops.plan.holds import (
    GAIN_MIN,
    Hold,
    horizon_holds,
    lock_steps,
    pin_steps,
    prepared_lock_steps,
)
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.repairs import damage_steps, rebuild_steps, repair_steps
from appliance.dbops.plan.step import Step, StepKind
from appliance.dbops.plan.temp import temp_steps
from appliance.dbops.plan.vacuum import AgeLimits, age_limits, order, vacuum_step
from appliance.dbops.snapshot.snapshot import Database, Relation, Snapshot


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
    temp = list(temp_steps(snapshot, limits, policy))
    holds = horizon_holds(snapshot, limits, _ends(temp))
    vacuums = list(_vacuums(snapshot, limits, policy, past, rate, holds))
    endings = list(_endings(snapshot, limits, {database.name for database, _, _ in vacuums}, holds))
    damaged = list(damage_steps(snapshot, limits, policy, past))
    ended = list(_in_time((hold.step for hold in holds), [*(v for _, _, v in vacuums), *endings]))
    # A shared catalog has a row in each database: its lock is in the way of the earliest of them.
    wanted = {
        (0 if relation.shared else database.oid, relation.oid): step
        for database, relation, step in sorted([*vacuums, *damaged], key=lambda one: -one[2].stage)
        if step.kind is not StepKind.ASK
    }
    locks = list(lock_steps(snapshot, wanted, policy, _ends([*temp, *ended])))
    pins = pin_steps(snapshot, past.pins, wanted, _ends([*temp, *ended, *locks]))
    steps = [
        *_earliest(*locks, *pins),
        *_earliest(*prepared_lock_steps(snapshot, wanted, policy), *ended),
        *temp,
        *(step for _, _, step in vacuums),
        *(step for _, _, step in damaged),
        *endings,
        *repair_steps(snapshot, policy, past, rate, [(d, r) for d, r, _ in vacuums]),
    ]
    if past.refused:
        steps.append(recount_step(snapshot))
    rebuilt = [step for step in rebuild_steps(snapshot, past) if step.key not in past.settled]
    left = [s for s in steps if s.stage <= policy.last_stage and s.key not in past.settled]
    if rebuilt or any(step.stage == 1 for step in left):
        left += [probe_step(), *rebuilt]
    elif snapshot.stopped:
        # Repairs take XIDs: in the stop they can only follow a stage 1.
        left = [step for step in left if step.stage < 3]
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
        and relation.nameable
        and RelationKey(database=database.name, oid=relation.oid)
        not in past.damaged | past.bad_rows | past.without_file
    ]
    for database, relation in sorted(found, key=_vacuum_order):
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


def _vacuum_order(pair: tuple[Database, Relation]) -> tuple[bool, str, tuple[bool, int, int]]:
    """Catalogs first, by their database: to move a worker's session takes longer than one of them."""
    database, relation = pair
    place = database.name if relation.catalog else ""
    return (not relation.catalog, place, order(relation))


def _needs(
    database: Database, relation: Relation, step: Step, holds: Sequence[Hold]
) -> tuple[str, ...]:
    """What has to be ended before the relation can become younger. Of multixacts nothing is known."""
    if relation.xid_age < step.xid_age_max:
        return ()
    return _keys(hold for hold in holds if hold.holds(database, relation))


def _ends(steps: Iterable[Step]) -> dict[int, int]:
    """The earliest stage in which a session has one of these steps, by its pid."""
    found: dict[int, int] = {}
    for step in steps:
        if step.pid is not None:
            found[step.pid] = min(step.stage, found.get(step.pid, step.stage))
    return found


def _in_time(steps: Iterable[Step], waiting: Iterable[Step]) -> Iterator[Step]:
    """Each step no later than whatever waits for it, which otherwise would wait without end."""
    needed: dict[str, int] = {}
    for step in waiting:
        for key in step.needs:
            needed[key] = min(step.stage, needed.get(key, step.stage))
    for step in steps:
        yield replace(step, stage=min(step.stage, needed.get(step.key, step.stage)))


def _earliest(*steps: Step) -> Iterable[Step]:
    """One step for what holds several things: that of the earliest stage, of equal ones the last."""
    found: dict[str, Step] = {}
    for step in steps:
        if step.stage <= found.get(step.key, step).stage:
            found[step.key] = step
    return found.values()


def _keys(holds: Iterable[Hold]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hold.step.key for hold in holds))


def _endings(
    snapshot: Snapshot, limits: AgeLimits, worked_in: set[str], holds: Sequence[Hold]
) -> Iterator[Step]:
    """What advances each database once its relations are young, those without connections last.

    Autovacuum goes to the oldest database and to no other, so it is of no use to one of those before
    all others are young.
    """
    closed, others = [], []
    for database in snapshot.databases:
        stage = limits.stage_of(database.xid_age, database.mxid_age)
        if stage is None or database.dropping:
            continue
        if not database.connectable or _has_unnameable(database, limits):
            closed.append((database, stage))
        elif database.relations is not None:
            stale = database.name not in worked_in
            others.append(refresh_step(snapshot, database, limits, stage, stale=stale))
        else:
            others.append(unread_step(snapshot, database, stage))
    yield from others
    for database, stage in closed:
        step = autovacuum_step(snapshot, database, limits, stage)
        if step is not None:
            needs = _closed_needs(database, step, holds)
            before = tuple(one.key for one in others if one.stage <= stage)
            yield replace(step, needs=(*needs, *before))


def _has_unnameable(database: Database, limits: AgeLimits) -> bool:
    """Whether something in it is old that no statement can name."""
    return any(
        limits.stage_of(relation.xid_age, relation.mxid_age) is not None
        for relation in database.relations or ()
        if not relation.nameable and not relation.temporary
    )


def _closed_needs(database: Database, step: Step, holds: Sequence[Hold]) -> tuple[str, ...]:
    """Nearly every hold reaches the shared catalogs, of which each database has its own ages."""
    if database.xid_age < step.xid_age_max:
        return ()
    return _keys(hold for hold in holds if (hold.blocker.age or 0) >= database.xid_age - GAIN_MIN)


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
                f"{database.name}: {database.closed_because}, and it is {database.xid_age:,} XIDs old: "
                "autovacuum freezes it at autovacuum_freeze_max_age"
            )
