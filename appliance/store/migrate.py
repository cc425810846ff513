"""Brings the schema up to date: numbered `.sql` files, each applied once in a transaction of its own.

Owns the table `appliance.migrations`. Never goes back: a schema newer than this code is refused.
A process killed in the middle leaves the schema as it was before that file; the next one goes on.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from appliance.errors import DatabaseError
from appliance.store.pool import Connection, Pool, acquired
from appliance.store.queries import load_queries
from appliance.store.retry import retrying

log = logging.getLogger("appliance.store")

QUERIES = load_queries("migrate")
WAIT_S = 60.0
"""How long an unreachable database, or another process that migrates, is waited for."""

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file: its number, its name and its SQL."""

    version: int
    name: str
    sql: str


def load_migrations() -> tuple[Migration, ...]:
    """The migrations of this code, in order; numbered from 1 without gaps."""
    found = []
    for file in (resources.files("appliance.store") / "migrations").iterdir():
        match = _FILE_NAME.fullmatch(file.name)
        if match is not None:
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(version=int(match[1]), name=match[2], sql=sql))
    found.sort(key=lambda migration: migration.version)
    assert [m.version for m in found] == list(range(1, len(found) + 1)), "a migration is missing"
    return tuple(found)


async def migrate(pool: Pool, migrations: Sequence[Migration] | None = None) -> int:
    """Apply what is missing; returns the schema's version.

    Raises DatabaseError when the schema is newer than this code, StorageUnavailable when the database
    is away for longer than WAIT_S.
    """
    wanted = load_migrations() if migrations is None else migrations
    jitter = random.Random()

    async def step() -> bool:
        async with acquired(pool) as connection:
            return await _apply_next(connection, wanted)

    while await retrying(step, budget_s=WAIT_S, jitter=jitter):
        pass
    return len(wanted)


async def _apply_next(connection: Connection, migrations: Sequence[Migration]) -> bool:
    """Apply the next missing migration under the lock; False when there is none."""
    async with connection.transaction():
        # A migration may take long, and so may the wait for another process's.
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute(f"SET LOCAL lock_timeout = '{WAIT_S:.0f}s'")
        await connection.execute(QUERIES["lock_migrations"], timeout=WAIT_S + 5)
        version = await _schema_version(connection)
        if version > len(migrations):
            raise DatabaseError(
                f"the database has schema version {version}, this program knows {len(migrations)}: "
                "it was written by a newer program; use that one, or restore an older backup"
            )
        if version == len(migrations):
            return False
        migration = migrations[version]
        await connection.execute(migration.sql, timeout=None)
        await connection.execute(QUERIES["record_migration"], migration.version, migration.name)
    log.info("schema_migrated", extra={"version": migration.version, "migration": migration.name})
    return True


async def _schema_version(connection: Connection) -> int:
    if not await connection.fetchval(QUERIES["has_migrations"]):
        await connection.execute(QUERIES["create_migrations"])
    version = await connection.fetchval(QUERIES["schema_version"])
    assert isinstance(version, int)
    return version
