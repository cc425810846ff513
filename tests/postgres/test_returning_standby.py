"""A standby that is back with its old snapshot just as a VACUUM begins: what it holds is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.dbops.drill import actors
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.registry import situation
from appliance.dbops.drill.throwaway import silent
from appliance.dbops.faults import RepairFault
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Consent
from appliance.dbops.repair.run import Run
from appliance.dbops.repair.run_memory import ATTEMPTS_MAX
from appliance.dbops.repair.run_watch import RunWatch
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.dbops.target import Connection
from tests.drill_fixtures import EMBEDDED, NewDrill
from tests.repairs import Told, repair

BACK = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE age(backend_xmin) > 1000000000)"
SEND_AWAY = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_replication"
TIMES = ATTEMPTS_MAX + 1


async def test_what_a_returning_standby_held_is_tried_again_and_nobody_is_asked_twice(
    new_drill: NewDrill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(situation("standby"), silent)
    calls = 0
    clear_way, snapshot = RunWatch.clear_way, Run._snapshot

    async def clear_too_early(self: RunWatch, connection: Connection) -> None:
        nonlocal calls
        if connection is self._gate._connection:
            if calls > TIMES:
                await clear_way(self, connection)
            return
        calls += 1
        if calls == TIMES + 1:
            # Of this plan's own making nobody is kept out: no snapshot since the first has seen it.
            await drill.wait_until(BACK)
        await clear_way(self, connection)
        if calls <= TIMES:
            await drill.wait_until(BACK)

    async def see_no_standby(self: Run) -> Snapshot:
        if calls:
            await drill.value(SEND_AWAY)
        return await snapshot(self)

    monkeypatch.setattr(actors, "RETURN_AFTER_S", 0.7)
    monkeypatch.setattr(RunWatch, "clear_way", clear_too_early)
    monkeypatch.setattr(Run, "_snapshot", see_no_standby)
    told = Told()
    policy = Policy(last_stage=1, workers=1, lock_timeout_ms=300)
    directory = drill.cluster.directory
    outcome = await repair(directory, tmp_path, policy, [Consent.STANDBY], told=told)
    held = [result.words for _, result in outcome.ended if result.fault is RepairFault.RETURNED]
    assert outcome.is_complete, outcome.left.steps
    assert len(held) >= TIMES
    assert all("a standby that is kept out was back" in words for words in held)
    assert len(told.asked) == 1
    assert (await probe(drill.cluster.url)).back
