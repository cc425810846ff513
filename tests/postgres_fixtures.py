"""A real PostgreSQL for tests: one embedded cluster a session, one fresh database a test.

A conftest imports the fixtures it wants by name.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from appliance.config import DatabaseConfig
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.store.ledger import Ledger
from appliance.store.migrate import migrate
from appliance.store.pool import Pool, connect

TEMPLATE = "migrated"


def quiet(_: str) -> None:
    """A progress callback that says nothing."""


async def execute(cluster: Cluster, statement: str) -> None:
    """Run one statement as the superuser, outside a transaction."""
    connection = await asyncpg.connect(cluster.url())
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def start_new(cluster: Cluster) -> None:
    """Create and start a cluster, with a migrated database to copy."""
    await cluster.init(quiet)
    await cluster.start(quiet)
    # Tests survive no power cut, and creating a database syncs a great deal.
    await execute(cluster, "ALTER SYSTEM SET fsync = off")
    await execute(cluster, "SELECT pg_reload_conf()")
    await execute(cluster, f"CREATE DATABASE {TEMPLATE}")
    pool = await connect(cluster.url(TEMPLATE), DatabaseConfig())
    await migrate(pool)
    await pool.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster; tests that stop or kill it start their own."""
    running = Cluster(tmp_path_factory.mktemp("cluster") / "postgres", find_binaries())
    with asyncio.Runner() as runner:
        runner.run(start_new(running))
        yield running
        runner.run(running.stop())


@pytest.fixture
async def empty_database(cluster: Cluster) -> AsyncIterator[str]:
    """The URL of a database without a schema."""
    name = f"test_{uuid.uuid4().hex}"
    await execute(cluster, f"CREATE DATABASE {name}")
    yield cluster.url(name)
    await execute(cluster, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database_url(cluster: Cluster) -> AsyncIterator[str]:
    """The URL of a migrated, empty database."""
    name = f"test_{uuid.uuid4().hex}"
    await execute(cluster, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    yield cluster.url(name)
    await execute(cluster, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """A pool of four connections to the test's database."""
    opened = await connect(database_url, DatabaseConfig())
    yield opened
    await asyncio.wait_for(opened.close(), 10)


@pytest.fixture
def ledger(pool: Pool) -> Ledger:
    """The ledger of the test's database."""
    return Ledger(pool, write_retry_s=10)
