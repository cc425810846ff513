"""A healthy cluster of one database as a snapshot, and what a test puts into it.

Each value is one of `tests/snapshot_builder.py`'s, of a client's ordinary life.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from appliance.dbops.snapshot.snapshot import (
    Database,
    MemberSpace,
    PreparedTransaction,
    Relation,
    Session,
    Slot,
    Snapshot,
    Standby,
)
from tests import snapshot_builder as build
from tests.snapshot_builder import temp_namespace

__all__ = ["temp_namespace"]

TAKEN_AT = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
APP_OID = 16_384
SETTINGS = {
    **build.SETTINGS,
    "autovacuum": "on",
    "autovacuum_max_workers": "3",
    "autovacuum_naptime": "60",
    "data_directory": "/data/it's",
    "track_counts": "on",
}


def relation(**changed: Any) -> Relation:
    """A young table `public.turns` of 1,000 pages."""
    young: dict[str, Any] = {
        "name": "turns",
        "mxid_age": 10,
        "pages": 1000,
        "pages_all_visible": 900,
        "pages_all_frozen": 800,
        "rows_live": 9000,
        "rows_dead": 1000,
        "last_autovacuum": TAKEN_AT,
    }
    return replace(build.relation(16_400), **{**young, **changed})


def catalog(**changed: Any) -> Relation:
    """`pg_class`."""
    return relation(**{"oid": 1259, "schema": "pg_catalog", "name": "pg_class", **changed})


def database(**changed: Any) -> Database:
    """A young database `app` with one table and one catalog."""
    young = replace(build.database("app", catalog(), relation()), oid=APP_OID, xid_age=1000)
    return replace(young, **changed)


def template0(**changed: Any) -> Database:
    """The database that takes no connections."""
    return replace(build.template0(), **{"oid": 4, "mxid_age": 10, **changed})


def snapshot(**changed: Any) -> Snapshot:
    """A healthy cluster of two databases on 18."""
    healthy: dict[str, Any] = {
        "taken_at": TAKEN_AT,
        "system_id": "7000000000000000001",
        "version_text": "18.6",
        "next_xid": 5_000_000_000,
        "wal_position": 1 << 40,
        "members": MemberSpace(used=52_352, next_offset=100),
        "databases": (database(), template0()),
    }
    cluster = {**healthy, **changed}
    settings = cluster.pop("settings", SETTINGS)
    version = cluster.pop("version", 180_006)
    return replace(build.snapshot(version=version), settings=settings, **cluster)


def session(**changed: Any) -> Session:
    """A client of `app` in a transaction of a second, that holds nothing of age."""
    young: dict[str, Any] = {
        "user": "chat",
        "client": "10.0.0.7",
        "state": "active",
        "xmin_age": 5,
        "transaction_s": 1.0,
        "state_s": 1.0,
        "query": "SELECT count(*) FROM turns",
    }
    pid = changed.pop("pid", 4711)
    return build.session(pid, **{**young, **changed})


def prepared(**changed: Any) -> PreparedTransaction:
    """A prepared transaction of a second ago."""
    young = {"owner": "chat", "prepared_s": 1.0}
    return replace(build.prepared("it's left", 5), **{**young, **changed})


def slot(**changed: Any) -> Slot:
    """A logical slot in use."""
    young = {"plugin": "test_decoding", "active_pid": 99}
    return replace(build.slot("cdc", catalog_xmin_age=5), **{**young, **changed})


def standby(**changed: Any) -> Standby:
    """A standby whose feedback is young."""
    young = {"application": "replica", "client": "10.0.0.8"}
    return replace(build.standby(88, 5), **{**young, **changed})


def temp_table(**changed: Any) -> Relation:
    """`pg_temp_3.scratch`."""
    scratch: dict[str, Any] = {
        "oid": 16_500,
        "schema": "pg_temp_3",
        "name": "scratch",
        "temporary": True,
    }
    return relation(**{**scratch, **changed})
