"""What the server stores with: the ledger over database and journal, and the journal's way back.

Owns their beginning and end, and how they are told to operators. Never: decides where a turn goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from appliance.config import Config
from appliance.maintenance import is_on
from appliance.store.journal import Journal, oldest_s
from appliance.store.journalled_ledger import JournalledLedger
from appliance.store.pool import Pool
from appliance.store.replay import Replay
from appliance.store.turn_batch import Tally
from appliance.store.write_gate import WriteGate, Writes

log = logging.getLogger("appliance.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalState:
    """The journal at one moment: how the database takes writes, how many entries wait and for how
    long."""

    writes: Writes
    reason: str | None
    entries: int
    bytes: int
    bytes_max: int
    oldest_s: float
    has_room: bool

    def fields(self) -> dict[str, object]:
        """As answers tell it."""
        told: dict[str, object] = {
            "writes": self.writes.value,
            "entries": self.entries,
            "bytes": self.bytes,
            "bytes_max": self.bytes_max,
            "oldest_s": round(self.oldest_s, 1),
        }
        return told if self.reason is None else {**told, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The parts that store, of one process."""

    pool: Pool
    ledger: JournalledLedger
    replay: Replay

    def state(self) -> JournalState:
        """How the journal stands."""
        journal, gate = self.ledger.journal, self.ledger.gate
        return JournalState(
            writes=gate.writes,
            reason=gate.closed_for,
            entries=len(journal.overlay),
            bytes=journal.used_bytes,
            bytes_max=journal.bytes_max,
            oldest_s=oldest_s(journal.overlay.oldest_at, datetime.now(UTC)),
            has_room=journal.has_room(1),
        )

    def tallies(self) -> tuple[Tally, Tally]:
        """(what turns wrote when they ended, what was replayed)."""
        return self.ledger.tally, self.replay.tally


@asynccontextmanager
async def storing(config: Config, pool: Pool) -> AsyncIterator[Storage]:
    """The ledger of this configuration; what its journal holds is replayed as long as this is open.

    Raises JournalHeld when another server has the journal, JournalDamaged, OSError.
    """
    database, paths = config.database, config.paths
    journal = await asyncio.to_thread(Journal, paths.journal_dir, bytes_max=database.journal_bytes)
    gate = WriteGate(in_maintenance=lambda: _in_maintenance(paths.data_dir))
    ledger = JournalledLedger(
        pool,
        journal,
        gate,
        write_retry_s=database.write_retry_s,
        journal_after_s=database.journal_after_s,
    )
    replay = Replay(journal, pool, gate)
    replaying = asyncio.create_task(replay.run(), name="replay")
    try:
        yield Storage(pool=pool, ledger=ledger, replay=replay)
    finally:
        replaying.cancel()
        await asyncio.gather(replaying, return_exceptions=True)
        await ledger.close()
        await journal.close()


def _in_maintenance(data_dir: Path) -> bool:
    try:
        return is_on(data_dir)
    except OSError as error:
        # Turns go on to the database: a repair suffers from them less than chats from a file's mode.
        log.warning("maintenance_not_read", extra={"error": type(error).__name__})
        return False
