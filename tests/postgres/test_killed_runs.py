"""A run that is killed in any destructive step goes on, and loses no row (the others: `test_run.py`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from appliance.dbops.drill.counters import move_to_xid
from appliance.dbops.drill.drill import HALFWAY_XIDS
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.registry import situation
from appliance.dbops.drill.rehearsal import unforeseen
from appliance.dbops.drill.temporary import SCRATCH
from appliance.dbops.drill.throwaway import silent
from appliance.dbops.plan.step import Consent
from tests.drill_fixtures import BOTH, NewDrill
from tests.postgres.killed_run import run_command

KILLED_IN = {
    "several": ("lock:", "session:", "prepared:", "slot:", "probe", "reindex:"),
    "standby": ("standby:",),
    "damaged-page": ("zero:",),
    "unfrozen-row": ("rows:",),
    "orphan": ("temp:",),
}
"""By the situation that has such steps: the beginnings of their keys, in the order in which they come."""


@pytest.mark.skipif("APPLIANCE_TESTS_NIGHTLY" not in os.environ, reason="takes minutes: nightly")
@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("name", KILLED_IN)
async def test_a_run_killed_in_a_destructive_step_goes_on_and_loses_no_row(
    name: str, version: str, new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(version)
    what = situation(name)
    await drill.drive(what, silent)
    options = [word for consent in sorted(what.consents) for word in ("--yes", consent.value)]
    options += ["--lock-timeout-ms", "500"]
    if what.single_user:
        # The command stops the server and starts it, so it has to be the one that runs it.
        options.append("--single-user")
        await drill.end_actors()
        await drill.cluster.stop()
    directory = drill.cluster.directory
    for key in KILLED_IN[name]:
        killed = await asyncio.to_thread(run_command, directory, tmp_path, *options, killed_in=key)
        assert killed.returncode == -signal.SIGKILL, f"no step {key} began: {killed.stderr}"
    last = await asyncio.to_thread(run_command, directory, tmp_path, *options, killed_in=None)
    assert last.returncode == 0, last.stdout + last.stderr
    assert json.loads(last.stdout)["complete"]
    if what.single_user:
        await drill.cluster.start()
    assert (await probe(drill.cluster.url)).back
    assert unforeseen(await drill.changes(), what) == ()


@pytest.mark.skipif("APPLIANCE_TESTS_NIGHTLY" not in os.environ, reason="takes minutes: nightly")
@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    ("key", "consent"), [("temp-owner:", Consent.SESSION), ("temp:", Consent.TEMP_TABLE)]
)
async def test_a_run_killed_while_an_old_temporary_table_goes_online_goes_on(
    key: str, consent: Consent, version: str, new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(version)
    await drill.cluster.start()
    await drill.execute_each("postgres", "CREATE DATABASE app")
    await drill.execute("CREATE TABLE kept AS SELECT n FROM generate_series(1, 1000) AS n")
    await drill.cluster.stop()
    await move_to_xid(drill.cluster, HALFWAY_XIDS)
    await drill.cluster.start()
    owner = await drill.session("pooled worker", SCRATCH)
    temporary = "SELECT count(*) FROM pg_class WHERE relname = 'scratch'"
    # As old as a table is that was made while something held the horizon.
    await drill.execute("UPDATE pg_class SET relfrozenxid = '1000' WHERE relname = 'scratch'")
    if consent is Consent.TEMP_TABLE:
        witness = await drill.session("witness")
        os.kill(owner.pid, signal.SIGKILL)
        await drill.wait_for_recovery(witness)
    assert await drill.value(temporary) == 1
    options = ("--until-stage", "2", "--yes", consent.value)
    directory = drill.cluster.directory
    killed = await asyncio.to_thread(run_command, directory, tmp_path, *options, killed_in=key)
    assert killed.returncode == -signal.SIGKILL, f"no step {key} began: {killed.stderr}"
    last = await asyncio.to_thread(run_command, directory, tmp_path, *options, killed_in=None)
    assert last.returncode == 0, last.stdout + last.stderr
    assert await drill.value(temporary) == 0
    assert await drill.value("SELECT count(*) FROM kept") == 1000
