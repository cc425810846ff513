"""Each situation that ends a cluster's writes, and its repair. Never: says which test runs which."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.dbops.drill.damage import DAMAGED_PAGE
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.registry import SITUATIONS, situation
from appliance.dbops.drill.rehearsal import POLICY, rehearse
from appliance.dbops.drill.throwaway import silent
from appliance.dbops.plan.policy import Policy
from appliance.dbops.target import Connection
from tests.drill_fixtures import BOTH, NewDrill

NIGHTLY = "APPLIANCE_TESTS_NIGHTLY" in os.environ

WRITES = Policy(last_stage=1, lock_timeout_ms=300, disk_floor_bytes=0)
TO_THE_END = ("plain", "damaged-index")
"""Situations of which the later stages are tested too."""


def names_on(version: str) -> tuple[str, ...]:
    """The situations of a version's tests: nightly all; else each on one, first and last on both."""
    names = tuple(SITUATIONS)
    if NIGHTLY:
        return names
    return tuple(
        name
        for number, name in enumerate(names)
        if BOTH[number % 2] == version or name in (names[0], names[-1])
    )


async def check_repair(name: str, version: str, new_drill: NewDrill, state_dir: Path) -> None:
    """Drives a new cluster into the situation, repairs it, and asserts that all is back, nothing lost."""
    what = situation(name)
    drill = await new_drill(version)
    await drill.drive(what, silent)
    assert not (await probe(drill.cluster.url)).back
    policy = POLICY if NIGHTLY or name in TO_THE_END else WRITES
    done = await rehearse(drill, what, state_dir, policy)
    assert done.writes_back_s is not None, done.outcome
    assert done.changed == ()
    assert done.too_old == (), done.outcome
    assert done.blockers_found
    assert done.steps_planned > 1
    assert done.good, (done.outcome.stopped, done.outcome.left.steps)
    assert done.restarted == what.single_user


async def check_no_row_is_taken_for_a_lost_one(connection: Connection, table: str) -> None:
    """New rows of a table (n, body) take the places of those given up with DAMAGED_PAGE, and nobody finds
    one by the key of another."""
    await connection.execute(
        f"INSERT INTO {table} SELECT n, repeat('y', 500) FROM generate_series(9001, 9100) AS n"
    )
    page = f"ctid >= '({DAMAGED_PAGE},0)' AND ctid < '({DAMAGED_PAGE + 1},0)'"
    assert await connection.fetchval(f"SELECT count(*) FROM {table} WHERE {page}") > 0
    await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    for key in range(1, 200):
        rows = await connection.fetch(f"SELECT n, body FROM {table} WHERE n = $1", key)
        assert [row["n"] for row in rows] in ([], [key])
