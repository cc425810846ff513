"""The extensions that a repair needs, in every database of an embedded cluster before it needs one.

In a database without transaction IDs they could no longer be created. Never: keeps a server from
starting.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from appliance.database_failure import DatabaseFailure
from appliance.dbops.names import can_be_entered, name_of
from appliance.dbops.target import Target
from appliance.errors import ApplianceError

log = logging.getLogger("appliance.dbops")

EXTENSIONS = ("amcheck", "pageinspect", "pg_surgery", "pg_visibility")
"""All for superusers alone, as they come. Databases made later get them from template1."""

CONNECTABLE = "SELECT datname FROM pg_database WHERE datallowconn AND datconnlimit <> -2"
"""All that take sessions: -2 marks one whose DROP DATABASE was interrupted."""

_CONNECTABLE_NAMES = CONNECTABLE.replace(
    "datname", r"replace(datname::text, '\', '\\')::bytea AS name", 1
)

_MISSING = """
SELECT name FROM pg_available_extensions
WHERE name = ANY ($1::text[]) AND installed_version IS NULL AND NOT pg_is_in_recovery()
"""
"""Needs no transaction ID, so a start in the stop does not trip over it."""


async def add_missing(directory: Path) -> None:
    """Create what is missing in the databases of a running cluster; what fails is logged.

    By a server, not in single-user mode: what that makes counts as PostgreSQL's own (an OID below
    16384), and pg_dump and pg_upgrade leave it out.
    """
    target = Target(directory=directory)
    with _logged(None):
        for database in await _databases(target):
            with _logged(database):
                await _add(target, database)


@contextlib.contextmanager
def _logged(database: str | None) -> Iterator[None]:
    """What fails in one database keeps nothing from the next."""
    try:
        yield
    except (ApplianceError, *DatabaseFailure) as error:
        reason = type(error).__name__
        log.warning("extensions_missing", extra={"database": database, "reason": reason})


async def _databases(target: Target) -> list[str]:
    connection = await target.connect()
    try:
        names = [row["name"] for row in await connection.fetch(_CONNECTABLE_NAMES)]
        return [name_of(name) for name in names if can_be_entered(name)]
    finally:
        await connection.close()


async def _add(target: Target, database: str) -> None:
    connection = await target.connect(database)
    try:
        for row in await connection.fetch(_MISSING, list(EXTENSIONS)):
            await connection.execute(
                f'CREATE EXTENSION IF NOT EXISTS "{row["name"]}" SCHEMA public'
            )
    finally:
        await connection.close()
