"""What a run remembers of its steps decides what it tries again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.dbops.blockers.damage import Damage, DamageKind
from appliance.dbops.faults import RepairFault
from appliance.dbops.plan.history import RelationKey
from appliance.dbops.plan.step import Step, StepKind
from appliance.dbops.repair.result import Result, State
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.repair.run_memory import ATTEMPTS_MAX, ENDINGS_MAX, RunMemory

SLOW = Result(state=State.FAILED, fault=RepairFault.ENDING)
WAITING = Result(state=State.SKIPPED)
DONE = Result(state=State.DONE)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[RunMemory]:
    journal = RunJournal(tmp_path, "1")
    yield RunMemory(journal)
    journal.close()


def step(key: str, kind: StepKind, *needs: str, database: str | None = None) -> Step:
    return Step(
        key=key,
        kind=kind,
        stage=1,
        database=database,
        object=key,
        reason="",
        needs=needs,
        relation_oid=7,
    )


def test_what_needs_a_session_ended_waits_as_long_as_that_may_still_end(memory: RunMemory) -> None:
    ending = step("session:1", StepKind.END_SESSION)
    vacuum = step("vacuum:1:app:7", StepKind.VACUUM, "session:1", database="app")
    for _ in range(ENDINGS_MAX - 1):
        memory.remember(ending, SLOW)
        memory.remember(vacuum, WAITING)
        assert memory.history().settled == frozenset()
    memory.remember(ending, SLOW)
    memory.remember(vacuum, WAITING)
    assert memory.history().settled == {ending.key, vacuum.key}


def test_a_lock_is_tried_a_few_times_and_ten_minutes_are_waited_for_autovacuum_once(
    memory: RunMemory,
) -> None:
    vacuum = step("vacuum:1:app:7", StepKind.VACUUM, database="app")
    for _ in range(ATTEMPTS_MAX):
        assert memory.history().settled == frozenset()
        memory.remember(vacuum, Result(state=State.FAILED, fault=RepairFault.PINNED))
    assert memory.history().settled == {vacuum.key}
    called = step("autovacuum:1:template0", StepKind.AUTOVACUUM, database="template0")
    memory.remember(called, Result(state=State.HELD))
    assert called.key in memory.history().settled


def test_indexes_are_remembered_by_their_database_too(memory: RunMemory) -> None:
    places = [RelationKey(database=name, oid=7) for name in ("app", "other")]
    for place in places:
        damage = Damage(
            kind=DamageKind.INDEX,
            database=place.database,
            relation_oid=place.oid,
            schema="public",
            relation="t",
            index="i",
            block=None,
            message="",
        )
        repair = step(f"repair:{place.database}:7", StepKind.REPAIR, database=place.database)
        failed = Result(state=State.FAILED, fault=RepairFault.DAMAGED, damage=damage)
        memory.remember(repair, failed)
    memory.remember(step("reindex:app:7", StepKind.REINDEX, database="app"), DONE)
    assert memory.history().bad_indexes == {places[1]}
