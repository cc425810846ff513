"""Migrations against a real PostgreSQL: each once, one process at a time, never back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from appliance.config import DatabaseConfig
from appliance.errors import DatabaseError
from appliance.store.ledger import Ledger
from appliance.store.migrate import Migration, load_migrations, migrate
from appliance.store.pool import Pool, connect
from tests.postgres.turns import new_conversation, talk

SLOW = (
    Migration(version=1, name="first", sql="CREATE TABLE one (n int)"),
    Migration(
        version=2,
        name="slow",
        sql="CREATE TABLE two (n int); SELECT pg_sleep(1); INSERT INTO one VALUES (2)",
    ),
    Migration(version=3, name="third", sql="CREATE TABLE three (n int)"),
)


@pytest.fixture
async def empty_pool(empty_database: str) -> AsyncIterator[Pool]:
    opened = await connect(empty_database, DatabaseConfig())
    yield opened
    await asyncio.wait_for(opened.close(), 10)


async def applied(pool: Pool) -> list[int]:
    rows = await pool.fetch("SELECT version FROM appliance.migrations ORDER BY version")
    return [row["version"] for row in rows]


async def test_a_fresh_database_is_brought_up_to_date_and_then_left_alone(empty_pool: Pool) -> None:
    latest = len(load_migrations())
    assert await migrate(empty_pool) == latest
    ledger = Ledger(empty_pool)
    conversation = await new_conversation(ledger)
    await talk(ledger, conversation, 2)
    assert await migrate(empty_pool) == latest
    assert await applied(empty_pool) == list(range(1, latest + 1))
    assert len(await ledger.messages(conversation.tenant, conversation.conversation_id)) == 4


async def test_a_newer_schema_is_refused_untouched(empty_pool: Pool) -> None:
    await migrate(empty_pool, SLOW)
    with pytest.raises(DatabaseError, match="version 3, this program knows 1"):
        await migrate(empty_pool, SLOW[:1])
    assert await applied(empty_pool) == [1, 2, 3]
    assert await empty_pool.fetchval("SELECT count(*) FROM one") == 1


async def test_two_processes_migrate_once(empty_database: str) -> None:
    pools = [await connect(empty_database, DatabaseConfig()) for _ in range(4)]
    await asyncio.gather(*(migrate(pool, SLOW) for pool in pools))
    assert await applied(pools[0]) == [1, 2, 3]
    assert await pools[0].fetchval("SELECT count(*) FROM one") == 1
    for pool in pools:
        await pool.close()


async def test_a_migration_killed_in_the_middle_leaves_no_half_and_is_done_again(
    empty_database: str,
) -> None:
    pool = await connect(empty_database, DatabaseConfig())
    killed = asyncio.create_task(migrate(pool, SLOW))
    watcher = await asyncpg.connect(empty_database)
    query = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    while (pid := await watcher.fetchval(query)) is None:
        await asyncio.sleep(0.02)
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    pool.terminate()
    await watcher.execute("SELECT pg_terminate_backend($1::integer)", pid)
    while await watcher.fetchval("SELECT 1 FROM pg_stat_activity WHERE pid = $1::integer", pid):
        await asyncio.sleep(0.02)
    assert await watcher.fetchval("SELECT to_regclass('two') IS NULL")
    assert await watcher.fetchval("SELECT max(version) FROM appliance.migrations") == 1
    await watcher.close()
    again = await connect(empty_database, DatabaseConfig())
    await migrate(again, SLOW)
    assert await applied(again) == [1, 2, 3]
    assert await again.fetchval("SELECT count(*) FROM one") == 1
    await again.close()


async def test_a_connection_lost_in_a_migration_is_waited_out(empty_database: str) -> None:
    pool = await connect(empty_database, DatabaseConfig())
    running = asyncio.create_task(migrate(pool, SLOW))
    watcher = await asyncpg.connect(empty_database)
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    while await watcher.fetchval(query) is None:
        await asyncio.sleep(0.02)
    await running
    assert await applied(pool) == [1, 2, 3]
    assert await pool.fetchval("SELECT count(*) FROM one") == 1
    await watcher.close()
    await pool.close()


async def test_a_migration_may_take_longer_than_a_statement_of_the_server(
    empty_database: str,
) -> None:
    pool = await connect(empty_database, DatabaseConfig(statement_timeout_ms=200))
    await migrate(pool, SLOW)
    assert await applied(pool) == [1, 2, 3]
    await pool.close()
