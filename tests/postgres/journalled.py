"""A ledger with a journal over some database, and its replay; and what a test compares afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from appliance.config import DatabaseConfig
from appliance.store.journal import Journal
from appliance.store.journalled_ledger import JournalledLedger
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool, connect
from appliance.store.records import Conversation, FinishedTurn
from appliance.store.replay import Replay
from appliance.store.write_gate import WriteGate
from tests.postgres.turns import TENANT, new_conversation, turn

LIMIT = 64 << 20


@dataclass(slots=True, kw_only=True)
class Kept:
    """The parts, open; `is_maintenance` is the operator's flag."""

    pool: Pool
    journal: Journal
    gate: WriteGate
    ledger: JournalledLedger
    replay: Replay
    is_maintenance: bool = False

    @property
    def waiting(self) -> int:
        """Entries that are not in the database, or not marked yet."""
        return len(self.journal.overlay)

    async def drained(self, within_s: float = 60) -> None:
        """Wait until the journal is empty."""
        async with asyncio.timeout(within_s):
            while self.waiting:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def keeping(
    url: str, folder: Path, *, replays: bool = True, bytes_max: int = LIMIT, **options: Any
) -> AsyncIterator[Kept]:
    """Everything over the database at `url`; with `replays` the journal drains by itself."""
    pool = await connect(url, DatabaseConfig())
    journal = Journal(folder, bytes_max=bytes_max)
    kept: Kept
    gate = WriteGate(in_maintenance=lambda: kept.is_maintenance)
    kept = Kept(
        pool=pool,
        journal=journal,
        gate=gate,
        ledger=JournalledLedger(pool, journal, gate, **{"write_retry_s": 2, **options}),
        replay=Replay(journal, pool, gate),
    )
    task = asyncio.create_task(kept.replay.run()) if replays else None
    try:
        yield kept
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await kept.ledger.close()
        await journal.close()
        try:
            await asyncio.wait_for(pool.close(), 5)
        except TimeoutError:
            pool.terminate()


class Chat:
    """One conversation that goes on; remembers what was acknowledged."""

    def __init__(self, ledger: Ledger, conversation: Conversation) -> None:
        self.ledger = ledger
        self.conversation = conversation
        self.done: list[FinishedTurn] = []

    @classmethod
    async def begin(cls, ledger: Ledger, **fields: Any) -> Chat:
        """A new conversation."""
        return cls(ledger, await new_conversation(ledger, **fields))

    @property
    def key(self) -> tuple[str, UUID]:
        """Tenant and id."""
        return (TENANT, self.conversation.conversation_id)

    @property
    def parent_id(self) -> UUID | None:
        """The newest reply."""
        return self.done[-1].assistant.message_id if self.done else self.conversation.head_id

    async def say(self, **fields: Any) -> FinishedTurn:
        """One more turn."""
        number = len(self.done)
        offered = turn(self.conversation, self.parent_id, f"q{number}", f"a{number}", **fields)
        stored = await self.ledger.append_turn(offered)
        assert stored.assistant.message_id == offered.assistant.message_id
        self.done.append(offered)
        return offered

    @property
    def texts(self) -> list[str]:
        """What was said, in order."""
        return [text for n in range(len(self.done)) for text in (f"q{n}", f"a{n}")]

    async def is_whole_in(self, ledger: Ledger) -> None:
        """Every acknowledged turn is there once, in order, and shown."""
        conversation = await ledger.get(*self.key)
        tree = await ledger.messages(*self.key)
        assert [message.text for message in tree] == self.texts
        assert conversation.head_id == self.parent_id
        if self.parent_id is not None:
            path = await ledger.path(*self.key, self.parent_id)
            assert path == tree


async def eventually(what: Callable[[], object], within_s: float = 60) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(within_s):
        while not what():
            await asyncio.sleep(0.01)
