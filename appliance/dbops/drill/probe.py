"""Whether a cluster takes writes: tries what an application needs, and leaves no row behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import asyncpg

from appliance.dbops.drill.counters import is_refused
from appliance.dbops.drill.drill import DATABASE

TIMEOUTS = "SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '10s'; "
WRITE = f"BEGIN; {TIMEOUTS} INSERT INTO pending (gid) VALUES ('probe'); ROLLBACK"
LOCK_TWICE = (
    f"BEGIN; {TIMEOUTS} SELECT id FROM messages WHERE id = 1 FOR KEY SHARE; SAVEPOINT inner_one; "
    "SELECT id FROM messages WHERE id = 1 FOR SHARE; ROLLBACK"
)
"""Two transactions that lock one row make a multixact, as foreign keys do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """What the server takes: rows (which need an XID), and row locks that are shared (a multixact)."""

    rows: bool
    shared_locks: bool

    @property
    def back(self) -> bool:
        """Whether everything is taken."""
        return self.rows and self.shared_locks


async def probe(url: Callable[[str], str]) -> Writes:
    """Try both on a drill's tables."""
    connection = await asyncpg.connect(url(DATABASE), statement_cache_size=0)
    try:
        rows = not await is_refused(connection, WRITE)
        await connection.execute("ROLLBACK")
        locks = not await is_refused(connection, LOCK_TWICE)
        await connection.execute("ROLLBACK")
    finally:
        await connection.close()
    return Writes(rows=rows, shared_locks=locks)
