"""The way of a real cluster into a situation, where a busy machine could lead it elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from appliance.dbops.cluster.extensions import add_missing
from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.locks import MiddleAgedLock
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.throwaway import silent
from tests.drill_fixtures import SYSTEM, NewDrill

AUTOVACUUMS = (
    "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker') "
    "+ (SELECT sum(autovacuum_count) FROM pg_stat_all_tables)"
)


class LateLock(MiddleAgedLock):
    """Its session comes only when an autovacuum would have been at work, and could have had its table."""

    async def warm(self, drill: Drill) -> None:
        """Wait, and take the lock."""
        await asyncio.sleep(1)
        assert await drill.value(AUTOVACUUMS) == 0
        await super().warm(drill)


async def test_no_autovacuum_begins_on_the_way_however_late_the_first_session_comes(
    new_drill: NewDrill, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add_late(directory: Path) -> None:
        await asyncio.sleep(1)
        await add_missing(directory)

    # What a start does first, once a session is let in.
    monkeypatch.setattr("appliance.dbops.cluster.cluster.add_missing", add_late)
    drill = await new_drill(SYSTEM)
    await drill.drive(LateLock(), silent)
    assert await drill.value(AUTOVACUUMS) == 0
    assert not (await probe(drill.cluster.url)).rows
