"""Builds the indexes of a table anew: beside writes where PostgreSQL can, else under a lock.

Owns what an attempt leaves behind. Never: takes a lock that nobody has agreed to, or drops an index but
a half-built one of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import asyncpg

from appliance.database_failure import DatabaseFailure
from appliance.dbops.plan.step import Step
from appliance.dbops.quoting import identifier
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.result import Result, State
from appliance.dbops.repair.run_queries import QUERIES
from appliance.dbops.snapshot.snapshot import Snapshot

Execute = Callable[[Step, str, Snapshot], Awaitable[Result]]
"""Runs one statement for a step; damage and a table that is gone are outcomes."""


class IndexRebuild:
    """Through one worker's sessions."""

    def __init__(self, sessions: MaintenanceSessions, execute: Execute) -> None:
        self._sessions = sessions
        self._execute = execute

    async def beside_writes(self, step: Step, statement: str, snapshot: Snapshot) -> Result:
        """Build indexes anew, and leave nothing of an attempt that failed or was broken off."""
        before = {(row["oid"], row["file"]) for row in await self._indexes(step)}
        try:
            result = await self._execute(step, statement, snapshot)
        finally:
            with contextlib.suppress(*DatabaseFailure):
                await self._drop_leftovers(step)
        if result.state is not State.DONE:
            return result
        left = [row for row in await self._indexes(step) if (row["oid"], row["file"]) in before]
        return await self._passed_over(step, left, snapshot)

    async def _passed_over(
        self, step: Step, left: list[asyncpg.Record], snapshot: Snapshot
    ) -> Result:
        """What REINDEX TABLE CONCURRENTLY leaves as it was, with a warning: an invalid index can be built
        by its own name, an exclusion constraint's only under a lock."""
        locked = []
        for row in left:
            name = identifier(row["schema"], row["name"])
            if row["valid"]:
                locked.append(name)
                continue
            result = await self._execute(step, f"REINDEX INDEX CONCURRENTLY {name}", snapshot)
            if result.state is not State.DONE:
                return result
        if not locked:
            return Result(state=State.DONE)
        words = f"{', '.join(locked)} cannot be built beside writes to the table"
        return Result(state=State.FAILED, words=words, under_lock=tuple(locked))

    async def under_lock(
        self, step: Step, statements: tuple[str, ...], snapshot: Snapshot
    ) -> Result:
        """Build those that no other way is left for: writes to their table wait."""
        for statement in statements:
            result = await self._execute(step, statement, snapshot)
            if result.state is not State.DONE:
                return result
        return Result(state=State.DONE)

    async def _indexes(self, step: Step) -> list[asyncpg.Record]:
        connection = await self._sessions.get(step.database)
        return await connection.fetch(QUERIES["indexes"], step.relation_oid)

    async def _drop_leftovers(self, step: Step) -> None:
        connection = await self._sessions.get(step.database)
        for row in await connection.fetch(QUERIES["index_leftovers"], step.relation_oid):
            # Of a system's table, which one of TOAST is, no index can be dropped beside traffic.
            how = "" if row["toast"] else "CONCURRENTLY "
            await connection.execute(
                f"DROP INDEX {how}IF EXISTS {identifier(row['schema'], row['name'])}"
            )
