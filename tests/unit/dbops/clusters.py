"""A healthy cluster as a snapshot, and what a test puts into it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from appliance.dbops.snapshot.snapshot import (
    Database,
    MemberSpace,
    PreparedTransaction,
    Relation,
    RelationKind,
    Session,
    Slot,
    Snapshot,
    Standby,
    TempNamespace,
)

TAKEN_AT = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
APP_OID = 16_384
SETTINGS = {
    "autovacuum": "on",
    "autovacuum_freeze_max_age": "200000000",
    "autovacuum_max_workers": "3",
    "autovacuum_multixact_freeze_max_age": "400000000",
    "autovacuum_naptime": "60",
    "data_directory": "/data/it's",
    "track_counts": "on",
    "vacuum_failsafe_age": "1600000000",
    "vacuum_multixact_failsafe_age": "1600000000",
}


def relation(**changed: Any) -> Relation:
    """A young table `public.turns` of 1,000 pages."""
    young = Relation(
        oid=16_400,
        schema="public",
        name="turns",
        kind=RelationKind.TABLE,
        toast_owner=None,
        temporary=False,
        unlogged=False,
        shared=False,
        user_catalog=False,
        xid_age=1000,
        mxid_age=10,
        pages=1000,
        pages_all_visible=900,
        pages_all_frozen=800,
        rows=10_000.0,
        rows_live=9000,
        rows_dead=1000,
        options=(),
        last_vacuum=None,
        last_autovacuum=TAKEN_AT,
    )
    return replace(young, **changed)


def catalog(**changed: Any) -> Relation:
    """`pg_class`."""
    return relation(**{"oid": 1259, "schema": "pg_catalog", "name": "pg_class", **changed})


def database(**changed: Any) -> Database:
    """A young database `app` with one table and one catalog."""
    young = Database(
        oid=APP_OID,
        name="app",
        connectable=True,
        template=False,
        current=False,
        dropping=False,
        xid_age=1000,
        mxid_age=10,
        relations=(catalog(), relation()),
        temp_namespaces=(),
    )
    return replace(young, **changed)


def template0(**changed: Any) -> Database:
    """The database that takes no connections."""
    closed: dict[str, Any] = {
        "oid": 4,
        "name": "template0",
        "connectable": False,
        "template": True,
        "relations": None,
        "temp_namespaces": None,
    }
    return database(**{**closed, **changed})


def snapshot(**changed: Any) -> Snapshot:
    """A healthy cluster of two databases on 18."""
    healthy = Snapshot(
        taken_at=TAKEN_AT,
        system_id="7000000000000000001",
        version=180_006,
        version_text="18.6",
        in_recovery=False,
        superuser=True,
        block_size=8192,
        has_lz4=False,
        server_started_s=0.0,
        next_xid=5_000_000_000,
        next_mxid=1000,
        wal_position=1 << 40,
        members=MemberSpace(segments=1, used=52_352, next_offset=100),
        databases=(database(), template0()),
        sessions=(),
        prepared=(),
        slots=(),
        standbys=(),
        locks=(),
        vacuums=(),
        autovacuum_launcher=True,
        settings=SETTINGS,
        missing=(),
    )
    return replace(healthy, **changed)


def session(**changed: Any) -> Session:
    """A client of `app` in a transaction of a second, that holds nothing of age."""
    young = Session(
        pid=4711,
        backend="client backend",
        database="app",
        user="chat",
        application="report",
        client="10.0.0.7",
        state="active",
        wait=None,
        xmin_age=5,
        xid_age=None,
        transaction_s=1.0,
        state_s=1.0,
        query="SELECT count(*) FROM turns",
        own=False,
        vacuuming=False,
    )
    return replace(young, **changed)


def prepared(**changed: Any) -> PreparedTransaction:
    """A prepared transaction of a second ago."""
    young = PreparedTransaction(
        gid="it's left", database="app", owner="chat", xid_age=5, prepared_s=1.0
    )
    return replace(young, **changed)


def slot(**changed: Any) -> Slot:
    """A logical slot in use."""
    young = Slot(
        name="cdc",
        logical=True,
        plugin="test_decoding",
        database="app",
        temporary=False,
        active_pid=99,
        xmin_age=None,
        catalog_xmin_age=5,
        wal_status="reserved",
        wal_kept_bytes=0,
    )
    return replace(young, **changed)


def standby(**changed: Any) -> Standby:
    """A standby whose feedback is young."""
    young = Standby(
        pid=88,
        application="replica",
        client="10.0.0.8",
        state="streaming",
        slot=None,
        xmin_age=5,
    )
    return replace(young, **changed)


def temp_namespace(*owners: int) -> TempNamespace:
    """`pg_temp_3`."""
    return TempNamespace(name="pg_temp_3", owners=owners)


def temp_table(**changed: Any) -> Relation:
    """`pg_temp_3.scratch`."""
    return relation(
        **{"oid": 16_500, "schema": "pg_temp_3", "name": "scratch", "temporary": True, **changed}
    )
