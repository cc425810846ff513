"""Reads a snapshot of a cluster: everything that bears on freezing, from PostgreSQL 14 to 18.

Owns the connections it opens. Never: takes a transaction ID or a lock on a user's relation, so that it
works on a cluster that is out of IDs and past tables that are locked; or leaves a part out silently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from appliance.database_failure import DatabaseFailure
from appliance.dbops.names import name_of
from appliance.dbops.snapshot import rows as snapshot_rows
from appliance.dbops.snapshot.member_space import member_space
from appliance.dbops.snapshot.missing import Missing
from appliance.dbops.snapshot.rows import Row
from appliance.dbops.snapshot.snapshot import (
    Database,
    MemberSpace,
    Relation,
    Snapshot,
    TempNamespace,
)
from appliance.dbops.snapshot.temp_owners import NUMBERS_ARE_EXACT, temp_owners
from appliance.dbops.target import APPLICATION_NAME, Connection
from appliance.errors import ApplianceError, DatabaseError
from appliance.named_sql import read_queries

Connect: TypeAlias = Callable[[str | None], Awaitable[Connection]]
"""Opens a session in a database (None: the target's own), as `Target.connect` does."""

QUERIES = read_queries("appliance.dbops", "inspect")

SETTINGS = (
    "autovacuum",
    "autovacuum_freeze_max_age",
    "autovacuum_max_workers",
    "autovacuum_multixact_freeze_max_age",
    "autovacuum_naptime",
    "data_directory",
    "synchronous_standby_names",
    "track_counts",
    "vacuum_failsafe_age",
    "vacuum_multixact_failsafe_age",
    "wal_compression",
)
"""What a snapshot keeps of `pg_settings`."""

_FAILURES = (
    *DatabaseFailure,
    UnicodeDecodeError,  # a name that was given in a database of another encoding
)


async def read_snapshot(connect: Connect) -> Snapshot:
    """The whole cluster, each database that takes connections looked at from inside.

    Raises as `read_cluster` does; what else cannot be read is named in `missing`.
    """
    cluster = await read_cluster(connect)
    databases: list[Database] = []
    missing = list(cluster.missing)
    for database in cluster.databases:
        if database.connectable:
            database = await _look_inside(connect, database, cluster, missing)
        databases.append(database)
    return replace(cluster, databases=tuple(databases), missing=tuple(missing))


async def read_cluster(connect: Connect) -> Snapshot:
    """What one session sees of the whole cluster: cheap, and of no database's relations.

    Raises what `connect` raises, and DatabaseError when the databases cannot even be listed.
    """
    connection = await connect(None)
    missing: list[Missing] = []
    session = _Session(connection, None, missing)
    try:
        head = (await session.must("cluster"))[0]
        databases = await session.must("databases")
        if not head["sees_sessions"]:
            session.miss("other users' sessions", "neither a superuser nor a member of pg_monitor")
        control = await session.rows("control", "the control file")
        settings = await session.must("settings", list(SETTINGS))
        return Snapshot(
            taken_at=head["taken_at"],
            system_id=control[0]["system_id"] if control else "",
            version=head["version"],
            version_text=head["version_text"],
            in_recovery=head["in_recovery"],
            superuser=head["superuser"],
            block_size=head["block_size"],
            segment_bytes=head["segment_bytes"],
            has_lz4=head["has_lz4"],
            server_started_s=head["server_started_s"],
            next_xid=head["next_xid"],
            next_mxid=head["next_mxid"],
            wal_position=head["wal_position"],
            members=await _members(session, control),
            counted=snapshot_rows.counted_of(control),
            databases=tuple(
                snapshot_rows.database_of(row, current=head["database"]) for row in databases
            ),
            sessions=snapshot_rows.sessions_of(await session.rows("sessions", "sessions")),
            prepared=snapshot_rows.prepared_of(
                await session.rows("prepared", "prepared transactions")
            ),
            slots=snapshot_rows.slots_of(await session.rows("slots", "replication slots")),
            standbys=snapshot_rows.standbys_of(await session.rows("standbys", "standbys")),
            locks=snapshot_rows.locks_of(await session.rows("locks", "locks")),
            vacuums=snapshot_rows.vacuums_of(await session.rows("vacuums", "running vacuums")),
            autovacuum_launcher=head["autovacuum_launcher"],
            settings={row["name"]: row["setting"] for row in settings},
            missing=tuple(missing),
        )
    finally:
        await _close(connection)


class _Session:
    """One connection; what cannot be read through it goes to `missing`."""

    def __init__(
        self, connection: Connection, database: str | None, missing: list[Missing]
    ) -> None:
        self._connection = connection
        self._database = database
        self._missing = missing

    async def must(self, query: str, *arguments: object) -> Sequence[Row]:
        """The rows of a query without which there is no snapshot. Raises DatabaseError."""
        try:
            return await self._connection.fetch(QUERIES[query], *arguments)
        except _FAILURES as error:
            raise DatabaseError(f"the database does not tell its state: {_words(error)}") from error

    async def rows(self, query: str, part: str, *arguments: object) -> Sequence[Row]:
        """A query's rows; none, and a reason in `missing`, when it fails."""
        try:
            return await self._connection.fetch(QUERIES[query], *arguments)
        except _FAILURES as error:
            self.miss(part, _words(error))
            return ()

    def miss(self, part: str, reason: str) -> None:
        """Name a part that is not known."""
        self._missing.append(Missing(part=part, database=self._database, reason=reason))


async def _members(session: _Session, control: Sequence[Row]) -> MemberSpace | None:
    """None when it is not known; no file at all is not possible."""
    names = await session.rows("member_segments", "multixact member space")
    if not names or not control:
        return None
    return member_space((row["name"] for row in names), control[0]["next_offset"])


async def _look_inside(
    connect: Connect, database: Database, cluster: Snapshot, missing: list[Missing]
) -> Database:
    """A database with its relations and temporary schemas, as a session in it sees them."""
    try:
        connection = await connect(database.name)
    except (ApplianceError, *_FAILURES) as error:
        missing.append(Missing(part="relations", database=database.name, reason=_words(error)))
        return database
    session = _Session(connection, database.name, missing)
    try:
        # Every database has catalogs, so no rows is a query that failed.
        rows = await session.rows("relations", "relations")
        if not rows:
            return database
        relations = snapshot_rows.relations_of(
            rows,
            bytes_now=await _sizes(session, cluster.segment_bytes),
            block_size=cluster.block_size,
        )
        temp_namespaces = await _temp_namespaces(session, database, relations, cluster)
        extensions = await session.rows("extensions", "extensions for repairs")
    finally:
        await _close(connection)
    return replace(
        database,
        relations=relations,
        temp_namespaces=temp_namespaces,
        extensions=MappingProxyType({row["name"]: name_of(row["schema"]) for row in extensions}),
    )


async def _sizes(session: _Session, segment_bytes: int) -> Mapping[int, int]:
    """The bytes of each relation, by oid, where they could be read."""
    part = "sizes of relations (estimates are used)"
    rows = await session.rows("first_file_bytes", part)
    sizes: dict[int, int] = {row["oid"]: row["bytes"] for row in rows if row["bytes"] is not None}
    full = [oid for oid, size in sizes.items() if size == segment_bytes]
    if full:
        for row in await session.rows("later_file_bytes", part, full):
            sizes[row["oid"]] += row["bytes"]
    return sizes


async def _temp_namespaces(
    session: _Session, database: Database, relations: Sequence[Relation], cluster: Snapshot
) -> tuple[TempNamespace, ...] | None:
    schemas = sorted({item.schema for item in relations if item.temporary and not item.toast_owner})
    if not schemas:
        return ()
    numbers = await session.rows("session_numbers", "owners of temporary tables")
    if not numbers:
        return None
    files = await session.rows("temp_files", "files of temporary tables")
    processes = snapshot_rows.processes_of(numbers, own_application=APPLICATION_NAME)
    return tuple(
        TempNamespace(
            name=schema,
            owners=temp_owners(
                schema,
                database.oid,
                processes,
                exact=cluster.version >= NUMBERS_ARE_EXACT,
                files={row["schema"]: row["modified"] for row in files} if files else None,
                by_clock=cluster.stopped,
            ),
        )
        for schema in schemas
    )


async def _close(connection: Connection) -> None:
    """Politely if the server still answers."""
    try:
        await connection.close(timeout=2)
    except _FAILURES:
        connection.terminate()


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
