"""Each kind of blocker from the snapshot it shows in: its name, age, scope and the exact action."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import pytest

from appliance.dbops.blockers.blocker import Blocker, BlockerKind
from appliance.dbops.blockers.blockers import Watch, blockers
from appliance.dbops.blockers.damage import Damage, DamageKind
from appliance.dbops.blockers.holders import holders
from appliance.dbops.blockers.horizon import horizons
from appliance.dbops.limits import ID_SPACE, STOP_AGE, WARN_AGE, Stage
from appliance.dbops.snapshot.rates import Rate
from appliance.dbops.snapshot.snapshot import (
    Lock,
    MemberSpace,
    Relation,
    ServerCount,
    Snapshot,
    Vacuum,
)
from tests.unit.dbops.clusters import (
    APP_OID,
    SETTINGS,
    catalog,
    database,
    prepared,
    relation,
    session,
    slot,
    snapshot,
    standby,
    temp_namespace,
    temp_table,
    template0,
)

OLD = 1_900_000_000
KIND = BlockerKind
EVERYTHING = "every table of every database"
APP = "every table of database app"
APP_AND_SHARED = f"{APP}, and the shared catalogs of every database"
ONE = "one relation of database app"
STOPPED = {"xid_age": STOP_AGE}


def lock(**changed: object) -> Lock:
    values: dict[str, object] = {
        "database_oid": APP_OID,
        "relation_oid": 16_400,
        "mode": "ShareUpdateExclusiveLock",
        "granted": True,
        "pid": 4711,
        "gid": None,
    }
    return Lock(**{**values, **changed})  # type: ignore[arg-type]


def vacuum(**changed: object) -> Vacuum:
    values: dict[str, object] = {
        "pid": 500,
        "database": "app",
        "relation_oid": 16_400,
        "automatic": True,
        "to_prevent_wraparound": True,
    }
    return Vacuum(**{**values, **changed})  # type: ignore[arg-type]


def with_old_table(**changed: object) -> Snapshot:
    """`app` and its table are of age OLD."""
    old = database(xid_age=OLD, relations=(relation(xid_age=OLD),), current=True)
    return snapshot(databases=(old, template0()), **changed)


def with_temp_table(age: int, *owners: int, app: int | None = None, **changed: object) -> Snapshot:
    """A temporary table of an age; `app` is as old as it, or as told."""
    holder = database(
        xid_age=age if app is None else app,
        relations=(catalog(), temp_table(xid_age=age)),
        temp_namespaces=(temp_namespace(*owners),),
    )
    return snapshot(databases=(holder, template0()), **changed)


def of_kind(found: tuple[Blocker, ...], kind: BlockerKind) -> Blocker:
    (blocker,) = (item for item in found if item.kind == kind)
    return blocker


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is in a cluster, and the one blocker of its kind that it makes."""

    kind: BlockerKind
    cluster: Snapshot
    id: str
    age: int | None
    scope: str
    actions: tuple[str, ...]
    damages: tuple[Damage, ...] = ()
    rate: Rate | None = None


PAGE = Damage(
    kind=DamageKind.PAGE,
    database="app",
    relation_oid=16_400,
    schema="public",
    relation="turns",
    index=None,
    block=5,
    message="invalid page in block 5 of relation base/16384/16400",
)
INDEX = Damage(
    kind=DamageKind.INDEX,
    database="app",
    relation_oid=16_400,
    schema="public",
    relation="turns",
    index="turns_key",
    block=None,
    message="right sibling's left-link doesn't match",
)
FAST = Rate(
    over_s=60.0, xids_per_s=30_000.0, mxids_per_s=0.0, members_per_s=0.0, wal_bytes_per_s=1.0
)

CASES = (
    Case(
        kind=KIND.IDLE_IN_TRANSACTION,
        cluster=snapshot(sessions=(session(state="idle in transaction", xid_age=OLD),)),
        id="pid 4711",
        age=OLD,
        scope=APP_AND_SHARED,
        actions=("SELECT pg_terminate_backend(4711, 5000);",),
    ),
    Case(
        kind=KIND.LONG_TRANSACTION,
        cluster=snapshot(sessions=(session(xmin_age=OLD),)),
        id="pid 4711",
        age=OLD,
        scope=APP_AND_SHARED,
        actions=("SELECT pg_terminate_backend(4711, 5000);",),
    ),
    Case(
        kind=KIND.STANDBY_FEEDBACK,
        cluster=snapshot(
            standbys=(standby(xmin_age=OLD),),
            sessions=(session(pid=88, backend="walsender", xmin_age=OLD),),
        ),
        id="pid 88",
        age=OLD,
        scope=EVERYTHING,
        actions=(
            "ALTER SYSTEM SET hot_standby_feedback = off; SELECT pg_reload_conf();",
            "SELECT pg_terminate_backend(88, 5000);",
        ),
    ),
    Case(
        kind=KIND.PREPARED_TRANSACTION,
        cluster=snapshot(prepared=(prepared(xid_age=OLD),)),
        id="gid it's left",
        age=OLD,
        scope=APP_AND_SHARED,
        actions=("COMMIT PREPARED 'it''s left';", "ROLLBACK PREPARED 'it''s left';"),
    ),
    Case(
        kind=KIND.LOGICAL_SLOT,
        cluster=snapshot(slots=(slot(active_pid=None, catalog_xmin_age=OLD),)),
        id="slot cdc",
        age=OLD,
        scope="the system catalogs of every database",
        actions=("SELECT pg_drop_replication_slot('cdc');",),
    ),
    Case(
        kind=KIND.PHYSICAL_SLOT,
        cluster=snapshot(
            slots=(
                slot(
                    name="replica",
                    logical=False,
                    plugin=None,
                    database=None,
                    xmin_age=OLD,
                    catalog_xmin_age=None,
                ),
            )
        ),
        id="slot replica",
        age=OLD,
        scope=EVERYTHING,
        actions=(
            "ALTER SYSTEM SET hot_standby_feedback = off; SELECT pg_reload_conf();",
            "SELECT pg_terminate_backend(99, 5000); SELECT pg_drop_replication_slot('replica');",
        ),
    ),
    Case(
        kind=KIND.ORPHANED_TEMP_TABLE,
        cluster=with_temp_table(OLD),
        id='app: "pg_temp_3"."scratch"',
        age=OLD,
        scope=ONE,
        actions=('DROP TABLE "pg_temp_3"."scratch" CASCADE;',),
    ),
    Case(
        kind=KIND.ORPHANED_TEMP_TABLE,
        cluster=with_temp_table(STOP_AGE),
        id='app: "pg_temp_3"."scratch"',
        age=STOP_AGE,
        scope=ONE,
        actions=(
            "appliance db run --single-user",
            "printf '%s\\n' 'DROP TABLE \"pg_temp_3\".\"scratch\" CASCADE;' | "
            "postgres --single -D '/data/it'\"'\"'s' app",
        ),
    ),
    Case(
        kind=KIND.LIVE_TEMP_TABLE,
        cluster=with_temp_table(OLD, 4711, sessions=(session(xmin_age=None),)),
        id='app: "pg_temp_3"."scratch"',
        age=OLD,
        scope=ONE,
        actions=(
            'VACUUM "pg_temp_3"."scratch";',
            "SELECT pg_terminate_backend(4711, 5000);",
        ),
    ),
    # Ending the owner in the stop would make it an orphan: it is not offered.
    Case(
        kind=KIND.LIVE_TEMP_TABLE,
        cluster=with_temp_table(STOP_AGE, 4711),
        id='app: "pg_temp_3"."scratch"',
        age=STOP_AGE,
        scope=ONE,
        actions=('VACUUM "pg_temp_3"."scratch";',),
    ),
    Case(
        kind=KIND.LOCK,
        cluster=with_old_table(locks=(lock(),), sessions=(session(xmin_age=None),)),
        id='pid 4711, ShareUpdateExclusiveLock on app: "public"."turns"',
        age=OLD,
        scope=ONE,
        actions=("SELECT pg_terminate_backend(4711, 5000);",),
    ),
    Case(
        kind=KIND.LOCK,
        cluster=with_old_table(locks=(lock(pid=None, gid="left"),)),
        id='gid left, ShareUpdateExclusiveLock on app: "public"."turns"',
        age=OLD,
        scope=ONE,
        actions=("COMMIT PREPARED 'left';", "ROLLBACK PREPARED 'left';"),
    ),
    # A shared catalog's lock names no database: it is told where the snapshot was read.
    Case(
        kind=KIND.LOCK,
        cluster=with_old_table(locks=(lock(database_oid=0),)),
        id='pid 4711, ShareUpdateExclusiveLock on app: "public"."turns"',
        age=OLD,
        scope=ONE,
        actions=("SELECT pg_terminate_backend(4711, 5000);",),
    ),
    Case(
        kind=KIND.LOCK,
        cluster=with_old_table(
            locks=(lock(pid=500),),
            vacuums=(vacuum(),),
            sessions=(session(pid=500, backend="autovacuum worker", vacuuming=True),),
        ),
        id='pid 500, ShareUpdateExclusiveLock on app: "public"."turns"',
        age=OLD,
        scope=ONE,
        actions=(),
    ),
    Case(
        kind=KIND.DAMAGED_PAGE,
        cluster=with_old_table(),
        damages=(PAGE,),
        id='app: "public"."turns", block 5',
        age=OLD,
        scope=ONE,
        actions=(
            "SELECT * FROM verify_heapam('\"public\".\"turns\"'::regclass, false, false, 'none'::text, "
            "NULL::bigint, NULL::bigint);",
            "SET zero_damaged_pages = on; "
            'VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF) "public"."turns";',
        ),
    ),
    Case(
        kind=KIND.MISSING_FILE,
        cluster=with_old_table(),
        damages=(replace(PAGE, kind=DamageKind.FILE, block=None),),
        id='app: "public"."turns"',
        age=OLD,
        scope=ONE,
        actions=('DROP TABLE "public"."turns";',),
    ),
    Case(
        kind=KIND.DAMAGED_INDEX,
        cluster=with_old_table(),
        damages=(INDEX,),
        id='app: index "public"."turns_key" of "public"."turns"',
        age=OLD,
        scope=ONE,
        actions=(
            'VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF) "public"."turns";',
            'REINDEX INDEX CONCURRENTLY "public"."turns_key";',
        ),
    ),
    Case(
        kind=KIND.OLD_DATABASE,
        cluster=with_old_table(),
        id="database app",
        age=OLD,
        scope=APP,
        actions=("appliance db plan",),
    ),
    Case(
        kind=KIND.UNCONNECTABLE_DATABASE,
        cluster=snapshot(databases=(database(), template0(xid_age=OLD))),
        id="database template0",
        age=OLD,
        scope="every table of database template0",
        actions=(
            "ALTER SYSTEM SET autovacuum_naptime = '1s'; SELECT pg_reload_conf();",
            'ALTER DATABASE "template0" ALLOW_CONNECTIONS true;',
        ),
    ),
    # ALTER DATABASE takes an XID, and there is none.
    Case(
        kind=KIND.UNCONNECTABLE_DATABASE,
        cluster=snapshot(databases=(database(), template0(**STOPPED))),
        id="database template0",
        age=STOP_AGE,
        scope="every table of database template0",
        actions=("ALTER SYSTEM SET autovacuum_naptime = '1s'; SELECT pg_reload_conf();",),
    ),
    Case(
        kind=KIND.STALE_DATFROZENXID,
        cluster=snapshot(databases=(database(xid_age=OLD), template0())),
        id="database app",
        age=OLD,
        scope=APP,
        actions=("VACUUM (ONLY_DATABASE_STATS);",),
    ),
    Case(
        kind=KIND.STALE_DATFROZENXID,
        cluster=snapshot(version=150_018, databases=(database(mxid_age=OLD), template0())),
        id="database app",
        age=1000,
        scope=APP,
        actions=("VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF) pg_catalog.pg_am;",),
    ),
    Case(
        kind=KIND.BURN_RATE,
        cluster=snapshot(),
        rate=FAST,
        id="30,000 XIDs a second",
        age=1000,
        scope=EVERYTHING,
        actions=(
            "SELECT datname, xact_commit + xact_rollback AS transactions "
            "FROM pg_stat_database ORDER BY 2 DESC;",
        ),
    ),
    Case(
        kind=KIND.MEMBER_SPACE,
        cluster=snapshot(members=MemberSpace(used=3_664_640_000, next_offset=0)),
        id=f"3,664,640,000 of {ID_SPACE:,} members",
        age=1000,
        scope=EVERYTHING,
        actions=(
            "SET vacuum_multixact_freeze_min_age = 0; SET vacuum_multixact_freeze_table_age = 0; "
            "VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF);",
        ),
    ),
    *(
        Case(
            kind=KIND.AUTOVACUUM_OFF,
            cluster=cluster,
            id="autovacuum",
            age=1000,
            scope=EVERYTHING,
            actions=(
                "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; "
                "ALTER SYSTEM RESET autovacuum_naptime; SELECT pg_reload_conf();",
            ),
        )
        for cluster in (
            snapshot(settings={**SETTINGS, "autovacuum": "off"}),
            snapshot(settings={**SETTINGS, "track_counts": "off"}),
            snapshot(settings={**SETTINGS, "autovacuum_naptime": "2147483"}),
            snapshot(autovacuum_launcher=False),
        )
    ),
    Case(
        kind=KIND.AUTOVACUUM_STARVED,
        cluster=with_old_table(
            sessions=tuple(
                session(pid=pid, backend="autovacuum worker", xmin_age=None, vacuuming=True)
                for pid in (500, 501, 502)
            )
        ),
        id="autovacuum",
        age=OLD,
        scope=EVERYTHING,
        actions=("ALTER SYSTEM SET autovacuum_vacuum_cost_delay = 0; SELECT pg_reload_conf();",),
    ),
    Case(
        kind=KIND.SYNCHRONOUS_STANDBY,
        cluster=snapshot(settings={**SETTINGS, "synchronous_standby_names": "gone"}),
        id="synchronous_standby_names = gone",
        age=None,
        scope=EVERYTHING,
        actions=("ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();",),
    ),
    Case(
        kind=KIND.STALE_LIMIT,
        cluster=snapshot(counted=ServerCount(xid_age=STOP_AGE, mxid_age=0)),
        id="transaction IDs",
        age=None,
        scope=EVERYTHING,
        actions=("VACUUM (ONLY_DATABASE_STATS);",),
    ),
    Case(
        kind=KIND.STALE_LIMIT,
        cluster=snapshot(counted=ServerCount(xid_age=STOP_AGE + 1, mxid_age=STOP_AGE)),
        id="multixact IDs",
        age=None,
        scope=EVERYTHING,
        actions=("VACUUM (FREEZE, INDEX_CLEANUP OFF, TRUNCATE OFF);",),
    ),
)


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{number}-{case.kind}" for number, case in enumerate(CASES)]
)
def test_a_blocker_is_told_with_its_age_scope_and_exact_action(case: Case) -> None:
    found = of_kind(blockers(case.cluster, rate=case.rate, damages=case.damages), case.kind)
    assert (found.id, found.age, found.scope) == (case.id, case.age, case.scope)
    assert tuple(action.text for action in found.actions) == case.actions


def test_the_table_has_every_kind() -> None:
    assert {case.kind for case in CASES} == set(BlockerKind)


@pytest.mark.parametrize(
    "cluster",
    [
        snapshot(),
        snapshot(sessions=(session(xmin_age=OLD, own=True),)),
        # A plain VACUUM's own snapshot holds nothing back.
        snapshot(sessions=(session(xmin_age=OLD, vacuuming=True),)),
        # It shows the snapshot of its leader, which is told.
        snapshot(sessions=(session(xmin_age=OLD, backend="parallel worker"),)),
        # Invalidated slots count no more, and slots in use are their consumer's matter while young.
        snapshot(slots=(slot(catalog_xmin_age=OLD, wal_status="lost"), slot(name="b"))),
        snapshot(sessions=(session(state="idle in transaction", xid_age=5),)),
        snapshot(prepared=(prepared(),)),
        # DROP DATABASE was interrupted: the server leaves its age out of the limit.
        snapshot(databases=(database(), database(name="half", dropping=True, xid_age=OLD))),
        # A lock on a young table keeps no VACUUM waiting that matters.
        snapshot(locks=(lock(),)),
        with_old_table(locks=(lock(granted=False),)),
        # Where other users' sessions may not be seen, autovacuum's launcher cannot be either.
        snapshot(autovacuum_launcher=None),
        snapshot(in_recovery=True, autovacuum_launcher=False),
        snapshot(members=None),
    ],
)
def test_nothing_is_told_that_holds_nothing_back(cluster: Snapshot) -> None:
    assert {item.kind for item in blockers(cluster)} <= {KIND.OLD_DATABASE}


def test_what_is_young_in_ids_is_told_once_it_has_lasted() -> None:
    cluster = snapshot(
        sessions=(
            session(pid=1, state="idle in transaction", transaction_s=301.0),
            session(pid=2, state="active", transaction_s=3599.0),
            session(pid=3, state="active", transaction_s=3600.0),
            session(pid=4, backend="autovacuum worker", transaction_s=9999.0),
        ),
        prepared=(prepared(prepared_s=300.0),),
        slots=(slot(active_pid=None),),
    )
    assert {item.id for item in blockers(cluster)} == {
        "pid 1",
        "pid 3",
        "gid it's left",
        "slot cdc",
    }
    # A slot that nobody reads is told however young it is.
    for age, told in ((6, 1), (5, 6)):
        watch = Watch(xid_age_min=age, idle_s_min=inf, transaction_s_min=inf, prepared_s_min=inf)
        assert len([item for item in blockers(cluster, watch) if item.age == 5]) == told


def test_causes_come_before_effects_and_the_oldest_first() -> None:
    stuck = database(xid_age=STOP_AGE, relations=(relation(xid_age=STOP_AGE),))
    cluster = snapshot(
        databases=(stuck, template0(**STOPPED)),
        sessions=(session(xmin_age=WARN_AGE + 5), session(pid=2, xmin_age=20_000_000)),
        slots=(slot(catalog_xmin_age=STOP_AGE),),
    )
    assert [item.id for item in blockers(cluster)] == [
        "slot cdc",
        "pid 4711",
        "database app",
        "database template0",
        "pid 2",
    ]


def test_ending_the_owner_of_an_old_temporary_table_is_called_wrong_in_the_stop() -> None:
    cluster = with_temp_table(STOP_AGE, 4711, sessions=(session(xmin_age=STOP_AGE),))
    found = of_kind(blockers(cluster), KIND.LONG_TRANSACTION)
    assert found.actions[0].consequence.startswith("WRONG")


def test_an_autovacuum_worker_is_to_be_waited_for() -> None:
    worker = session(backend="autovacuum worker", xmin_age=OLD)
    found = of_kind(blockers(snapshot(sessions=(worker,))), KIND.LONG_TRANSACTION)
    assert found.automatic
    assert found.actions[0].text == "SELECT pg_cancel_backend(4711);"


def test_who_holds_a_table_depends_on_its_database_and_its_kind() -> None:
    table, pg_class, shared = relation(), catalog(), catalog(oid=1262, shared=True)
    app = database(relations=(table, pg_class, shared))
    other = database(name="other", oid=1)
    cluster = snapshot(
        databases=(app, other),
        sessions=(session(xmin_age=30), session(pid=2, database="other", xmin_age=50)),
        slots=(slot(catalog_xmin_age=40),),
    )

    def holder(where: int, what: Relation) -> str | None:
        database = cluster.databases[where]
        held = [one for one in holders(cluster) if one.reach.holds(database, what)]
        return max(held, key=lambda one: one.age or 0).id if held else None

    assert holder(0, table) == "pid 4711"
    assert holder(0, pg_class) == "slot cdc"
    assert holder(0, shared) == "pid 2"
    assert holder(1, table) == "pid 2"
    assert holder(0, relation(user_catalog=True)) == "slot cdc"
    assert holder(0, temp_table()) is None
    told = [
        (item.database, item.data and item.data.id, item.catalogs and item.catalogs.id)
        for item in horizons(cluster)
    ]
    assert told == [("app", "pid 4711", "pid 2"), ("other", "pid 2", "pid 2")]


@pytest.mark.parametrize(
    ("age", "stage"),
    [
        (240_000_000, Stage.OK),
        (240_000_001, Stage.LAGGING),
        (250_000_000, Stage.LAGGING),
        (1_600_000_000, Stage.FAILSAFE),
        (1_900_000_000, Stage.FAILSAFE),
        (2_107_483_646, Stage.FAILSAFE),
        (2_107_483_647, Stage.WARN),
        (2_144_483_646, Stage.WARN),
        (2_144_483_647, Stage.STOPPED),
    ],
)
def test_a_stage_begins_where_the_server_begins_it(age: int, stage: Stage) -> None:
    cluster = snapshot(databases=(database(xid_age=age), template0()))
    assert cluster.stage == stage
    assert cluster.stopped == (stage == Stage.STOPPED)


@pytest.mark.parametrize(
    ("names", "states", "is_told"),
    [
        ("", (), False),
        ("  ", (), False),
        ("a", (), True),
        ("*", ("async", "potential"), True),
        ("a", ("sync",), False),
        ("a, b", ("sync", "potential"), False),
        ("2 (a, b)", ("sync", "potential"), True),
        ("FIRST 2 (a, b)", ("sync", "sync"), False),
        ("any 2 (a, b, c)", ("quorum",), True),
        ("ANY 2(a, b, c)", ("quorum", "quorum", "async"), False),
        ('"FIRST 2 (x"', ("sync",), False),
        ("a", (None,), False),  # whoever may not see it knows nothing
    ],
)
def test_a_standby_that_commits_wait_for_is_told_when_there_are_too_few(
    names: str, states: tuple[str | None, ...], *, is_told: bool
) -> None:
    here = tuple(standby(sync_state=state, xmin_age=None) for state in states)
    settings = {**SETTINGS, "synchronous_standby_names": names}
    found = blockers(snapshot(settings=settings, standbys=here))
    assert [one.kind for one in found] == [BlockerKind.SYNCHRONOUS_STANDBY] * is_told
    on_standby = blockers(snapshot(settings=settings, standbys=here, in_recovery=True))
    assert on_standby == ()
