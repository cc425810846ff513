"""One run at a time on a cluster, wherever it is started from: an advisory lock, which needs no ID.

Owns the session that holds it. An advisory lock is of one database, so all runs take it in the same one.
"""

from __future__ import annotations

import asyncio
import time

from appliance.dbops.names import can_be_entered, name_of
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.run_queries import QUERIES
from appliance.errors import DatabaseError

KEY = int.from_bytes(b"repairs!", "big")
WAIT_S = 5.0
"""The server notices within a second or two that a run was killed, and gives its lock up."""
POLL_S = 0.1


class RunLock:
    """Held from `hold` to `close`; a server that restarts takes it away, and `hold` takes it again."""

    def __init__(self, sessions: MaintenanceSessions) -> None:
        self._sessions = sessions
        self._database: str | None = None

    async def hold(self) -> None:
        """Take it unless it is held. Raises DatabaseError, which names who has it, when another has."""
        if self._database is None:
            connection = await self._sessions.get(None)
            names = [row["name"] for row in await connection.fetch(QUERIES["lock_databases"])]
            self._database = next(name_of(name) for name in names if can_be_entered(name))
        connection = await self._sessions.get(self._database)
        if await connection.fetchval(QUERIES["holds_lock"], KEY):
            return
        deadline = time.monotonic() + WAIT_S
        while not await connection.fetchval(QUERIES["take_lock"], KEY):
            if time.monotonic() > deadline:
                holder = await connection.fetchrow(QUERIES["lock_holder"], KEY)
                who = "" if holder is None else f": session {holder['pid']} {holder['place']}"
                raise DatabaseError(f"another repair is at work on this cluster{who}")
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Give it up."""
        await self._sessions.close()
