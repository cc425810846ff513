"""The session that a repair's worker has: in one database, kept from step to step while it stays there.

Owns them. Never: runs a step, or keeps a session that has failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import asyncpg

from appliance.database_failure import DatabaseFailure
from appliance.dbops.target import Connection, Target, is_superuser, without_event_triggers

END_WITH_CLIENT = "1s"
"""A server process notices within it that its client was killed, and ends what it was doing."""


WAL_COMPRESSION = "lz4"
"""Where the server was built with it: 13 % of the WAL on 15, and slightly faster (pglz is slower)."""


class MaintenanceSessions:
    """At most one session at a time, so that a run takes few of the server's connections however many
    databases there are; used by one task at a time."""

    def __init__(self, target: Target, lock_timeout_ms: int) -> None:
        self._target = target
        self._lock_timeout_ms = lock_timeout_ms
        self._connection: Connection | None = None
        self._database: str | None = None
        self._settings: dict[str, str] = {}

    async def get(
        self, database: str | None, settings: Mapping[str, str] | None = None
    ) -> Connection:
        """A session that no timeout ends, with these settings; raises as Target.connect does.

        One in another database is closed. The server's own defaults may be made for an application's
        sessions, or for the emergency.
        """
        connection = self._connection
        if connection is None or connection.is_closed() or self._database != database:
            await self.close()
            connection = await self._target.connect(
                database, statement_timeout_ms=0, lock_timeout_ms=self._lock_timeout_ms
            )
            self._connection, self._database, self._settings = connection, database, {}
            await connection.execute(f"SET client_connection_check_interval = '{END_WITH_CLIENT}'")
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute("SET idle_session_timeout = 0")
            if connection.get_server_version().major >= 17:
                await connection.execute("SET transaction_timeout = 0")
            if is_superuser(connection):
                # Event triggers are the application's: one may refuse what a repair enters.
                for name, value in without_event_triggers(connection).items():
                    await connection.execute(f"SET {name} = {value}")
            with contextlib.suppress(
                asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError
            ):
                await connection.execute(f"SET wal_compression = '{WAL_COMPRESSION}'")
        await self._apply(connection, self._settings, settings or {})
        return connection

    async def _apply(
        self, connection: Connection, current: dict[str, str], wanted: Mapping[str, str]
    ) -> None:
        for name in current.keys() - wanted.keys():
            await connection.execute(f"RESET {name}")
            del current[name]
        for name, value in wanted.items():
            if current.get(name) != value:
                await connection.execute(f"SET {name} = '{value}'")
                current[name] = value

    async def drop(self, database: str | None) -> None:
        """Close one that may be broken."""
        if self._database == database:
            await self.close()

    async def close(self) -> None:
        """Close it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)


async def _close(connection: Connection) -> None:
    with contextlib.suppress(*DatabaseFailure):
        await connection.close(timeout=2)
