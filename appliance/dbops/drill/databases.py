"""Situations in which the database that stops all others is not the one that is used."""

from __future__ import annotations

import asyncpg

from appliance.dbops.drill.drill import DATABASE, Drill
from appliance.dbops.drill.situation import Situation
from appliance.dbops.settings import SUPERUSER


class OtherDatabase(Situation):
    """A second database, which alone is never vacuumed."""

    name = "other-database"
    summary = "a database that nobody uses any more is old, all others are young"
    kept_old = frozenset({"archive"})

    async def plant(self, drill: Drill) -> None:
        """The database and a table in it."""
        await drill.execute_each(SUPERUSER, "CREATE DATABASE archive")
        await drill.execute_each(
            "archive",
            "CREATE TABLE papers AS SELECT n, md5(n::text) AS body FROM generate_series(1, 5000) AS n",
        )

    async def halfway(self, drill: Drill) -> None:
        """A young table beside it."""
        # A young table with an empty end: a VACUUM that shortened it would need an XID, and fail.
        await drill.execute_each(
            DATABASE,
            "CREATE TABLE shrunk AS "
            "SELECT n, repeat('x', 500) AS body FROM generate_series(1, 5000) AS n",
            "DELETE FROM shrunk WHERE n > 100",
        )


class Template0(Situation):
    """Only autovacuum gets into it."""

    name = "template0"
    summary = "template0, which takes no connections, is old, all others are young"
    kept_old = frozenset({"template0"})


class ClosedDatabase(Situation):
    """As template0, with rows of somebody in it."""

    name = "closed-database"
    summary = "a database was closed to connections (datallowconn) and has grown old"
    kept_old = frozenset({"closed"})

    async def plant(self, drill: Drill) -> None:
        """A database with a table, then closed."""
        await drill.execute_each(SUPERUSER, "CREATE DATABASE closed")
        await drill.execute_each(
            "closed", "CREATE TABLE papers AS SELECT n FROM generate_series(1, 1000) AS n"
        )
        await drill.execute_each(SUPERUSER, "ALTER DATABASE closed ALLOW_CONNECTIONS false")


class StaleDatfrozenxid(Situation):
    """A VACUUM of every table breaks off at a lock on the last, before it tells the database's age."""

    name = "stale"
    summary = (
        "every table is young, but pg_database does not say so: a VACUUM was cancelled at its end"
    )
    kept_old = frozenset({DATABASE})

    async def halfway(self, drill: Drill) -> None:
        """Freeze all tables but a new one in a command that fails at that one."""
        await drill.execute("CREATE TABLE last_of_all (n integer)")
        holder = await drill.session(
            "holder", "BEGIN", "LOCK TABLE last_of_all IN SHARE UPDATE EXCLUSIVE MODE"
        )
        connection = await drill.connect()
        try:
            names = await connection.fetchval(
                "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class "
                "WHERE relkind IN ('r', 'm') AND relname <> 'last_of_all'"
            )
            # Each table is its own transaction; what comes after the last one is never reached.
            await connection.execute("SET lock_timeout = '100ms'")
            await connection.execute(f"VACUUM (FREEZE) {names}, last_of_all")
        except asyncpg.LockNotAvailableError:
            pass
        finally:
            await connection.close()
        await holder.close()
