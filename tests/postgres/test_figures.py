"""The database's part of `appliance status`."""

from __future__ import annotations

from pathlib import Path

import asyncpg

from appliance.cli.status_parts import database_part
from appliance.config import Config, DatabaseConfig, ModelSource, Paths
from appliance.store.migrate import load_migrations


def config(url: str | None, folder: Path) -> Config:
    return Config(
        paths=Paths(data_dir=folder, run_dir=folder),
        model=ModelSource(name="m", path=folder),
        database=DatabaseConfig(url=url),
    )


async def test_the_figures_are_of_databases_that_count_with_the_schema_where_there_is_one(
    database_url: str, empty_database: str, tmp_path: Path
) -> None:
    told = await database_part(config(database_url, tmp_path))
    assert told["schema_version"] == len(load_migrations())
    assert told["bytes"] > 0
    operator = await asyncpg.connect(database_url)
    try:
        await operator.execute("CREATE DATABASE half_dropped")
        # As a DROP DATABASE leaves it that was interrupted.
        await operator.execute(
            "UPDATE pg_database SET datconnlimit = -2, datfrozenxid = '3' "
            "WHERE datname = 'half_dropped'"
        )
        bare = await database_part(config(empty_database, tmp_path))
        oldest = await operator.fetchval("SELECT max(age(datfrozenxid)) FROM pg_database")
    finally:
        await operator.execute("DROP DATABASE IF EXISTS half_dropped")
        await operator.close()
    assert bare["schema_version"] is None
    assert bare["xid_age"] < oldest - 100


async def test_a_database_that_is_away_is_told(tmp_path: Path) -> None:
    told = await database_part(config("postgresql://x@127.0.0.1:1/x", tmp_path))
    assert told["away"].startswith("no PostgreSQL answers at 127.0.0.1:1/x: ")
    told = await database_part(config(None, tmp_path))
    assert told["away"].startswith(f"no PostgreSQL answers at {tmp_path / 'postgres'}: ")
