"""The values of a snapshot, from the rows of `sql/inspect.sql`. Pure: one function for each query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import asyncpg

from appliance.dbops.names import can_be_entered, name_of, name_or_none
from appliance.dbops.snapshot.snapshot import (
    Database,
    Lock,
    PreparedTransaction,
    Relation,
    RelationKind,
    ServerCount,
    Session,
    Slot,
    Standby,
    Vacuum,
)
from appliance.dbops.snapshot.temp_owners import NumberedProcess

Row: TypeAlias = asyncpg.Record

QUERY_CHARS_MAX = 200
"""Of what a session runs."""

_TRUE = ("true", "on", "yes", "1")


def relations_of(
    rows: Sequence[Row], *, bytes_now: Mapping[int, int], block_size: int
) -> tuple[Relation, ...]:
    """The rows of `relations`; `bytes_now` is the size on disk of those where it is known."""
    owners = {row["toast"]: row["oid"] for row in rows if row["toast"]}
    return tuple(
        _relation(row, owners.get(row["oid"]), bytes_now.get(row["oid"]), block_size)
        for row in rows
    )


def _relation(
    row: Row, toast_owner: int | None, bytes_now: int | None, block_size: int
) -> Relation:
    return Relation(
        oid=row["oid"],
        schema=name_of(row["schema"]),
        name=name_of(row["name"]),
        nameable=can_be_entered(row["schema"], row["name"]),
        kind=RelationKind(row["kind"]),
        toast_owner=toast_owner,
        temporary=row["persistence"] == "t",
        shared=row["shared"],
        user_catalog=row["options"] is not None and _is_user_catalog(row["options"]),
        xid_age=row["xid_age"],
        mxid_age=row["mxid_age"],
        pages=max(0, row["pages"]) if bytes_now is None else bytes_now // block_size,
        pages_all_visible=row["pages_all_visible"],
        pages_all_frozen=row["pages_all_frozen"],
        rows_live=row["rows_live"],
        rows_dead=row["rows_dead"],
        last_autovacuum=row["last_autovacuum"],
    )


def _is_user_catalog(options: Iterable[str]) -> bool:
    values = [item.partition("=")[2] for item in options if item.startswith("user_catalog_table=")]
    return any(value.lower() in _TRUE for value in values)


def database_of(row: Row, *, current: str) -> Database:
    """A row of `databases`; it has not been looked at from inside."""
    name, nameable = name_of(row["name"]), can_be_entered(row["name"])
    return Database(
        oid=row["oid"],
        name=name,
        nameable=nameable,
        connectable=row["connectable"] and nameable,
        template=row["template"],
        current=name == current,
        dropping=row["dropping"],
        xid_age=row["xid_age"],
        mxid_age=row["mxid_age"],
        relations=None,
        temp_namespaces=None,
    )


def sessions_of(rows: Iterable[Row]) -> tuple[Session, ...]:
    """The rows of `sessions`."""
    return tuple(
        Session(
            pid=row["pid"],
            backend=row["backend"] or "unknown",
            database=name_or_none(row["database"]),
            user=name_or_none(row["user_name"]),
            application=row["application"] or "",
            client=row["client"],
            state=row["state"],
            xmin_age=row["xmin_age"],
            xid_age=row["xid_age"],
            transaction_s=row["transaction_s"],
            state_s=row["state_s"],
            query=(row["query"] or b"").decode("utf-8", "replace")[:QUERY_CHARS_MAX],
            own=row["own"],
            vacuuming=row["vacuuming"],
        )
        for row in rows
    )


def processes_of(rows: Iterable[Row], *, own_application: str) -> tuple[NumberedProcess, ...]:
    """The rows of `session_numbers`."""
    return tuple(
        NumberedProcess(
            number=row["number"],
            pid=row["pid"],
            database_oid=row["database_oid"],
            backend=row["backend"] or "unknown",
            started=row["started"],
            virtual_number=row["virtual_number"],
            own=row["application"] == own_application,
        )
        for row in rows
    )


def prepared_of(rows: Iterable[Row]) -> tuple[PreparedTransaction, ...]:
    """The rows of `prepared`."""
    return tuple(
        PreparedTransaction(
            gid=name_of(row["gid"]),
            database=name_of(row["database"]),
            owner=name_of(row["owner"] or b"?"),
            xid_age=row["xid_age"],
            prepared_s=row["prepared_s"],
        )
        for row in rows
    )


def slots_of(rows: Iterable[Row]) -> tuple[Slot, ...]:
    """The rows of `slots`."""
    return tuple(
        Slot(
            name=row["name"],
            logical=row["logical"],
            plugin=row["plugin"],
            database=name_or_none(row["database"]),
            temporary=row["temporary"],
            active_pid=row["active_pid"],
            xmin_age=row["xmin_age"],
            catalog_xmin_age=row["catalog_xmin_age"],
            wal_status=row["wal_status"],
        )
        for row in rows
    )


def counted_of(rows: Sequence[Row]) -> ServerCount | None:
    """The row of `control`, where there is one."""
    if not rows:
        return None
    return ServerCount(xid_age=rows[0]["oldest_xid_age"], mxid_age=rows[0]["oldest_mxid_age"])


def standbys_of(rows: Iterable[Row]) -> tuple[Standby, ...]:
    """The rows of `standbys`."""
    return tuple(
        Standby(
            pid=row["pid"],
            application=row["application"] or "",
            client=row["client"],
            state=row["state"],
            sync_state=row["sync_state"],
            slot=row["slot"],
            xmin_age=row["xmin_age"],
        )
        for row in rows
    )


def locks_of(rows: Iterable[Row]) -> tuple[Lock, ...]:
    """The rows of `locks`."""
    return tuple(
        Lock(
            database_oid=row["database_oid"],
            relation_oid=row["relation_oid"],
            mode=row["mode"],
            granted=row["granted"],
            pid=row["pid"],
            gid=name_or_none(row["gid"]),
        )
        for row in rows
    )


def vacuums_of(rows: Iterable[Row]) -> tuple[Vacuum, ...]:
    """The rows of `vacuums`."""
    return tuple(
        Vacuum(
            pid=row["pid"],
            database=name_of(row["database"]),
            relation_oid=row["relation_oid"],
            automatic=row["automatic"],
            to_prevent_wraparound=row["to_prevent_wraparound"],
        )
        for row in rows
    )
