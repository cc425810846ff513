"""Writes come back on a real PostgreSQL 15 and 18, whatever has driven it into the stop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.registry import SITUATIONS, situation
from appliance.dbops.drill.rehearsal import rehearse
from appliance.dbops.drill.throwaway import silent
from tests.drill_fixtures import BOTH, EMBEDDED, SYSTEM, NewDrill

NIGHTLY = "APPLIANCE_TESTS_NIGHTLY" in os.environ
SHORT = (
    *((name, EMBEDDED) for name in SITUATIONS),
    *((name, SYSTEM) for name in ("plain", "prepared", "several")),
)
ALL = tuple((name, version) for name in SITUATIONS for version in BOTH)


@pytest.mark.parametrize(("name", "version"), ALL if NIGHTLY else SHORT)
async def test_writes_come_back_and_no_row_is_lost(
    name: str, version: str, new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(version)
    what = situation(name)
    await drill.drive(what, silent)
    assert not (await probe(drill.cluster.url)).back
    done = await rehearse(drill, what, tmp_path / "state")
    assert done.writes_back_s is not None, done.outcome
    assert done.changed == ()
    assert done.too_old == (), done.outcome
    assert done.restarted == what.single_user
