"""What keeps the server from answering chats right now. Asks; never waits for anything to get better."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from appliance.database_failure import DatabaseFailure
from appliance.errors import StorageUnavailable
from appliance.server.drain import Drain
from appliance.server.storage import Storage
from appliance.store.pool import acquired
from appliance.store.write_gate import Writes
from appliance.wire.engines import Engines

DATABASE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that is missing: which part, and a sentence."""

    part: str
    message: str


class Readiness:
    """Knows the engine, the database and the drain; `schema_ready` is set once migrations are done."""

    def __init__(self, *, engine: Engines, storage: Storage, drain: Drain) -> None:
        self._engine = engine
        self._storage = storage
        self._drain = drain
        self.schema_ready = False

    @property
    def draining(self) -> bool:
        """Whether the server is on its way to its end."""
        return self._drain.draining

    def require_schema(self) -> None:
        """Raise StorageUnavailable until the database has been brought up to date."""
        if not self.schema_ready:
            raise StorageUnavailable("The database is not ready yet; try again in a moment.")

    async def reasons(self) -> list[Reason]:
        """Empty when chats can be answered and stored, be it in the journal."""
        reasons = []
        if self.draining:
            reasons.append(Reason(part="server", message="The server is shutting down"))
        if not self._engine.ready:
            reasons.append(Reason(part="engine", message="The model is loading"))
        if not self.schema_ready:
            reasons.append(Reason(part="database", message="The database is starting"))
        elif not await self._database_answers():
            reasons.append(Reason(part="database", message="The database does not answer"))
        journal = self._storage.state()
        if journal.writes is not Writes.OPEN and not journal.has_room:
            reasons.append(
                Reason(part="journal", message="No reply could be saved: the journal is full")
            )
        return reasons

    async def _database_answers(self) -> bool:
        try:
            # No retries here: a poll asks how it is now, and must not fill the log while it waits.
            async with (
                asyncio.timeout(DATABASE_TIMEOUT_S),
                acquired(self._storage.pool) as connection,
            ):
                await connection.execute("SELECT 1")
        except DatabaseFailure:
            return False
        return True
