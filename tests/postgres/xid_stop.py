"""Drives an embedded cluster of a test into the stop: the database gives out no transaction IDs any more.

The counter is moved close to its end with pg_resetwal, the rest is used up for real.
"""

from __future__ import annotations

import asyncio
import re
import subprocess

import asyncpg

from appliance.dbops.cluster.account import account_of_cluster
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.drill.counters import xid_page_start
from appliance.dbops.limits import STOP_AGE
from tests.postgres_fixtures import execute, quiet

NAPTIME_MAX_S = 2_147_483
"""The launcher lives, so none is started for the emergency, and sleeps for 24 days."""

BURN = """
DO $$
BEGIN
    FOR n IN 1..40000 LOOP
        BEGIN
            INSERT INTO burnt VALUES (n);
        EXCEPTION WHEN division_by_zero THEN
            NULL;
        END;
    END LOOP;
END
$$
"""
"""Each subtransaction takes an ID."""


async def run_out_of_ids(cluster: Cluster) -> None:
    """From running to running in the stop."""
    await execute(cluster, f"ALTER SYSTEM SET autovacuum_naptime = {NAPTIME_MAX_S}")
    await execute(cluster, "CREATE TABLE IF NOT EXISTS burnt (n integer)")
    await cluster.stop()
    oldest = int(_found(r"oldestXID: +(\d+)", _run(cluster, "pg_controldata", ".")))
    _run(cluster, "pg_resetwal", "-x", str(xid_page_start(oldest + STOP_AGE)), ".")
    await cluster.start(quiet)
    connection = await asyncpg.connect(cluster.url())
    try:
        await connection.execute(BURN)
    except asyncpg.ProgramLimitExceededError:
        return
    finally:
        await connection.close()
    raise AssertionError("IDs are left")


async def freeze_all(cluster: Cluster, within_s: float = 60) -> None:
    """Let autovacuum bring every database back, the one that takes no connections too."""
    await execute(cluster, "ALTER SYSTEM SET autovacuum_naptime = 1")
    await execute(cluster, "SELECT pg_reload_conf()")
    async with asyncio.timeout(within_s):
        while True:
            try:
                await execute(cluster, "SELECT pg_current_xact_id()")
                return
            except asyncpg.ProgramLimitExceededError:
                await asyncio.sleep(0.1)


def _run(cluster: Cluster, program: str, *arguments: str) -> str:
    done = subprocess.run(
        [find_binaries().program(program), *arguments],
        cwd=cluster.directory,
        env={"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
        **account_of_cluster(cluster.directory).spawn_options(),
    )
    return str(done.stdout)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]
