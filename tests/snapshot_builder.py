"""Snapshots of clusters that nobody has, for tests of what is decided from one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from appliance.dbops.limits import STOP_AGE
from appliance.dbops.snapshot.snapshot import (
    Database,
    Lock,
    MemberSpace,
    PreparedTransaction,
    Relation,
    RelationKind,
    ServerCount,
    Session,
    Slot,
    Snapshot,
    Standby,
    TempNamespace,
)

TAKEN_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS = {
    "autovacuum_freeze_max_age": "200000000",
    "autovacuum_multixact_freeze_max_age": "400000000",
    "vacuum_failsafe_age": "1600000000",
    "vacuum_multixact_failsafe_age": "1600000000",
    "wal_compression": "off",
    "data_directory": "/data",
    "synchronous_standby_names": "",
}
YOUNG = 1000
OLD = STOP_AGE


def relation(oid: int, age: int = YOUNG, **fields: object) -> Relation:
    """A table `t<oid>` of 100 pages in the schema public, or a catalog where the oid is one's."""
    catalog = oid < 12_000
    plain = Relation(
        oid=oid,
        schema="pg_catalog" if catalog else "public",
        name=f"t{oid}",
        kind=RelationKind.TABLE,
        toast_owner=None,
        temporary=False,
        shared=False,
        user_catalog=False,
        xid_age=age,
        mxid_age=0,
        pages=100,
        pages_all_visible=0,
        pages_all_frozen=None,
        rows_live=1000,
        rows_dead=0,
        last_autovacuum=None,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def database(name: str, *relations: Relation, **fields: object) -> Database:
    """A database as old as its oldest relation."""
    plain = Database(
        oid=sum(map(ord, name)),
        name=name,
        connectable=True,
        template=False,
        current=name == "postgres",
        dropping=False,
        xid_age=max((one.xid_age for one in relations), default=YOUNG),
        mxid_age=max((one.mxid_age for one in relations), default=0),
        relations=relations,
        temp_namespaces=(),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def template0(age: int = YOUNG, mxid_age: int = 0) -> Database:
    """A database that takes no connections."""
    return database(
        "template0",
        connectable=False,
        template=True,
        relations=None,
        temp_namespaces=None,
        xid_age=age,
        mxid_age=mxid_age,
    )


def snapshot(
    *databases: Database,
    version: int = 180006,
    settings: Mapping[str, str] | None = None,
    **fields: object,
) -> Snapshot:
    """A cluster of these databases, in which nothing else goes on."""
    plain = Snapshot(
        taken_at=TAKEN_AT,
        system_id="1",
        version=version,
        version_text=str(version),
        in_recovery=False,
        superuser=True,
        block_size=8192,
        segment_bytes=1 << 30,
        has_lz4=False,
        server_started_s=0.0,
        next_xid=3_000_000_000,
        next_mxid=1000,
        wal_position=0,
        members=MemberSpace(used=52_352, next_offset=0),
        counted=ServerCount(xid_age=YOUNG, mxid_age=0),
        databases=databases,
        sessions=(),
        prepared=(),
        slots=(),
        standbys=(),
        locks=(),
        vacuums=(),
        autovacuum_launcher=True,
        settings={**SETTINGS, **(settings or {})},
        missing=(),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def session(pid: int, **fields: object) -> Session:
    """A client of the database app that is idle."""
    plain = Session(
        pid=pid,
        backend="client backend",
        database="app",
        user="ann",
        application="report",
        client=None,
        state="idle",
        xmin_age=None,
        xid_age=None,
        transaction_s=None,
        state_s=5.0,
        query="SELECT 1",
        own=False,
        vacuuming=False,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def idle_in_transaction(pid: int, age: int = OLD) -> Session:
    """A session that holds the horizon."""
    return session(pid, state="idle in transaction", xmin_age=age, transaction_s=86_400.0)


def prepared(gid: str = "transfer", age: int = OLD) -> PreparedTransaction:
    """A prepared transaction of the database app."""
    return PreparedTransaction(
        gid=gid, database="app", owner="ann", xid_age=age, prepared_s=86_400.0
    )


def slot(name: str, *, xmin_age: int | None = None, catalog_xmin_age: int | None = None) -> Slot:
    """A slot that nobody reads."""
    return Slot(
        name=name,
        logical=catalog_xmin_age is not None,
        plugin=None,
        database="app" if catalog_xmin_age is not None else None,
        temporary=False,
        active_pid=None,
        xmin_age=xmin_age,
        catalog_xmin_age=catalog_xmin_age,
        wal_status="reserved",
    )


def standby(pid: int, age: int = OLD) -> Standby:
    """A standby with feedback."""
    return Standby(
        pid=pid,
        application="standby",
        client=None,
        state="streaming",
        sync_state="async",
        slot=None,
        xmin_age=age,
    )


def lock(relation_oid: int, pid: int, *, database_oid: int) -> Lock:
    """A lock that VACUUM waits for."""
    return Lock(
        database_oid=database_oid,
        relation_oid=relation_oid,
        mode="AccessExclusiveLock",
        granted=True,
        pid=pid,
        gid=None,
    )


def temporary(oid: int, age: int = OLD) -> Relation:
    """A temporary table in pg_temp_3."""
    return relation(oid, age, schema="pg_temp_3", temporary=True)


def temp_namespace(*owners: int) -> TempNamespace:
    """pg_temp_3, and who may own it."""
    return TempNamespace(name="pg_temp_3", owners=owners)
