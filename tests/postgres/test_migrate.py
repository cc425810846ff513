"""Migrations against a real PostgreSQL: each once, one process at a time, never back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

from appliance.config import DatabaseConfig
from appliance.errors import DatabaseError
from appliance.store.ledger import Ledger
from appliance.store.migrate import Migration, load_migrations, migrate, rehearse
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
    assert await watcher.fetchval("SELECT to_regclass('one') IS NULL")
    assert await watcher.fetchval("SELECT to_regclass('appliance.migrations') IS NULL")
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
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.store.pool.COMMAND_MARGIN_S", 0.2)
    pool = await connect(empty_database, DatabaseConfig(statement_timeout_ms=200))
    await migrate(pool, SLOW)
    assert await applied(pool) == [1, 2, 3]
    await pool.close()


BROKEN = (
    *SLOW[:1],
    Migration(version=2, name="fine", sql="CREATE TABLE two (n int)", usable_from=1),
    Migration(version=3, name="broken", sql="ALTER TABLE nowhere ADD COLUMN n int"),
)


async def test_a_migration_that_fails_leaves_the_schema_to_the_program_that_uses_it(
    empty_pool: Pool,
) -> None:
    await migrate(empty_pool, SLOW[:1])
    for attempt in (migrate, rehearse):
        with pytest.raises(DatabaseError, match=r"0003_broken failed.*nowhere"):
            await attempt(empty_pool, BROKEN)
        assert await applied(empty_pool) == [1]
        assert await empty_pool.fetchval("SELECT to_regclass('two') IS NULL")
    assert await migrate(empty_pool, SLOW[:1]) == 1


async def test_a_rehearsal_tries_on_the_real_data_and_changes_nothing(empty_pool: Pool) -> None:
    first = Migration(version=1, name="first", sql="CREATE TABLE one (n int)")
    unique = Migration(version=2, name="unique", sql="CREATE UNIQUE INDEX ON one (n)")
    fresh = await rehearse(empty_pool, (first, unique))
    assert (fresh.version, fresh.missing, fresh.stopping) == (0, (first, unique), None)
    assert await empty_pool.fetchval("SELECT to_regclass('one') IS NULL")
    await migrate(empty_pool, (first,))
    tried = await rehearse(empty_pool, (first, unique))
    assert (tried.version, tried.missing, tried.stopping) == (1, (unique,), unique)
    await empty_pool.execute("INSERT INTO one VALUES (7), (7)")
    with pytest.raises(DatabaseError, match="migration 0002_unique failed"):
        await rehearse(empty_pool, (first, unique))
    assert await applied(empty_pool) == [1]


async def test_a_rehearsal_gives_way_to_whoever_holds_what_it_would_change(
    empty_pool: Pool, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.store.migrate.REHEARSAL_LOCK_S", 1)
    await migrate(empty_pool, SLOW[:1])
    holder = await asyncpg.connect(empty_database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE one IN SHARE MODE")
        changing = Migration(version=2, name="more", sql="ALTER TABLE one ADD COLUMN m int")
        with pytest.raises(DatabaseError, match="could not be tried"):
            await rehearse(empty_pool, (SLOW[0], changing))
    await holder.close()


@pytest.mark.parametrize("usable_from", [1, 2, None])
async def test_an_older_program_goes_on_where_every_newer_migration_lets_it(
    empty_pool: Pool, usable_from: int | None
) -> None:
    newer = (
        SLOW[0],
        Migration(version=2, name="second", sql="CREATE TABLE two (n int)", usable_from=1),
        Migration(
            version=3, name="third", sql="CREATE TABLE three (n int)", usable_from=usable_from
        ),
    )
    await migrate(empty_pool, SLOW[:1])
    tried = await rehearse(empty_pool, newer)
    assert tried.stopping is (None if usable_from == 1 else newer[2])
    await migrate(empty_pool, newer)
    if usable_from == 1:
        assert await migrate(empty_pool, newer[:1]) == 3
        assert (await rehearse(empty_pool, newer[:1])).missing == ()
    else:
        with pytest.raises(DatabaseError, match="version 3, this program knows 1"):
            await migrate(empty_pool, newer[:1])
    # Back again: nothing is applied twice.
    assert await migrate(empty_pool, newer) == 3


COLUMNS = """
SELECT c.relname || '.' || a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS is_asked_for
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = 'appliance'::regnamespace AND c.relkind IN ('r', 'p', 'v')
      AND a.attnum > 0 AND NOT a.attisdropped AND NOT c.relispartition
UNION ALL
SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
       pg_get_function_result(p.oid), false
FROM pg_proc AS p WHERE p.pronamespace = 'appliance'::regnamespace
"""
RULES = """
SELECT c.relname || ' ' || pg_get_constraintdef(k.oid) AS name, k.contype::text AS type,
       (SELECT array_agg(a.attname::text) FROM pg_attribute AS a
        WHERE a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)) AS columns
FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid
WHERE c.relnamespace = 'appliance'::regnamespace AND NOT c.relispartition AND k.contype <> 'n'
UNION ALL
SELECT c.relname || ' ' || pg_get_indexdef(i.indexrelid), 'index', array_agg(a.attname::text)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
WHERE c.relnamespace = 'appliance'::regnamespace AND NOT c.relispartition AND i.indisunique
GROUP BY c.relname, i.indexrelid
"""
OLD_WITHOUT_A_WAY_BACK = 6
"""Written before there was one."""


def widens(rule: str, gone: str) -> bool:
    """Whether a list of what a column may hold replaced one that allowed no more."""
    word = r"'(\w+)'::text(, )?"
    return re.sub(word, "", rule) == re.sub(word, "", gone) and (
        {found[0] for found in re.findall(word, gone)}
        < {found[0] for found in re.findall(word, rule)}
    )


async def refused_to_an_older_program(pool: Pool, sql: str) -> set[str]:
    """What a migration takes away from, or asks of, statements that know nothing of it."""
    before = {row["name"]: row["type"] for row in await pool.fetch(COLUMNS)}
    rules_before = {row["name"] for row in await pool.fetch(RULES)}
    await pool.execute(sql)
    rows = await pool.fetch(COLUMNS)
    after = {row["name"]: row["type"] for row in rows}
    tables = {name.partition(".")[0] for name in before}
    found = {name for name, kind in before.items() if after.get(name) != kind}
    found |= {
        row["name"]
        for row in rows
        if row["is_asked_for"] and row["name"] not in before and row["name"].split(".")[0] in tables
    }
    rules = await pool.fetch(RULES)
    gone = rules_before - {row["name"] for row in rules}
    for row in rules:
        table = row["name"].partition(" ")[0]
        named = {f"{table}.{column}" for column in row["columns"] or ()}
        is_new = row["name"] not in rules_before and named & before.keys()
        if is_new and not any(widens(row["name"], old) for old in gone):
            found.add(row["name"])
    return found


async def test_a_migration_says_that_older_programs_can_go_on_where_it_takes_nothing_from_them(
    empty_pool: Pool,
) -> None:
    migrations = load_migrations()
    await migrate(empty_pool, migrations[:OLD_WITHOUT_A_WAY_BACK])
    for migration in migrations[OLD_WITHOUT_A_WAY_BACK:]:
        refused = await refused_to_an_older_program(empty_pool, migration.sql)
        wanted = None if refused else migration.version - 1
        assert migration.usable_from == wanted, f"{migration}: {refused or 'takes nothing'}"


async def test_what_an_older_program_would_miss_is_found(empty_pool: Pool) -> None:
    await migrate(empty_pool, ())
    await empty_pool.execute("CREATE TABLE appliance.one (n int, PRIMARY KEY (n))")
    known = (
        "ALTER TABLE appliance.one DROP CONSTRAINT known;"
        "ALTER TABLE appliance.one ADD CONSTRAINT known CHECK (s IN ({}))"
    )
    for sql in (
        "CREATE TABLE appliance.two (n int NOT NULL UNIQUE)",
        "ALTER TABLE appliance.one ADD COLUMN m int NOT NULL DEFAULT 0, ADD COLUMN o int UNIQUE",
        "CREATE INDEX ON appliance.one (m)",
        "CREATE FUNCTION appliance.f(a int) RETURNS int LANGUAGE sql AS 'SELECT a'",
        "CREATE OR REPLACE FUNCTION appliance.f(a int) RETURNS int LANGUAGE sql AS 'SELECT a + 1'",
        "ALTER TABLE appliance.one ADD COLUMN s text CONSTRAINT known CHECK (s IN ('a', 'b'))",
        known.format("'a', 'b', 'c'"),
    ):
        assert await refused_to_an_older_program(empty_pool, sql) == set(), sql
    for sql in (
        "ALTER TABLE appliance.one ADD COLUMN p int NOT NULL",
        "ALTER TABLE appliance.one ALTER COLUMN m TYPE bigint",
        "ALTER TABLE appliance.one ADD CHECK (n > 0)",
        "CREATE UNIQUE INDEX ON appliance.one (m)",
        known.format("'a', 'c', 'd'"),
        "ALTER TABLE appliance.one DROP COLUMN m",
        "DROP TABLE appliance.two",
        "DROP FUNCTION appliance.f(int)",
    ):
        assert await refused_to_an_older_program(empty_pool, sql), sql


async def test_a_schema_from_before_programs_could_go_back_is_brought_up_to_date(
    empty_pool: Pool,
) -> None:
    await migrate(empty_pool, SLOW[:1])
    await empty_pool.execute("ALTER TABLE appliance.migrations DROP COLUMN usable_from")
    assert (await rehearse(empty_pool, SLOW)).version == 1
    assert await migrate(empty_pool, SLOW) == 3
