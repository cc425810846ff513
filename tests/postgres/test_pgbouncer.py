"""The store behind pgbouncer in transaction mode: two sessions of the server for many clients."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from appliance.cli.status_parts import database_part
from appliance.config import Config, DatabaseConfig, ModelSource, Paths
from appliance.dbops.cluster.account import account_of_cluster
from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.store.ledger import Ledger
from appliance.store.migrate import load_migrations, migrate
from appliance.store.pool import Pool, acquired, connect, retried
from appliance.store.search import Search
from tests.drill_fixtures import REQUIRED
from tests.postgres.folders import ask, copy, open_folder
from tests.postgres.turns import TENANT, new_conversation, swipe, talk, turn
from tests.postgres_fixtures import quiet

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(
    PGBOUNCER is None and REQUIRED not in os.environ, reason="pgbouncer is not installed"
)

SESSIONS = 2
SETTINGS = """
[databases]
postgres = host={server} port=5432 user=postgres
[pgbouncer]
pool_mode = transaction
default_pool_size = {sessions}
unix_socket_dir = {folder}
listen_port = 6432
auth_type = any
"""


@pytest.fixture
async def own(pristine: Path, binaries: Binaries) -> AsyncIterator[Cluster]:
    """A running cluster that other processes of its user can walk to."""
    with open_folder() as folder:
        cluster = Cluster(copy(pristine, folder / "postgres"), binaries)
        await cluster.start(quiet)
        yield cluster
        await cluster.stop()


@pytest.fixture
async def pooler(own: Cluster) -> AsyncIterator[DatabaseConfig]:
    """The settings for a pgbouncer with two sessions of the server."""
    folder = own.directory.with_name("pgbouncer")
    folder.mkdir()
    account = account_of_cluster(own.directory)
    shutil.chown(folder, account.uid, account.gid)
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        SETTINGS.format(server=own.directory, folder=folder, sessions=SESSIONS), encoding="utf-8"
    )
    assert PGBOUNCER is not None
    with (folder / "log").open("wb") as log:
        bouncer = await asyncio.create_subprocess_exec(
            *(PGBOUNCER, settings), stdout=log, stderr=log, cwd=folder, **account.spawn_options()
        )
    try:
        while not (folder / ".s.PGSQL.6432").exists():
            assert bouncer.returncode is None, (folder / "log").read_text()
            await asyncio.sleep(0.02)
        url = f"postgresql://postgres@/postgres?host={folder}&port=6432"
        yield DatabaseConfig(url=url, pool_max=8, pooling="transaction")
    finally:
        bouncer.terminate()
        await bouncer.wait()


@pytest.fixture
async def pool(pooler: DatabaseConfig) -> AsyncIterator[Pool]:
    """Eight connections to the pgbouncer."""
    assert pooler.url is not None
    opened = await connect(pooler.url, pooler)
    yield opened
    await asyncio.wait_for(opened.close(), 10)


async def test_the_status_of_a_box_has_its_database_s_figures_through_a_pooler(
    pooler: DatabaseConfig, pool: Pool, tmp_path: Path
) -> None:
    await migrate(pool)
    config = Config(
        paths=Paths(data_dir=tmp_path, run_dir=tmp_path),
        model=ModelSource(name="m", path=tmp_path),
        database=pooler,
    )
    told = await database_part(config)
    assert told.get("schema_version") == len(load_migrations()), told
    assert told["xid_age"] > 0


async def test_conversations_are_made_continued_searched_and_deleted_through_a_pooler(
    own: Cluster, pool: Pool
) -> None:
    await asyncio.gather(migrate(pool), migrate(pool))
    ledger, search = Ledger(pool), Search(pool)
    opened = await asyncio.gather(*(new_conversation(ledger, title=f"t{n}") for n in range(12)))
    said = await asyncio.gather(*(talk(ledger, conversation, 6) for conversation in opened))
    for conversation, replies in zip(opened, said, strict=True):
        path = await ledger.path(TENANT, conversation.conversation_id, replies[-1])
        assert [message.text for message in path][-2:] == ["q5", "a5"]
    first = opened[0]
    again = turn(first, said[0][-1], "once", "only once")
    stored = await asyncio.gather(*(ledger.append_turn(again) for _ in range(6)))
    assert sum(not one.replayed for one in stored) == 1
    await ledger.append_turn(swipe(first, said[0][0], "another answer"))
    assert len((await search.find(TENANT, "only once", limit=5)).found) == 1
    await ledger.delete_branch(TENANT, first.conversation_id, stored[0].assistant.message_id)
    await ledger.delete(TENANT, opened[1].conversation_id)
    assert len(await ledger.list(TENANT, limit=50)) == 11
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
        "AND pid <> pg_backend_pid()"
    )
    assert await ask(own.directory, sessions) == SESSIONS


async def test_each_transaction_has_the_time_limits_of_a_session_of_ours(pool: Pool) -> None:
    async with acquired(pool) as connection:
        for name, value in (
            ("statement_timeout", "5s"),
            ("lock_timeout", "2s"),
            ("idle_in_transaction_session_timeout", "5s"),
            ("plan_cache_mode", "force_generic_plan"),
        ):
            assert await connection.fetchval(f"SHOW {name}") == value
    async with pool.acquire() as connection:
        assert await connection.fetchval("SHOW statement_timeout") == "0"


async def test_what_fails_in_the_middle_leaves_nothing_and_the_next_one_works(pool: Pool) -> None:
    async with acquired(pool) as connection:
        await connection.execute("CREATE TABLE t (n integer PRIMARY KEY)")

    async def twice(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        await connection.execute("INSERT INTO t VALUES (1)")
        await connection.execute("INSERT INTO t VALUES (1)")

    with pytest.raises(asyncpg.UniqueViolationError):
        await retried(pool, twice, budget_s=1, jitter=random.Random(1))
    async with acquired(pool) as connection:
        assert await connection.fetchval("SELECT count(*) FROM t") == 0
