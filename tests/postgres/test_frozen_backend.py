"""A server process that stood still and goes on: what was sent to it is done in time or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from appliance.errors import StorageUnavailable
from appliance.store import turn_batch
from appliance.store.ledger import Ledger
from appliance.store.pool import Connection
from appliance.store.turn_batch import Outcome
from tests.postgres.journalled import Chat, Kept, keeping
from tests.postgres.turns import swipe

SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE application_name = 'appliance' AND datname = current_database()
"""
QUICK: dict[str, Any] = {"journal_after_s": 0.3, "write_retry_s": 1}


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def standing_still(operator: Connection) -> AsyncIterator[None]:
    """All sessions of the ledger stand still; at the end they have gone on, and those are through that
    were given up."""
    pids = [row["pid"] for row in await operator.fetch(SESSIONS)]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        # Who meets the end of a connection is gone soon; the others wait for their next statement.
        async with asyncio.timeout(20):
            while await operator.fetch(f"{SESSIONS} AND pid = ANY ($1) AND state <> 'idle'", pids):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)


async def test_turns_that_wait_stay_in_order_when_a_write_that_was_given_up_goes_on(
    database_url: str, tmp_path: Path, operator: Connection, ledger: Ledger
) -> None:
    async with keeping(database_url, tmp_path / "journal", replays=False, **QUICK) as kept:
        chat = await Chat.begin(kept.ledger)
        await chat.say()
        async with standing_still(operator):
            await chat.say()
            await chat.say()
        assert kept.waiting == 2
        # The conversation's head is where the next turn goes: it must not be the first of the two.
        await chat.is_whole_in(kept.ledger)
        await chat.say()
        await kept.replay.drain(20)
        await chat.is_whole_in(ledger)


async def test_what_was_deleted_stays_so_when_the_write_of_it_that_was_given_up_goes_on(
    database_url: str, tmp_path: Path, operator: Connection, ledger: Ledger
) -> None:
    async with keeping(database_url, tmp_path / "journal", replays=False, **QUICK) as kept:
        chat = await Chat.begin(kept.ledger)
        first = await chat.say()
        assert first.user is not None
        again = swipe(chat.conversation, first.user.message_id, "another reply")
        async with standing_still(operator):
            await kept.ledger.append_turn(again)
            await kept.replay.drain(20)
            assert len(await ledger.messages(*chat.key)) == 3
            await ledger.delete_branch(*chat.key, again.assistant.message_id)
        assert [message.text for message in await ledger.messages(*chat.key)] == ["q0", "a0"]
        assert (await ledger.get(*chat.key)).head_id == first.assistant.message_id


async def test_a_commit_on_its_way_keeps_its_rows_until_it_is_done_or_not(
    database_url: str,
    tmp_path: Path,
    operator: Connection,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = turn_batch._append
    stopped: list[int] = []

    async def append_and_stop(connection: Connection, entries: list[object]) -> list[Outcome]:
        outcomes = await append(connection, entries)  # type: ignore[arg-type]
        if not stopped:
            stopped.append(connection.get_server_pid())
            os.kill(stopped[0], signal.SIGSTOP)
        return outcomes

    async with keeping(database_url, tmp_path / "journal", replays=False, **QUICK) as kept:
        chat = await Chat.begin(kept.ledger)
        monkeypatch.setattr(turn_batch, "_append", append_and_stop)
        await chat.say()
        try:
            await chat.say()
            assert kept.waiting == 2
            await chat.is_whole_in(kept.ledger)
            with pytest.raises(StorageUnavailable):
                await Ledger(kept.pool, write_retry_s=0.1).delete(*chat.key)
            assert await kept.replay.step() is None
        finally:
            os.kill(stopped[0], signal.SIGCONT)
        await kept.replay.drain(20)
        await chat.is_whole_in(ledger)
        assert chat.done[0].assistant.message_id in await ids(kept, chat)


async def ids(kept: Kept, chat: Chat) -> list[object]:
    """All messages of a chat."""
    return [message.message_id for message in await kept.ledger.messages(*chat.key)]
