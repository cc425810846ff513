"""What makes a cluster old without holding any row: unvacuumed databases, autovacuum, the rate. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.counted import counted
from appliance.dbops import remedies
from appliance.dbops.blockers.blocker import Action, ActionForm, Blocker, BlockerKind, Reach
from appliance.dbops.blockers.holders import AUTOVACUUM_WORKER
from appliance.dbops.limits import ID_SPACE, LAGGING_FACTOR, Stage, stage_of_members
from appliance.dbops.quoting import identifier
from appliance.dbops.snapshot.rates import Rate, days_left
from appliance.dbops.snapshot.snapshot import AgeMin, Database, Snapshot

STALE_MIN = 1_000_000
"""IDs by which a database is older than its oldest relation before that is worth a word."""

NAPTIME_S_MAX = 3600
"""Beyond it autovacuum is off in all but name."""

BURN_DAYS_MIN = 7.0
"""Less than this until the stop, at the present rate, is a matter of the rate."""


def old_databases(snapshot: Snapshot, age_min: AgeMin) -> Iterator[Blocker]:
    """Each database that is old itself: to be vacuumed, or only to be told that it was."""
    for database in snapshot.databases:
        if database.dropping or not age_min.reached(database):
            continue
        if not database.connectable:
            yield _unconnectable(snapshot, database)
        elif _is_stale(database, age_min):
            yield _stale(snapshot, database)
        else:
            yield _old(snapshot, database)


def autovacuum(snapshot: Snapshot, age_min: AgeMin) -> Iterator[Blocker]:
    """Autovacuum that is off, or has more to do than it gets done."""
    off = why_off(snapshot)
    if off is not None:
        yield _of_autovacuum(
            snapshot,
            BlockerKind.AUTOVACUUM_OFF,
            detail=off,
            text="ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; "
            "ALTER SYSTEM RESET autovacuum_naptime; SELECT pg_reload_conf();",
            consequence="it begins with the oldest database at once",
        )
        return
    busy = [item for item in snapshot.sessions if item.backend == AUTOVACUUM_WORKER]
    vacuumed = {(item.database, item.relation_oid) for item in snapshot.vacuums}
    waiting = sum(
        (database.name, relation.oid) not in vacuumed
        for database in snapshot.databases
        for relation in database.relations or ()
        if not relation.temporary and age_min.reached(relation)
    )
    if waiting and len(busy) >= snapshot.setting_int("autovacuum_max_workers"):
        yield _of_autovacuum(
            snapshot,
            BlockerKind.AUTOVACUUM_STARVED,
            detail=f"every worker is busy, and {counted(waiting, 'old relation')} left to wait",
            text="ALTER SYSTEM SET autovacuum_vacuum_cost_delay = 0; SELECT pg_reload_conf();",
            consequence="its workers stop pausing: more reading and writing beside the chats",
        )


def burn_rate(snapshot: Snapshot, rate: Rate | None) -> Iterator[Blocker]:
    """XIDs that are used up within days."""
    if rate is None:
        return
    days = days_left(snapshot.xids_left, rate.xids_per_s)
    if days is None or days >= BURN_DAYS_MIN:
        return
    yield Blocker(
        kind=BlockerKind.BURN_RATE,
        id=f"{rate.xids_per_s:,.0f} XIDs a second",
        age=snapshot.xid_age,
        stage=max(Stage.LAGGING, snapshot.stage_of_xid_age(snapshot.xid_age)),
        reach=Reach(),
        detail=f"at this rate writes stop in {days:.2g} days",
        since_s=rate.over_s,
        actions=(
            Action(
                form=ActionForm.SQL,
                text="SELECT datname, xact_commit + xact_rollback AS transactions "
                "FROM pg_stat_database ORDER BY 2 DESC;",
                database=None,
                consequence="shows which database spends them; a batch of writes in one transaction "
                "takes one XID, each savepoint with a write another",
            ),
        ),
    )


def member_space(snapshot: Snapshot) -> Iterator[Blocker]:
    """Space for multixact members that runs out, however young the multixacts are."""
    if snapshot.members is None:
        return
    stage = stage_of_members(snapshot.members.used)
    if stage == Stage.OK:
        return
    yield Blocker(
        kind=BlockerKind.MEMBER_SPACE,
        id=f"{snapshot.members.used:,} of {ID_SPACE:,} members",
        age=snapshot.xid_age,
        mxid_age=snapshot.mxid_age,
        stage=stage,
        reach=Reach(),
        detail="many sessions lock the same rows for sharing (foreign keys do); the space is freed when "
        "the oldest multixacts are frozen in every database, whatever their age",
        since_s=None,
        actions=(
            Action(
                form=ActionForm.SQL,
                text="SET vacuum_multixact_freeze_min_age = 0; "
                "SET vacuum_multixact_freeze_table_age = 0; "
                "VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF);",
                database=None,
                consequence="IN EVERY DATABASE; `appliance db run` does it, the oldest tables first",
            ),
        ),
    )


def why_off(snapshot: Snapshot) -> str | None:
    """Why autovacuum does nothing; None: it works."""
    for name in ("autovacuum", "track_counts"):
        if snapshot.settings[name] != "on":
            return f"{name} is {snapshot.settings[name]}"
    naptime = snapshot.setting_int("autovacuum_naptime")
    if naptime > NAPTIME_S_MAX:
        return f"autovacuum_naptime is {naptime} s: it looks at a database that seldom"
    if snapshot.autovacuum_launcher is False and not snapshot.in_recovery:
        return "autovacuum is on, but its launcher does not run: look into the server's log"
    return None


def _is_stale(database: Database, age_min: AgeMin) -> bool:
    """Whether in whatever IDs the database is old, none of its relations is."""
    if not database.relations:
        return False
    xid_age = max(item.xid_age for item in database.relations)
    mxid_age = max(item.mxid_age for item in database.relations)
    by_xid = database.xid_age >= age_min.xid and xid_age > database.xid_age - STALE_MIN
    by_mxid = database.mxid_age >= age_min.mxid and mxid_age > database.mxid_age - STALE_MIN
    return not by_xid and not by_mxid


def _old(snapshot: Snapshot, database: Database) -> Blocker:
    return _of_database(
        snapshot,
        BlockerKind.OLD_DATABASE,
        database,
        detail="its oldest tables have to be vacuumed; in the stop, writes are refused in every "
        "database until all of them are young enough",
        actions=(
            Action(
                form=ActionForm.SHELL,
                text="appliance db plan",
                database=None,
                consequence="shows which tables, in which order, and how long that takes; "
                "`appliance db run` does it",
            ),
        ),
    )


def _stale(snapshot: Snapshot, database: Database) -> Blocker:
    return _of_database(
        snapshot,
        BlockerKind.STALE_DATFROZENXID,
        database,
        detail="no relation in it is that old: the age in pg_database is out of date",
        actions=(
            Action(
                form=ActionForm.SQL,
                text=f"{remedies.count_database_age(snapshot.major)};",
                database=database.name,
                consequence="looks at the ages of all relations again; takes no XID",
            ),
        ),
    )


def _unconnectable(snapshot: Snapshot, database: Database) -> Blocker:
    by_autovacuum = Action(
        form=ActionForm.SQL,
        text="ALTER SYSTEM SET autovacuum_naptime = '1s'; SELECT pg_reload_conf();",
        database=None,
        consequence="autovacuum goes there by itself within seconds, if it is on; afterwards "
        "ALTER SYSTEM RESET autovacuum_naptime; SELECT pg_reload_conf();",
    )
    name = identifier(database.name)
    by_hand = Action(
        form=ActionForm.SQL,
        text=f"ALTER DATABASE {name} ALLOW_CONNECTIONS true;",
        database=None,
        consequence=f"then VACUUM in it, then ALTER DATABASE {name} ALLOW_CONNECTIONS false; "
        "takes XIDs, so it cannot be done in the stop",
    )
    return _of_database(
        snapshot,
        BlockerKind.UNCONNECTABLE_DATABASE,
        database,
        detail=f"{database.closed_because}, so only autovacuum gets there",
        actions=(by_autovacuum,) if snapshot.stopped else (by_autovacuum, by_hand),
    )


def _of_database(
    snapshot: Snapshot,
    kind: BlockerKind,
    database: Database,
    *,
    detail: str,
    actions: tuple[Action, ...],
) -> Blocker:
    return Blocker(
        kind=kind,
        id=f"database {database.name}",
        age=database.xid_age,
        mxid_age=database.mxid_age,
        stage=max(
            snapshot.stage_of_xid_age(database.xid_age),
            snapshot.stage_of_mxid_age(database.mxid_age),
        ),
        reach=Reach(database=database.name),
        detail=detail,
        since_s=None,
        actions=actions,
        database=database.name,
    )


def _of_autovacuum(
    snapshot: Snapshot, kind: BlockerKind, *, detail: str, text: str, consequence: str
) -> Blocker:
    # A young cluster does not suffer from it yet, and will.
    age = snapshot.xid_age
    lagging = age > LAGGING_FACTOR * snapshot.setting_int("autovacuum_freeze_max_age")
    return Blocker(
        kind=kind,
        id="autovacuum",
        age=age,
        stage=snapshot.stage_of_xid_age(age) if lagging else Stage.OK,
        reach=Reach(),
        detail=detail,
        since_s=None,
        actions=(Action(form=ActionForm.SQL, text=text, database=None, consequence=consequence),),
    )
