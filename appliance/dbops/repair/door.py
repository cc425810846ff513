"""How a run gets its sessions, and how long it waits for a server that has none free or is away.

Owns that patience. Never: takes a step, or ends anybody's session but the run's own that it can spare.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.target import Connection, NoConnectionFree, Target
from appliance.errors import DatabaseError, NotRunning

PATIENCE_S = 60.0
POLL_S = 0.5

Value = TypeVar("Value")


class Door:
    """The one way to a server for a run; `spare` closes those of the run's sessions that it can do
    without."""

    def __init__(
        self,
        target: Target,
        lock_timeout_ms: int,
        *,
        spare: Callable[[], Awaitable[None]],
        said: Callable[[str], None],
    ) -> None:
        self._target = target
        self._lock_timeout_ms = lock_timeout_ms
        self._spare = spare
        self._said = said

    def sessions(self) -> MaintenanceSessions:
        """New ones, for one task. They wait for nothing."""
        return MaintenanceSessions(self._target, self._lock_timeout_ms)

    async def connect(self, database: str | None = None) -> Connection:
        """A session; where none is free, as soon as one is. Raises as `patiently` does."""
        return await self.patiently(lambda: self._target.connect(database))

    async def room(self) -> None:
        """Until a session can be had, of a server that is there. Raises as `patiently` does."""
        await (await self.connect()).close()

    async def return_of_server(self) -> None:
        """Until a session can be had, of one that may be away. Raises NotRunning when it is for a minute,
        and as `patiently` does."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await self.room()
            except NotRunning:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_S)

    async def patiently(self, deed: Callable[[], Awaitable[Value]]) -> Value:
        """Do what takes a session, again and again while none is free.

        Raises what the deed raises, and DatabaseError with advice when none was free for a minute.
        """
        deadline = time.monotonic() + PATIENCE_S
        is_told = False
        while True:
            try:
                return await deed()
            except NoConnectionFree as error:
                if time.monotonic() > deadline:
                    raise DatabaseError(_advice(error)) from error
                if not is_told:
                    self._said(f"waiting: {error.message}")
                    is_told = True
            await self._spare()
            await asyncio.sleep(POLL_S)


def _advice(error: NoConnectionFree) -> str:
    return (
        f"{error.message}. Two are enough for a run, and this one has waited {PATIENCE_S:.0f} s: end "
        "sessions there that can be spared (those of a pool come back: stop their application). Then run "
        "this again, with --workers 1"
    )
