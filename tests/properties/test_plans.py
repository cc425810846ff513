"""Rules that every plan keeps, whoever holds what: on random clusters with ages around the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.dbops.plan.history import History, Pin, RelationKey
from appliance.dbops.plan.plan import Plan, make_plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import StepKind
from appliance.dbops.snapshot.snapshot import Database, Lock, PreparedTransaction, Session, Snapshot
from tests.snapshot_builder import (
    OLD,
    SETTINGS,
    TAKEN_AT,
    YOUNG,
    database,
    idle_in_transaction,
    lock,
    prepared,
    relation,
    slot,
    snapshot,
    standby,
    temp_namespace,
    template0,
    temporary,
)

POLICY = Policy()
FIRST = POLICY.stage1_age
SECOND = POLICY.stage2_age(int(SETTINGS["autovacuum_freeze_max_age"]))
NEAR = 400_000
"""Within what a VACUUM has to win, so that on either side of a limit one waits for the other."""

TABLES, CATALOG, SHARED_CATALOG, TEMPORARY = (20_000, 20_001), 1259, 1260, 20_009
PIDS = (1, 2, 3)
GIDS = ("one", "two")
SESSION_S = 86_400.0

ages = st.sampled_from(
    [
        YOUNG,
        *(limit + near for limit in (SECOND, FIRST) for near in (-NEAR, 0, NEAR)),
        1_000_000_000,
        OLD,
    ]
)
places = st.builds(
    RelationKey, database=st.sampled_from(["app", "other"]), oid=st.sampled_from(TABLES)
)
pins = st.builds(
    Pin,
    place=places,
    pid=st.sampled_from(PIDS),
    begun=st.just(TAKEN_AT - timedelta(seconds=SESSION_S)),
)
histories = st.builds(
    History,
    pins=st.frozensets(pins, max_size=2),
    damaged=st.frozensets(places, max_size=1),
    given_up=st.frozensets(places, max_size=1),
)


@st.composite
def databases(draw: st.DrawFn, name: str) -> Database:
    owned = st.lists(st.sampled_from(PIDS), unique=True, max_size=2)
    owners = draw(owned) if name == "app" else []
    return database(
        name,
        *(relation(oid, draw(ages)) for oid in (*TABLES, CATALOG)),
        relation(SHARED_CATALOG, draw(ages), shared=True),
        temporary(TEMPORARY, draw(ages)),
        temp_namespaces=(temp_namespace(*owners),),
    )


@st.composite
def locks_on(draw: st.DrawFn, found: Sequence[Database]) -> Lock:
    where = draw(st.sampled_from(found))
    oid = draw(st.sampled_from([*TABLES, CATALOG, SHARED_CATALOG]))
    held = lock(
        oid,
        draw(st.sampled_from(PIDS)),
        database_oid=0 if oid == SHARED_CATALOG else where.oid,
    )
    gid = draw(st.none() | st.sampled_from(GIDS))
    return held if gid is None else replace(held, pid=None, gid=gid)


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    found = (draw(databases("app")), draw(databases("other")))
    return snapshot(
        *found,
        template0(draw(ages)),
        sessions=tuple(
            replace(idle_in_transaction(pid), xmin_age=draw(st.none() | ages)) for pid in PIDS
        ),
        prepared=tuple(prepared(gid, draw(ages)) for gid in GIDS),
        slots=(slot("both", xmin_age=draw(ages), catalog_xmin_age=draw(ages)),),
        standbys=(standby(9, draw(ages)),),
        locks=tuple(draw(st.lists(locks_on(found), max_size=4))),
    )


def stage_of(plan: Plan, holder: Session | PreparedTransaction) -> int:
    """The earliest stage that ends a session or a prepared transaction; past the last where none does."""
    return min(
        (
            step.stage
            for step in plan.steps
            if (
                step.pid == holder.pid
                if isinstance(holder, Session)
                else step.key == f"prepared:{holder.database}:{holder.gid}"
            )
        ),
        default=4,
    )


@settings(max_examples=150, deadline=None)
@given(clusters(), histories)
def test_no_step_waits_for_one_of_a_later_stage(seen: Snapshot, past: History) -> None:
    plan = make_plan(seen, POLICY, past)
    stages = {step.key: step.stage for step in plan.steps}
    assert len(stages) == len(plan.steps)
    for step in plan.steps:
        for key in step.needs:
            assert stages[key] <= step.stage


@settings(max_examples=150, deadline=None)
@given(clusters(), histories)
def test_whoever_has_a_table_in_use_is_ended_before_it_is_vacuumed(
    seen: Snapshot, past: History
) -> None:
    plan = make_plan(seen, POLICY, past)
    vacuums = [step for step in plan.steps if step.kind in (StepKind.VACUUM, StepKind.ZERO_PAGES)]
    clients = {one.pid: one for one in seen.sessions}
    transactions = {one.gid: one for one in seen.prepared}
    for step in vacuums:
        assert step.database is not None
        where = seen.database(step.database)
        assert where is not None
        for held in seen.locks:
            on = 0 if step.relation_oid == SHARED_CATALOG else where.oid
            if (held.database_oid, held.relation_oid) == (on, step.relation_oid):
                ends = (
                    stage_of(plan, transactions[held.gid or ""])
                    if held.pid is None
                    else stage_of(plan, clients[held.pid])
                )
                assert ends <= step.stage
        for pin in past.pins:
            if pin.place == RelationKey(database=step.database, oid=step.relation_oid or 0):
                assert stage_of(plan, clients[pin.pid]) <= step.stage
