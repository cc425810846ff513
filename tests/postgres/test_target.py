"""An operator's sessions in a real database."""

from __future__ import annotations

import pytest

from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.target import Target
from appliance.errors import DatabaseError


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
