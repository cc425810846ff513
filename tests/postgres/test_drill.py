"""Each situation of a drill is what its name says: the server refuses, and VACUUM alone does not help."""

from __future__ import annotations

import pytest

from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.registry import SITUATIONS, situation
from appliance.dbops.drill.throwaway import silent
from tests.drill_fixtures import BOTH, NewDrill


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("name", SITUATIONS)
async def test_a_situation_refuses_writes(name: str, version: str, new_drill: NewDrill) -> None:
    drill = await new_drill(version)
    await drill.drive(situation(name), silent)
    assert not (await probe(drill.cluster.url)).back
