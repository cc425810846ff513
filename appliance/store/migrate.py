"""Brings the schema up to date: numbered `.sql` files, each applied once, all that are missing in one
transaction.

Owns the table `appliance.migrations`. Never goes back: a schema that this code cannot use is refused. A
migration that fails, or a process killed in the middle, leaves the schema as it was, for the program that
used it so far.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources

import asyncpg

from appliance.errors import DatabaseError
from appliance.store.pool import Connection, Pool, acquired
from appliance.store.queries import load_queries
from appliance.store.retry import Verdict, retrying, verdict

log = logging.getLogger("appliance.store")

QUERIES = load_queries("migrate")
WAIT_S = 60.0
"""How long an unreachable database, or another process that migrates, is waited for."""

MIGRATION_S_MAX = 86400.0
"""The client's own limit of a migration; the one of its other statements is far too short for it."""

REHEARSAL_LOCK_S = 3.0
"""How long a rehearsal waits for a table that somebody holds: turns queue behind it meanwhile."""

REHEARSAL_S = 30.0
"""How long a statement of a rehearsal may take; finished turns go to the journal meanwhile."""

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_USABLE_FROM = re.compile(r"^-- usable-from: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file: its number, its name and its SQL.

    `usable_from`: programs that know this version of the schema can use it after the migration too (a
    line `-- usable-from: N` of the file), which is what a roll-back needs; None: no older one.
    """

    version: int
    name: str
    sql: str
    usable_from: int | None = None

    def __str__(self) -> str:
        return f"{self.version:04}_{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A schema as it is (`version`; 0: none yet), and the migrations that were tried and undone."""

    version: int
    missing: tuple[Migration, ...]

    @property
    def stopping(self) -> Migration | None:
        """The first migration after which a program that knows only `version` cannot go on."""
        for migration in self.missing:
            if self.version and (migration.usable_from or migration.version) > self.version:
                return migration
        return None


def load_migrations() -> tuple[Migration, ...]:
    """The migrations of this code, in order; numbered from 1 without gaps."""
    found = []
    for file in (resources.files("appliance.store") / "migrations").iterdir():
        match = _FILE_NAME.fullmatch(file.name)
        if match is not None:
            sql = file.read_text(encoding="utf-8")
            usable = _USABLE_FROM.search(sql)
            found.append(
                Migration(
                    version=int(match[1]),
                    name=match[2],
                    sql=sql,
                    usable_from=None if usable is None else int(usable[1]),
                )
            )
    found.sort(key=lambda migration: migration.version)
    assert [m.version for m in found] == list(range(1, len(found) + 1)), "a migration is missing"
    return tuple(found)


async def migrate(pool: Pool, migrations: Sequence[Migration] | None = None) -> int:
    """Apply what is missing; returns the schema's version.

    Raises DatabaseError when the schema is one that this code cannot use or a migration fails,
    StorageUnavailable when the database is away for longer than WAIT_S.
    """
    wanted = load_migrations() if migrations is None else migrations

    async def step() -> int:
        async with acquired(pool) as connection, connection.transaction():
            # A migration may take long, and so may the wait for another process's.
            await connection.execute("SET LOCAL statement_timeout = 0")
            await connection.execute(f"SET LOCAL lock_timeout = '{WAIT_S:.0f}s'")
            version, missing = await _missing(connection, wanted)
            await _apply(connection, missing)
        for migration in missing:
            log.info("schema_migrated", extra={"migration": str(migration)})
        return version + len(missing)

    return await retrying(step, budget_s=WAIT_S, jitter=random.Random())


async def rehearse(pool: Pool, migrations: Sequence[Migration] | None = None) -> Rehearsed:
    """Apply what is missing to the real database and undo it: whether `migrate` would work.

    What it changes is locked until it is undone; finished turns are journalled then. Raises DatabaseError
    like `migrate`, or when it could not be tried; what asyncpg raises when the database is away.
    """
    wanted = load_migrations() if migrations is None else migrations
    async with acquired(pool) as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(f"SET LOCAL statement_timeout = '{REHEARSAL_S:.0f}s'")
            await connection.execute(f"SET LOCAL lock_timeout = '{REHEARSAL_LOCK_S:.0f}s'")
            version, missing = await _missing(connection, wanted)
            await _apply(connection, missing)
        except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError) as error:
            raise DatabaseError(
                f"the migrations could not be tried beside what the database is doing now: {error}; "
                "try again, or stop the chats first (systemctl stop appliance-server.service "
                "appliance-server.socket)"
            ) from error
        finally:
            await transaction.rollback()
    return Rehearsed(version=version, missing=tuple(missing))


async def schema_version(connection: Connection) -> int | None:
    """The version of a database's schema; None where it has none. Raises what asyncpg raises."""
    if not await connection.fetchval(QUERIES["has_schema"]):
        return None
    version: int | None = await connection.fetchval(QUERIES["newest_migration"])
    return version


async def made_at(connection: Connection) -> str:
    """When the schema of a database was first made, to the microsecond: tells it, and every copy of it
    however that was made, from all others. Raises what asyncpg raises where there is no schema."""
    made: datetime = await connection.fetchval(QUERIES["made_at"])
    return made.astimezone(UTC).isoformat()


async def _missing(
    connection: Connection, migrations: Sequence[Migration]
) -> tuple[int, Sequence[Migration]]:
    """The schema's version and what is to be applied, under the lock. Raises DatabaseError."""
    await connection.execute(QUERIES["lock_migrations"], timeout=WAIT_S + 5)
    if not await connection.fetchval(QUERIES["has_migrations"]):
        await connection.execute(QUERIES["create_migrations"])
    row = await connection.fetchrow(QUERIES["schema_version"])
    assert row is not None
    version, usable_from = int(row["version"]), int(row["usable_from"])
    if usable_from > len(migrations):
        raise DatabaseError(
            f"the database has schema version {version}, this program knows {len(migrations)}: "
            "it was written by a newer program; use that one, or restore an older backup"
        )
    return version, migrations[version:]


async def _apply(connection: Connection, missing: Sequence[Migration]) -> None:
    for migration in missing:
        try:
            await connection.execute(migration.sql, timeout=MIGRATION_S_MAX)
        except asyncpg.PostgresError as error:
            if verdict(error) is not Verdict.BUG:
                raise
            raise DatabaseError(
                f"migration {migration} failed, and the database is as it was before: {error} "
                f"({error.sqlstate})"
            ) from error
        await connection.execute(
            QUERIES["record_migration"],
            migration.version,
            migration.name,
            migration.usable_from,
        )
