"""Writes come back on a real PostgreSQL 15 and 18, whatever has driven it into the stop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.registry import SITUATIONS, situation
from appliance.dbops.drill.rehearsal import POLICY, rehearse
from appliance.dbops.drill.throwaway import silent
from appliance.dbops.plan.policy import Policy
from tests.drill_fixtures import BOTH, EMBEDDED, SYSTEM, NewDrill

NIGHTLY = "APPLIANCE_TESTS_NIGHTLY" in os.environ
ALL = tuple((name, version) for name in SITUATIONS for version in BOTH)
SHORT = (
    *((name, BOTH[number % 2]) for number, name in enumerate(SITUATIONS)),
    ("plain", SYSTEM),
    ("several", EMBEDDED),
)
"""Each situation on one version, the first and the last on both."""

WRITES = Policy(last_stage=1, lock_timeout_ms=300, disk_floor_bytes=0)
TO_THE_END = ("plain", "damaged-index")
"""Situations of which the later stages are tested too."""


@pytest.mark.parametrize(("name", "version"), ALL if NIGHTLY else SHORT)
async def test_writes_come_back_and_no_row_is_lost(
    name: str, version: str, new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(version)
    what = situation(name)
    await drill.drive(what, silent)
    assert not (await probe(drill.cluster.url)).back
    policy = POLICY if NIGHTLY or name in TO_THE_END else WRITES
    done = await rehearse(drill, what, tmp_path / "state", policy)
    assert done.writes_back_s is not None, done.outcome
    assert done.changed == ()
    assert done.too_old == (), done.outcome
    assert done.blockers_found
    assert done.steps_planned > 1
    assert done.good, (done.outcome.stopped, done.outcome.left.steps)
    assert done.restarted == what.single_user
