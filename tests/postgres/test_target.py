"""An operator's sessions in a real database."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.cluster.extensions import add_missing
from appliance.dbops.faults import RepairFault
from appliance.dbops.plan.databases import probe_step
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.result import State
from appliance.dbops.repair.run_step import StepTaker
from appliance.dbops.snapshot.inspect import read_cluster, read_snapshot
from appliance.dbops.target import Connection, Target
from appliance.errors import DatabaseError
from tests.postgres.folders import copy
from tests.postgres_fixtures import execute, quiet
from tests.socket_relay import relayed


async def test_a_session_has_its_name_its_limits_and_no_transaction_id(
    cluster: Cluster, empty_database: str
) -> None:
    name = empty_database.partition("@/")[2].partition("?")[0]
    for target in (Target(directory=cluster.directory), Target(url=empty_database)):
        connection = await target.connect(name, statement_timeout_ms=1500, lock_timeout_ms=700)
        try:
            before = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())")
            for setting, value in (
                ("application_name", "appliance-db"),
                ("statement_timeout", "1500ms"),
                ("lock_timeout", "700ms"),
            ):
                assert await connection.fetchval(f"SHOW {setting}") == value
            assert await connection.fetchval("SELECT current_database()") == name
            assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
            after = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())")
            assert before == after
        finally:
            await connection.close()


async def test_a_session_that_is_refused_says_why(cluster: Cluster) -> None:
    with pytest.raises(DatabaseError, match="there is no database nowhere"):
        await Target(directory=cluster.directory).connect("nowhere")
    with pytest.raises(DatabaseError, match=r"refuses the session.*nobody_at_all"):
        await Target(url=cluster.url().replace("postgres@", "nobody_at_all@")).connect()


async def test_a_database_that_takes_no_extension_keeps_none_from_the_others(
    pristine: Path, binaries: Binaries, tmp_path: Path
) -> None:
    cluster = Cluster(copy(pristine, tmp_path / "postgres"), binaries)
    await cluster.start(quiet)
    try:
        for name in ("bare", "dropping", "plain"):
            await execute(cluster, f"CREATE DATABASE {name} TEMPLATE template0")
        await execute(
            cluster, "UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'dropping'"
        )
        target = Target(directory=cluster.directory)
        connection = await target.connect("bare")
        await connection.execute("DROP SCHEMA public")
        await connection.close()
        await add_missing(cluster.directory)
        plain = (await read_snapshot(target.connect)).database("plain")
        assert plain is not None
        assert set(plain.extensions) == {"amcheck", "pg_surgery"}
    finally:
        await cluster.stop()


@pytest.fixture
async def ending(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Path]:
    """The folder of a server whose postmaster is killed whenever somebody has logged in."""
    async with relayed(cluster.url(), tmp_path, says_farewell=True):
        yield tmp_path


async def test_a_server_that_ends_between_two_statements_is_a_lost_connection_to_everybody(
    ending: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target(directory=ending)
    connection = await target.connect()
    # Not an error of PostgreSQL's, and none of the interface's either.
    with pytest.raises(asyncpg.InternalClientError, match="another operation"):
        await connection.execute("SELECT 1")
    connection.terminate()
    with caplog.at_level(logging.WARNING):
        await add_missing(ending)
    assert "extensions_missing" in caplog.text
    with pytest.raises(DatabaseError):
        await read_cluster(target.connect)

    async def clear_way(_: Connection) -> None:
        """No standby is there."""

    taker = StepTaker(MaintenanceSessions(target, 100), lambda key, pid: None, clear_way)
    step = probe_step()
    ended = await taker.take(step, None, None)  # type: ignore[arg-type]  # it looks at no snapshot
    assert (ended.state, ended.fault) == (State.FAILED, RepairFault.CONNECTION)
    await taker.close()
