"""Servers that take no writes although nothing of them is old: seen, told, and brought back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from appliance.dbops.blockers.blocker import Blocker, BlockerKind
from appliance.dbops.blockers.blockers import blockers
from appliance.dbops.drill.databases import StaleDatfrozenxid
from appliance.dbops.drill.drill import DATABASE, Drill
from appliance.dbops.drill.multixacts import MultixactIds
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.throwaway import silent
from appliance.dbops.monitoring.status import Severity, severity_of
from appliance.dbops.plan.policy import Policy
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.target import Target
from tests.drill_fixtures import BOTH, EMBEDDED, NewDrill
from tests.postgres.test_inspect_situations import ALARM_AGE, published, vacuumdb
from tests.repairs import Told, repair

_AGE_OF_THE_YOUNGEST = (
    "UPDATE pg_database AS d SET datfrozenxid = o.datfrozenxid, datminmxid = o.datminmxid "
    "FROM pg_database AS o WHERE o.datname = 'postgres'"
)


class StaleXidLimit(StaleDatfrozenxid):
    """As a server is left whose last VACUUM was killed between two of its deeds."""

    name = "stale-limit"

    async def warm(self, drill: Drill) -> None:
        """The ages in `pg_database` follow, and nobody tells the server."""
        await drill.execute_each("postgres", _AGE_OF_THE_YOUNGEST)


class StaleMultixactLimit(MultixactIds):
    """The same, of multixacts."""

    name = "stale-multixact-limit"

    async def stopped(self, drill: Drill) -> None:
        """Every relation says that it is young, as after a VACUUM of each."""
        newest = "(SELECT next_multixact_id FROM pg_control_checkpoint())"
        for database in ("postgres", "template1", DATABASE):
            await drill.execute_each(
                database,
                f"UPDATE pg_class SET relminmxid = {newest} WHERE relminmxid <> '0'",
                f"UPDATE pg_database SET datminmxid = {newest}",
            )


async def told(drill: Drill) -> tuple[list[Blocker], Severity]:
    """What keeps the server from writes, and how bad that is."""
    snapshot = await read_snapshot(Target(directory=drill.cluster.directory).connect)
    found = blockers(snapshot)
    wanted = (BlockerKind.SYNCHRONOUS_STANDBY, BlockerKind.STALE_LIMIT)
    return [one for one in found if one.kind in wanted], severity_of(snapshot, found)


async def others_see_nothing(drill: Drill, option: str) -> None:
    """Published queries show a young cluster, and vacuumdb finds nothing to do."""
    xids, mxids, _ = await published(drill)
    assert xids < ALARM_AGE
    assert mxids < 1_000_000
    assert "VACUUM (" not in vacuumdb(drill, option)


async def take_action(drill: Drill, blocker: Blocker) -> None:
    """Enter what is printed."""
    (action,) = blocker.actions
    statements = (one.strip() for one in action.text.split(";") if one.strip())
    await drill.execute_each(action.database or "postgres", *statements)


async def test_a_stale_limit_of_transaction_ids_is_told_and_its_action_ends_it(
    new_drill: NewDrill,
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(StaleXidLimit(), silent)
    assert not (await probe(drill.cluster.url)).rows
    await others_see_nothing(drill, f"--min-xid-age={ALARM_AGE}")
    (found,), severity = await told(drill)
    assert (found.kind, found.id, severity) == (
        BlockerKind.STALE_LIMIT,
        "transaction IDs",
        Severity.CRITICAL,
    )
    await take_action(drill, found)
    assert (await probe(drill.cluster.url)).back
    assert (await told(drill))[0] == []


@pytest.mark.parametrize("version", BOTH)
async def test_a_stale_limit_of_multixacts_is_told_and_a_run_ends_it(
    new_drill: NewDrill, tmp_path: Path, version: str
) -> None:
    drill = await new_drill(version)
    await drill.drive(StaleMultixactLimit(), silent)
    assert not (await probe(drill.cluster.url)).shared_locks
    await others_see_nothing(drill, "--min-mxid-age=1000000")
    (found,), severity = await told(drill)
    assert (found.id, severity) == ("multixact IDs", Severity.CRITICAL)
    if version == EMBEDDED:
        await take_action(drill, found)
    else:
        seen = Told()
        outcome = await repair(drill.cluster.directory, tmp_path, Policy(last_stage=1), told=seen)
        assert outcome.is_complete, outcome.stopped
        assert ("recount", "done") in seen.ended_steps
    assert (await probe(drill.cluster.url)).back
    assert (await told(drill))[0] == []


async def test_a_standby_that_commits_wait_for_in_vain_is_told_and_its_action_ends_that(
    new_drill: NewDrill,
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.cluster.start()
    await drill.execute_each("postgres", f"CREATE DATABASE {DATABASE}", "CREATE TABLE t (n int)")
    assert (await told(drill))[0] == []
    await drill.execute_each(
        "postgres",
        "ALTER SYSTEM SET synchronous_standby_names = 'gone'",
        "SELECT pg_reload_conf()",
    )
    writer = asyncio.create_task(drill.execute_each("postgres", "INSERT INTO t VALUES (1)"))
    await drill.wait_until("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    (found,), severity = await told(drill)
    assert (found.kind, severity) == (BlockerKind.SYNCHRONOUS_STANDBY, Severity.CRITICAL)
    assert "gone" in found.id
    assert not writer.done()
    await take_action(drill, found)
    async with asyncio.timeout(30):
        await writer
    assert (await told(drill))[0] == []
