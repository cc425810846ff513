"""A PostgreSQL of one's own, looked at and prepared for chats. Never: changes a setting of it.

What is recommended is a table; comparing is a pure function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg

from appliance.dbops.cluster.extensions import EXTENSIONS
from appliance.dbops.target import Connection, Target
from appliance.errors import DatabaseError

MAJOR_MIN = 14
MAJOR_MAX = 18

RECOMMENDED: Mapping[str, tuple[str, str]] = {
    "fsync": ("on", "a power cut must not lose or damage chats"),
    "full_page_writes": ("on", "a power cut must not damage pages"),
    "synchronous_commit": ("on", "a turn that is told as done must be durable"),
    "autovacuum": ("on", "without it transaction IDs run out"),
    "autovacuum_vacuum_insert_scale_factor": (
        "0.05",
        "messages are only inserted, and should be frozen early",
    ),
    "vacuum_freeze_min_age": ("0", "messages never change, so they can be frozen at once"),
    "max_slot_wal_keep_size": ("4GB", "a slot that nobody reads fills the disk"),
    "log_min_messages": ("error", "warnings before the stop would fill 18 GB of log"),
}
"""By name: the value as SHOW gives it, and what it is good for (docs/database.md). None that a session of
ours sets for itself: that would be what is shown."""

NEEDED = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum")
"""Where one is off the appliance's promises do not hold. All other ways to commit wait for the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting that is not as recommended; `is_needed` when chats are in danger by it."""

    name: str
    value: str
    recommended: str
    reason: str
    is_needed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a server was found to be, and what could not be done for it."""

    version: str
    differences: tuple[Difference, ...]
    missing_extensions: Mapping[str, str]


async def prepare(target: Target) -> Prepared:
    """Create the extensions that a repair needs, and compare the settings.

    Raises NotRunning, and DatabaseError for a version that is not supported.
    """
    connection = await target.connect()
    try:
        number = connection.get_server_version().major
        version = str(await connection.fetchval("SHOW server_version"))
        if not MAJOR_MIN <= number <= MAJOR_MAX:
            raise DatabaseError(
                f"{target} is PostgreSQL {version}; versions {MAJOR_MIN} to {MAJOR_MAX} are supported"
            )
        missing = {}
        for name in EXTENSIONS:
            reason = await _create(connection, name)
            if reason is not None:
                missing[name] = reason
        found = {name: str(await connection.fetchval(f"SHOW {name}")) for name in RECOMMENDED}
    finally:
        await connection.close()
    return Prepared(version=version, differences=compared(found), missing_extensions=missing)


def compared(found: Mapping[str, str]) -> tuple[Difference, ...]:
    """What is not as recommended, those that are needed first."""
    differences = [
        Difference(
            name=name,
            value=found[name],
            recommended=value,
            reason=reason,
            is_needed=name in NEEDED and found[name] == "off",
        )
        for name, (value, reason) in RECOMMENDED.items()
        if found[name] != value
    ]
    return tuple(sorted(differences, key=lambda difference: not difference.is_needed))


async def _create(connection: Connection, name: str) -> str | None:
    """Create an extension where it is not there yet; the reason when that cannot be done."""
    try:
        await connection.execute(f'CREATE EXTENSION IF NOT EXISTS "{name}"')
    except asyncpg.PostgresError as error:
        return str(error)
    return None
