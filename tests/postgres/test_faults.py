"""The ledger while its database is killed, full, locked or takes a privilege away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from appliance.config import DatabaseConfig
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.errors import StorageUnavailable
from appliance.store.ledger import Ledger
from appliance.store.pool import APPLICATION_NAME, Pool, connect
from appliance.store.records import FinishedTurn
from tests.postgres.turns import TENANT, new_conversation, talk, turn
from tests.postgres_fixtures import TEMPLATE, execute, quiet, start_new

ACTIVITY = (
    "SELECT count(*) AS connections, "
    "count(*) FILTER (WHERE state = 'idle in transaction' AND now() - state_change > '2 s') AS idle, "
    "coalesce(max(now() - xact_start), interval '0') AS age "
    "FROM pg_stat_activity WHERE application_name = $1::text AND datname = current_database()"
)

OPEN = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1::text "
    "AND datname = current_database() AND xact_start IS NOT NULL"
)


@pytest.fixture
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A cluster to be killed, with a migrated database."""
    cluster = Cluster(tmp_path_factory.mktemp("own") / "postgres", find_binaries())
    await start_new(cluster)
    yield cluster
    await cluster.stop()


async def open_ledger(cluster: Cluster, write_retry_s: float = 30) -> tuple[Pool, Ledger]:
    pool = await connect(cluster.url(TEMPLATE), DatabaseConfig())
    return pool, Ledger(pool, write_retry_s=write_retry_s)


async def test_kill_9_of_the_server_in_the_middle_of_appends_loses_and_doubles_nothing(
    own: Cluster,
) -> None:
    pool, ledger = await open_ledger(own)
    stopping = asyncio.Event()
    kept: dict[UUID, list[FinishedTurn]] = {}

    async def chat() -> None:
        conversation = await new_conversation(ledger)
        done = kept.setdefault(conversation.conversation_id, [])
        parent_id = None
        while not stopping.is_set():
            offered = turn(conversation, parent_id, f"q{len(done)}", f"a{len(done)}")
            stored = await ledger.append_turn(offered)
            assert stored.assistant.message_id == offered.assistant.message_id
            parent_id = offered.assistant.message_id
            done.append(offered)

    async def kill_and_start(times: int) -> None:
        process = await own.start(quiet)
        for _ in range(times):
            await asyncio.sleep(0.7)
            process.kill()
            await process.wait()
            process = await own.start(quiet)
        await asyncio.sleep(0.5)
        stopping.set()

    await own.stop()
    chats = asyncio.gather(*(chat() for _ in range(8)))
    await kill_and_start(3)
    await chats
    assert all(kept.values())
    for conversation_id, turns in kept.items():
        tree = await ledger.messages(TENANT, conversation_id)
        expected = [text for n in range(len(turns)) for text in (f"q{n}", f"a{n}")]
        assert [message.text for message in tree] == expected
        head = (await ledger.get(TENANT, conversation_id)).head_id
        assert head == turns[-1].assistant.message_id
    await pool.close()


async def test_after_an_outage_the_first_request_succeeds_and_a_turn_of_it_is_stored_once(
    own: Cluster,
) -> None:
    pool, ledger = await open_ledger(own)
    conversation = await new_conversation(ledger)
    await asyncio.gather(*(ledger.get(TENANT, conversation.conversation_id) for _ in range(8)))
    await own.stop()
    offered = turn(conversation, None, "q", "a")
    waiting = asyncio.create_task(ledger.append_turn(offered))
    started = time.monotonic()
    with pytest.raises(StorageUnavailable):
        await ledger.get(TENANT, conversation.conversation_id)
    assert time.monotonic() - started < 20
    await asyncio.sleep(1)
    await own.start(quiet)
    for _ in range(10):
        await ledger.get(TENANT, conversation.conversation_id)
    await waiting
    tree = await ledger.messages(TENANT, conversation.conversation_id)
    assert [message.text for message in tree] == ["q", "a"]
    await pool.close()


async def test_a_write_gives_up_when_the_outage_outlasts_its_patience(own: Cluster) -> None:
    pool, ledger = await open_ledger(own, write_retry_s=0.5)
    conversation = await new_conversation(ledger)
    await own.stop()
    with pytest.raises(StorageUnavailable):
        await ledger.append_turn(turn(conversation, None, "q", "a"))
    await own.start(quiet)
    assert await ledger.messages(TENANT, conversation.conversation_id) == ()
    await pool.close()


async def test_a_session_ended_under_the_pool_is_not_noticed_by_its_users(
    own: Cluster,
) -> None:
    pool, ledger = await open_ledger(own)
    conversation = await new_conversation(ledger)
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'appliance'"
    for number in range(10):
        # Ended while someone holds it, so that the pool learns of it late (and may stumble over it).
        with contextlib.suppress(asyncpg.InternalClientError):
            async with pool.acquire():
                await execute(own, ends)
        stored = await ledger.append_turn(turn(conversation, None, f"q{number}", "a"))
        assert (await ledger.get(TENANT, conversation.conversation_id)).head_id == (
            stored.assistant.message_id
        )
    assert len(await ledger.messages(TENANT, conversation.conversation_id)) == 20
    await pool.close()


async def test_a_server_that_stops_answering_is_given_up_in_bounded_time(own: Cluster) -> None:
    pool = await connect(own.url(TEMPLATE), DatabaseConfig(pool_max=1, statement_timeout_ms=500))
    ledger = Ledger(pool, write_retry_s=1)
    conversation = await new_conversation(ledger)
    pid = await pool.fetchval("SELECT pg_backend_pid()")
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        with pytest.raises(StorageUnavailable):
            await ledger.get(TENANT, conversation.conversation_id)
        assert time.monotonic() - started < 20
    finally:
        os.kill(pid, signal.SIGCONT)
    await ledger.append_turn(turn(conversation, None, "q", "a"))
    await pool.close()


async def test_forty_chats_share_four_connections_and_hold_no_transaction_open(
    database_url: str, ledger: Ledger
) -> None:
    watcher = await asyncpg.connect(database_url, server_settings={"application_name": "watcher"})
    conversations = [await new_conversation(ledger) for _ in range(40)]
    chats = asyncio.gather(*(talk(ledger, conversation, 5) for conversation in conversations))
    most, looks = 0, 0
    while not chats.done():
        row = await watcher.fetchrow(ACTIVITY, APPLICATION_NAME)
        assert row is not None
        most = max(most, row["connections"])
        assert row["idle"] == 0
        assert row["age"].total_seconds() < 5
        looks += 1
        await asyncio.sleep(0.01)
    assert all(len(replies) == 5 for replies in await chats)
    assert looks > 3
    assert most <= 4
    async with asyncio.timeout(60):
        while await watcher.fetchval(OPEN, APPLICATION_NAME):
            await asyncio.sleep(0.01)
    await watcher.close()


async def fill(database_url: str) -> list[asyncpg.Connection[asyncpg.Record]]:
    """Take every connection the server has left."""
    taken = []
    try:
        while True:
            taken.append(await asyncpg.connect(database_url))
    except asyncpg.TooManyConnectionsError:
        return taken


async def test_a_full_server_is_waited_for_and_then_used_again(
    database_url: str,
) -> None:
    pool = await connect(database_url, DatabaseConfig())
    ledger = Ledger(pool, write_retry_s=20)
    taken = await fill(database_url)
    started = time.monotonic()
    with pytest.raises(StorageUnavailable, match="53300"):
        await ledger.list(TENANT, limit=1)
    assert time.monotonic() - started < 20
    waiting = asyncio.create_task(new_conversation(ledger))
    await asyncio.sleep(0.5)
    for connection in taken:
        await connection.close()
    conversation = await waiting
    assert await ledger.list(TENANT, limit=1) == (conversation,)
    await pool.close()


async def test_a_turn_waits_for_a_lock_and_for_a_privilege_and_is_stored(
    database_url: str, ledger: Ledger
) -> None:
    conversation = await new_conversation(ledger)
    operator = await asyncpg.connect(database_url)
    await operator.execute(
        "DROP OWNED BY clerk" if await _role_exists(operator) else "CREATE ROLE clerk LOGIN"
    )
    await operator.execute("GRANT USAGE ON SCHEMA appliance TO clerk")
    await operator.execute("GRANT ALL ON ALL TABLES IN SCHEMA appliance TO clerk")
    pool = await connect(database_url.replace("//postgres@", "//clerk@"), DatabaseConfig())
    clerk = Ledger(pool, write_retry_s=20)

    await operator.execute("REVOKE INSERT ON appliance.messages FROM clerk")
    waiting = asyncio.create_task(clerk.append_turn(turn(conversation, None, "q0", "a0")))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await operator.execute("GRANT INSERT ON appliance.messages TO clerk")
    first = await waiting

    transaction = operator.transaction()
    await transaction.start()
    await operator.execute("LOCK TABLE appliance.messages IN ACCESS EXCLUSIVE MODE")
    offered = turn(conversation, first.assistant.message_id, "q1", "a1")
    waiting = asyncio.create_task(clerk.append_turn(offered))
    await asyncio.sleep(3)  # Longer than lock_timeout.
    assert not waiting.done()
    await transaction.rollback()
    await waiting
    tree = await ledger.messages(TENANT, conversation.conversation_id)
    assert [message.text for message in tree] == ["q0", "a0", "q1", "a1"]
    await pool.close()
    await operator.execute("DROP OWNED BY clerk")
    await operator.close()


async def _role_exists(connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    return bool(
        await connection.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'clerk')")
    )


async def test_a_bug_in_a_turn_rises_at_once_and_is_not_retried(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    offered = turn(conversation, None, "q", "a")
    odd = replace(offered, assistant=replace(offered.assistant, token_ids=b"odd"))
    started = time.monotonic()
    with pytest.raises(asyncpg.CheckViolationError):
        await ledger.append_turn(odd)
    assert time.monotonic() - started < 8  # this ledger tries for 10 s
    assert await ledger.messages(TENANT, conversation.conversation_id) == ()


async def test_a_cancelled_append_leaves_all_of_the_turn_or_nothing(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    for number in range(30):
        offered = turn(conversation, None, f"q{number}", f"a{number}")
        task = asyncio.create_task(ledger.append_turn(offered))
        await asyncio.sleep(number * 0.0003)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stored = await ledger.turn(TENANT, conversation.conversation_id, None, offered.turn_key)
        assert stored is None or stored.user is not None
        again = await ledger.append_turn(offered)
        assert again.assistant.message_id == offered.assistant.message_id
    assert len(await ledger.messages(TENANT, conversation.conversation_id)) == 60
