"""Stands for a server in the crash test: chats that go on for ever, and say what was acknowledged.

Run as a program: URL, journal folder, number of chats, name of this life. Each line on standard output is
one acknowledged turn: conversation, its number, the id of its reply.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from uuid import UUID, uuid5

from appliance.config import DatabaseConfig
from appliance.errors import StorageUnavailable
from appliance.store.journal import Journal
from appliance.store.journalled_ledger import JournalledLedger
from appliance.store.pool import connect
from appliance.store.records import FinishedTurn, NewConversation, NewMessage
from appliance.store.replay import Replay
from appliance.store.write_gate import WriteGate

TENANT = "acme"


async def live(url: str, folder: Path, chats: int, life: str) -> None:
    """Until killed."""
    pool = await connect(url, DatabaseConfig(statement_timeout_ms=2000))
    journal = Journal(folder, bytes_max=64 << 20)
    gate = WriteGate(in_maintenance=lambda: False)
    ledger = JournalledLedger(pool, journal, gate, journal_after_s=0.2)
    replaying = asyncio.create_task(Replay(journal, pool, gate).run())
    await asyncio.gather(*(chat(ledger, uuid5(UUID(int=n), life)) for n in range(chats)))
    await replaying


async def chat(ledger: JournalledLedger, conversation_id: UUID) -> None:
    """One conversation of this life."""
    created_at = ledger._now()
    opened = NewConversation(
        tenant=TENANT, conversation_id=conversation_id, created_at=created_at, title="crash"
    )
    await ledger.open(opened)
    print(conversation_id, -1, "-", flush=True)
    parent_id, number = None, 0
    while True:
        turn = turn_of(conversation_id, parent_id, number)
        try:
            stored = await ledger.append_turn(turn)
        except StorageUnavailable:
            await asyncio.sleep(0.05)
            continue
        parent_id = stored.assistant.message_id
        print(conversation_id, number, parent_id, flush=True)
        number += 1
        await asyncio.sleep(random.uniform(0, 0.01))


def turn_of(conversation_id: UUID, parent_id: UUID | None, number: int) -> FinishedTurn:
    """The turn of this number; the same again when it is offered again."""
    key = uuid5(conversation_id, f"turn {number}")
    user = NewMessage(message_id=uuid5(key, "user"), role="user", text=f"q{number}")
    reply = NewMessage(
        message_id=uuid5(key, "reply"), role="assistant", text=f"a{number}", finish_reason="stop"
    )
    return FinishedTurn(
        turn_key=key,
        tenant=TENANT,
        conversation_id=conversation_id,
        parent_id=parent_id,
        user=user,
        assistant=reply,
    )


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
