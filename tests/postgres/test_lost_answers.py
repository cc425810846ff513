"""What was done and whose answer was lost is found done by the next try, and is no failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from appliance.config import DatabaseConfig
from appliance.errors import NotFound
from appliance.store.ledger import Ledger
from appliance.store.pool import Pool, connect
from tests.postgres.turns import TENANT, new_conversation, talk
from tests.socket_relay import Wire, relayed

COMMITTED = b"COMMIT\0"
"""The server's word for it."""


@pytest.fixture
async def wire(database_url: str, tmp_path: Path) -> AsyncIterator[Wire]:
    async with relayed(database_url, tmp_path) as passing:
        yield passing


@pytest.fixture
async def behind(wire: Wire) -> AsyncIterator[Pool]:
    opened = await connect(wire.url, DatabaseConfig())
    yield opened
    async with asyncio.timeout(30):
        await opened.close()


async def test_a_conversation_and_a_branch_are_deleted_once(wire: Wire, behind: Pool) -> None:
    ledger = Ledger(behind, write_retry_s=30)
    kept, gone = await new_conversation(ledger), await new_conversation(ledger)
    first, second = await talk(ledger, kept, 2)
    wire.loses = COMMITTED
    left = await ledger.delete_branch(TENANT, kept.conversation_id, second)
    assert wire.loses is None
    assert second not in {m.message_id for m in await ledger.messages(TENANT, kept.conversation_id)}
    assert left.head_id is not None
    wire.loses = COMMITTED
    await ledger.delete(TENANT, gone.conversation_id)
    assert wire.loses is None
    # What was deleted before is another's deed.
    with pytest.raises(NotFound):
        await ledger.delete(TENANT, gone.conversation_id)
    with pytest.raises(NotFound):
        await ledger.delete_branch(TENANT, kept.conversation_id, second)
    assert first in {m.message_id for m in await ledger.messages(TENANT, kept.conversation_id)}
