"""What stands in a VACUUM's way at single relations: temporary tables, locks, damage. Pure.

Never: judges which relations are old enough to matter; it is told from which age on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from appliance.dbops import remedies
from appliance.dbops.blockers.blocker import Action, ActionForm, Blocker, BlockerKind, Reach
from appliance.dbops.blockers.damage import Damage, DamageKind
from appliance.dbops.blockers.holders import (
    AUTOVACUUM_WORKER,
    describe,
    finish_prepared,
    terminate,
)
from appliance.dbops.limits import Stage
from appliance.dbops.quoting import identifier, literal, single_user_command
from appliance.dbops.snapshot.snapshot import (
    AgeMin,
    Database,
    Lock,
    Relation,
    Snapshot,
    TempNamespace,
)

UNKNOWN_FOLDER = "DATA_FOLDER"


def temp_tables(snapshot: Snapshot, age_min: AgeMin) -> Iterator[Blocker]:
    """Old temporary tables: nobody but their owner can vacuum them."""
    for database in snapshot.databases:
        for namespace in database.temp_namespaces or ():
            for relation in database.relations or ():
                # Its TOAST table goes with it.
                if relation.schema == namespace.name and age_min.reached(relation):
                    yield _temp_table(snapshot, database, namespace, relation)


def locks(snapshot: Snapshot, age_min: AgeMin) -> Iterator[Blocker]:
    """Locks that a VACUUM of an old relation would wait for, or wait behind."""
    for database in snapshot.databases:
        old = {item.oid: item for item in database.relations or () if age_min.reached(item)}
        for lock in snapshot.locks:
            here = lock.database_oid == database.oid or (
                lock.database_oid == 0 and database.current
            )
            relation = old.get(lock.relation_oid)
            if lock.delays_vacuum and here and relation is not None:
                yield _lock(snapshot, database, relation, lock)


def damaged(snapshot: Snapshot, damages: Sequence[Damage]) -> Iterator[Blocker]:
    """What a probe or a failed VACUUM found."""
    for damage in damages:
        database = snapshot.database(damage.database)
        relations = () if database is None else database.relations or ()
        relation = next((item for item in relations if item.oid == damage.relation_oid), None)
        schema = None if database is None else database.extensions.get("amcheck")
        yield _damage(snapshot, damage, relation, amcheck_schema=schema)


def _name(database: Database, relation: Relation) -> str:
    return f"{database.name}: {identifier(relation.schema, relation.name)}"


def _temp_table(
    snapshot: Snapshot, database: Database, namespace: TempNamespace, relation: Relation
) -> Blocker:
    owner = namespace.owners[0] if len(namespace.owners) == 1 else None
    if namespace.orphaned:
        detail = "its session is gone; VACUUM passes it over in silence"
        actions = _orphan_actions(snapshot, database, relation)
    else:
        owners = " or ".join(f"pid {pid}" for pid in namespace.owners)
        session = next((item for item in snapshot.sessions if item.pid == owner), None)
        detail = (
            f"owned by {owners}" if session is None else f"owned by {owners}, {describe(session)}"
        )
        actions = _owner_actions(snapshot, database, relation, namespace)
    return Blocker(
        kind=BlockerKind.ORPHANED_TEMP_TABLE if namespace.orphaned else BlockerKind.LIVE_TEMP_TABLE,
        id=_name(database, relation),
        age=relation.xid_age,
        mxid_age=relation.mxid_age,
        stage=_stage(snapshot, relation),
        reach=Reach(database=database.name, relation_oid=relation.oid),
        detail=detail,
        since_s=None,
        actions=actions,
        pid=owner,
        database=database.name,
        relation_oid=relation.oid,
    )


def _orphan_actions(
    snapshot: Snapshot, database: Database, relation: Relation
) -> tuple[Action, ...]:
    drop = f"{remedies.drop_temp_table(relation.schema, relation.name)};"
    if not snapshot.stopped:
        return (
            Action(
                form=ActionForm.SQL,
                text=drop,
                database=database.name,
                consequence="takes an XID, of which there still are some; nobody can read it any more",
            ),
        )
    directory = snapshot.settings.get("data_directory") or UNKNOWN_FOLDER
    if directory.startswith("/proc/"):
        directory = UNKNOWN_FOLDER  # An embedded server knows its folder only as the one it is in.
    stops = (
        "STOPS THE SERVER for a second or two: no session may drop anything while no XID is left"
    )
    by_run = Action(
        form=ActionForm.SHELL,
        text="appliance db run --single-user",
        database=None,
        consequence=f"{stops}; does what the next line does, and starts the server again",
    )
    command = single_user_command(drop, folder=directory, database=database.name)
    if command is None:
        return (by_run,)
    by_hand = Action(
        form=ActionForm.SHELL,
        text=command,
        database=None,
        consequence="by hand: only after pg_ctl stop -m fast, as the server's user; start it again "
        "afterwards",
    )
    return (by_run, by_hand)


def _owner_actions(
    snapshot: Snapshot, database: Database, relation: Relation, namespace: TempNamespace
) -> tuple[Action, ...]:
    vacuum = Action(
        form=ActionForm.SQL,
        text=f"VACUUM {identifier(relation.schema, relation.name)};",
        database=database.name,
        consequence="IN THE OWNER'S OWN SESSION (its application has to do it): anyone else's is no use",
    )
    if snapshot.stopped:
        return (vacuum,)
    return (
        vacuum,
        *(terminate(pid, "its temporary tables are dropped with it") for pid in namespace.owners),
    )


def _lock(snapshot: Snapshot, database: Database, relation: Relation, lock: Lock) -> Blocker:
    session = next((item for item in snapshot.sessions if item.pid == lock.pid), None)
    vacuuming = any(
        item.pid == lock.pid and item.relation_oid == relation.oid for item in snapshot.vacuums
    )
    automatic = vacuuming or (session is not None and session.backend == AUTOVACUUM_WORKER)
    whose = f"gid {lock.gid}" if lock.pid is None else f"pid {lock.pid}"
    actions: tuple[Action, ...] = ()
    if lock.gid is not None:
        actions = finish_prepared(lock.gid, database.name)
    elif lock.pid is not None and not automatic:
        actions = (terminate(lock.pid, "its open transaction is rolled back"),)
    if automatic:
        what = "vacuums it: wait for it"
    elif lock.granted:
        what = "a VACUUM waits until it is given up"
    else:
        what = "it waits for the table itself, and a VACUUM waits behind it"
    return Blocker(
        kind=BlockerKind.LOCK,
        id=f"{whose}, {lock.mode} on {_name(database, relation)}",
        age=relation.xid_age,
        mxid_age=relation.mxid_age,
        stage=_stage(snapshot, relation),
        reach=Reach(database=database.name, relation_oid=relation.oid),
        detail=what if session is None else f"{what}; {describe(session)}",
        since_s=None if session is None else session.transaction_s,
        actions=actions,
        pid=lock.pid,
        gid=lock.gid,
        database=database.name,
        relation_oid=relation.oid,
        automatic=automatic,
    )


def _damage(
    snapshot: Snapshot, damage: Damage, relation: Relation | None, *, amcheck_schema: str | None
) -> Blocker:
    table = identifier(damage.schema, damage.relation)
    if damage.kind is DamageKind.FILE:
        kind, where = BlockerKind.MISSING_FILE, f"{damage.database}: {table}"
        actions = _file_actions(damage)
    elif damage.index is None:
        kind, where = BlockerKind.DAMAGED_PAGE, f"{damage.database}: {table}"
        actions = _page_actions(damage, table, amcheck_schema)
    else:
        index = identifier(damage.schema, damage.index)
        kind, where = BlockerKind.DAMAGED_INDEX, f"{damage.database}: index {index} of {table}"
        actions = _index_actions(damage, table, index)
    block = "" if damage.block is None else f", block {damage.block}"
    return Blocker(
        kind=kind,
        id=f"{where}{block}",
        age=None if relation is None else relation.xid_age,
        mxid_age=None if relation is None else relation.mxid_age,
        stage=snapshot.stage if relation is None else _stage(snapshot, relation),
        reach=Reach(database=damage.database, relation_oid=damage.relation_oid),
        detail=damage.message,
        since_s=None,
        actions=actions,
        database=damage.database,
        relation_oid=damage.relation_oid,
    )


def _file_actions(damage: Damage) -> tuple[Action, ...]:
    return (
        Action(
            form=ActionForm.SQL,
            text=f"{remedies.drop_table(damage.schema, damage.relation)};",
            database=damage.database,
            consequence="LOSES THE WHOLE TABLE, of which this server has nothing to read any more; takes "
            "XIDs, so it cannot be done in the stop. Put the file back from a copy of the data folder, "
            "or have the table in a backup, before",
        ),
    )


def _page_actions(damage: Damage, table: str, amcheck_schema: str | None) -> tuple[Action, ...]:
    vacuum = f"VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF) {table};"
    return (
        Action(
            form=ActionForm.SQL,
            text=f"SELECT * FROM {remedies.check_rows(amcheck_schema, literal(table))};",
            database=damage.database,
            consequence="shows what is wrong (extension amcheck); a page may then be restored from a "
            "backup, or its rows frozen with heap_force_freeze (extension pg_surgery)",
        ),
        Action(
            form=ActionForm.SQL,
            text=f"SET zero_damaged_pages = on; {vacuum}",
            database=damage.database,
            consequence="LOSES THE ROWS of every page that fails its checksum, and in memory alone: "
            "dump and load the table afterwards; `appliance db run --yes zero-damaged-pages` mends "
            "the file",
        ),
    )


def _index_actions(damage: Damage, table: str, index: str) -> tuple[Action, ...]:
    return (
        Action(
            form=ActionForm.SQL,
            text=f"VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF) {table};",
            database=damage.database,
            consequence="freezes the table without a look at its indexes; takes no XID",
        ),
        Action(
            form=ActionForm.SQL,
            text=f"REINDEX INDEX CONCURRENTLY {index};",
            database=damage.database,
            consequence="repairs it, once there are XIDs again",
        ),
    )


def _stage(snapshot: Snapshot, relation: Relation) -> Stage:
    return max(
        snapshot.stage_of_xid_age(relation.xid_age), snapshot.stage_of_mxid_age(relation.mxid_age)
    )
