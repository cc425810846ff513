"""What a cluster holds, counted and hashed table by table, to prove that nothing was lost. Reads only.

The hash of a table is the sum of its rows' 64-bit hashes: the order of rows does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import asyncpg

from appliance.dbops.drill.ground import GROUND
from appliance.dbops.settings import SUPERUSER


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The rows of one table: how many, and the sum of their hashes."""

    rows: int
    hash: int


Tally: TypeAlias = Mapping[str, Counted]
"""By `database.schema.table`."""


async def tally(url: Callable[[str], str]) -> Tally:
    """All rows of all users' tables, in every database that takes connections, without needing an XID."""
    counted: dict[str, Counted] = {}
    for database in await _connectable(url):
        connection = await asyncpg.connect(url(database), statement_cache_size=0)
        try:
            for row in await connection.fetch(GROUND["tables"]):
                name = row["name"]
                found = await connection.fetchrow(
                    "SELECT count(*) AS rows, "
                    "coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text AS hash "
                    f"FROM ONLY {name} AS t"
                )
                assert found is not None
                counted[f"{database}.{name}"] = Counted(rows=found["rows"], hash=int(found["hash"]))
        finally:
            await connection.close()
    return counted


def differences(before: Tally, after: Tally) -> list[str]:
    """What changed, one line a table; empty when nothing did."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            lines.append(f"{name}: {'appeared' if old is None else 'is gone'}")
        elif old != new:
            rows = f"{old.rows} rows, now {new.rows}"
            lines.append(f"{name}: {rows if old.rows != new.rows else 'other content'}")
    return lines


async def _connectable(url: Callable[[str], str]) -> list[str]:
    connection = await asyncpg.connect(url(SUPERUSER), statement_cache_size=0)
    try:
        rows = await connection.fetch(GROUND["databases"])
    finally:
        await connection.close()
    return [row["name"] for row in rows if row["connectable"]]
