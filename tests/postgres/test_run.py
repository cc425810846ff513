"""A repair of a real cluster in the stop: writes come back, no row is lost, nothing unasked is done."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.registry import situation
from appliance.dbops.drill.throwaway import silent
from appliance.dbops.faults import RepairFault, repair_fault
from appliance.dbops.limits import STOP_AGE
from appliance.dbops.plan.databases import probe_step
from appliance.dbops.plan.plan import make_plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Consent, Step, StepKind
from appliance.dbops.repair import disk_floor, quiet_time, run_step
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.result import State
from appliance.dbops.repair.row_counts import RowCounts, RowReading, changes, count_rows
from appliance.dbops.repair.run import Surroundings
from appliance.dbops.repair.run_journal import FILE_NAME, RunJournal
from appliance.dbops.repair.run_memory import RunMemory
from appliance.dbops.repair.run_step import StepTaker
from appliance.dbops.repair.verify import check_structures
from appliance.dbops.repair.verify import probe as take_ids
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.target import Target
from appliance.maintenance import is_on
from tests.drill_fixtures import BOTH, EMBEDDED, SYSTEM, NewDrill
from tests.postgres.killed_run import ended_steps, run_command
from tests.postgres.repair_cases import check_no_row_is_taken_for_a_lost_one
from tests.repairs import Told, repair

QUICK = Policy(last_stage=1, lock_timeout_ms=300)
WHOLE = Policy(lock_timeout_ms=300)
STARTED_AT = "SELECT pg_postmaster_start_time()::text"
NAPTIME = "SELECT setting FROM pg_settings WHERE name = 'autovacuum_naptime'"
WAITING = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'relation')"
OLDEST = "SELECT max(age(datfrozenxid)) FROM pg_database"


async def refusal(drill: Drill, *statements: str) -> BaseException:
    """What the server answers to a write."""
    connection = await drill.connect()
    try:
        for statement in statements:
            await connection.execute(statement)
    except asyncpg.PostgresError as error:
        return error
    finally:
        await connection.close()
    raise AssertionError("it was not refused")


@pytest.mark.parametrize("version", BOTH)
async def test_writes_come_back_with_every_row_and_a_second_run_finds_nothing_to_do(
    version: str, new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(version)
    await drill.drive(situation("plain"), silent)
    await drill.execute_each("postgres", "ALTER SYSTEM SET default_transaction_read_only = on")
    await drill.execute_each("postgres", "SELECT pg_reload_conf()")
    naptime = await drill.value(NAPTIME)
    error = await refusal(drill, "BEGIN READ WRITE", "INSERT INTO pending (gid) VALUES ('refused')")
    assert repair_fault(error) is RepairFault.XID_STOP
    target = Target(directory=drill.cluster.directory)
    sessions = MaintenanceSessions(target, 1000)
    before = await count_rows(await read_snapshot(target.connect), sessions, digest=True)
    assert {table.rows for table in before.tables if table.table == '"public"."messages"'} == {
        19_000
    }
    told = Told()
    outcome = await repair(drill.cluster.directory, tmp_path, QUICK, told=told)
    assert outcome.is_complete
    assert {state for _, state in told.ended_steps} == {"done"}
    assert told.asked == []
    assert await drill.value(NAPTIME) == naptime
    checks = {check.name: check.ok async for check in take_ids(sessions)}
    assert checks == {"transaction ID": True, "multixact": True}
    seen = await read_snapshot(target.connect)
    assert changes(before, await count_rows(seen, sessions, digest=True)) == ()
    structures = {
        check.name: check.ok async for check in check_structures(seen, sessions, bytes_max=1 << 30)
    }
    assert structures["structures in app"] is True
    assert False not in structures.values()
    await sessions.close()
    again = Told()
    assert (await repair(drill.cluster.directory, tmp_path, QUICK, told=again)).is_complete
    assert again.ended_steps == [("probe", "done")]


@pytest.mark.parametrize("version", BOTH)
async def test_rows_are_compared_within_the_run_while_nobody_of_ours_writes(
    version: str, new_drill: NewDrill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = await new_drill(version)
    await drill.drive(situation("prepared"), silent)
    counted_in: list[bool] = []

    async def counting(*arguments: Any, **options: Any) -> RowCounts:
        counted_in.append(is_on(tmp_path))
        return await count_rows(*arguments, **options)

    monkeypatch.setattr(quiet_time, "count_rows", counting)
    policy = replace(QUICK, maintenance=True)
    place = Surroundings(state_dir=tmp_path, data_dir=tmp_path, wal_folders=())
    killed = RunJournal(tmp_path, (await read_snapshot(target_of(drill).connect)).system_id)
    directory = drill.cluster.directory
    outcome = await repair(directory, tmp_path / "1", policy, place=place, rows=RowReading.HASH)
    assert not outcome.is_complete
    assert outcome.rows is not None
    assert (outcome.rows.is_loss, outcome.rows.changes) == (False, ())
    assert outcome.rows.tables > 5
    assert counted_in == [True, True]
    # A run that was killed has counted; what it did is compared too, by the next one.
    sessions = MaintenanceSessions(target_of(drill), 1000)
    counts = await count_rows(await read_snapshot(target_of(drill).connect), sessions, digest=True)
    await sessions.close()
    (few,) = [one for one in counts.tables if one.table == '"public"."pending"']
    more = replace(few, rows=(few.rows or 0) + 2)
    tables = [asdict(more if one is few else one) for one in counts.tables]
    killed.write("rows_counted", tables=tables)
    killed.close()
    outcome = await repair(
        directory,
        tmp_path,
        policy,
        [Consent.PREPARED_COMMIT],
        place=place,
        rows=RowReading.COUNT,
    )
    assert outcome.is_complete
    assert outcome.rows is not None
    assert [one.table for one in outcome.rows.changes] == ['"public"."pending"']
    assert outcome.rows.is_loss  # It has one more, and there had been two.
    assert counted_in == [True] * 3
    assert not is_on(tmp_path)
    events = [json.loads(line)["event"] for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert events.count("rows_compared") == 1
    assert events[0] == "rows_counted"


def target_of(drill: Drill) -> Target:
    return Target(directory=drill.cluster.directory)


async def test_the_stop_of_multixacts_is_told_from_that_of_ids_and_a_try_of_a_write_meets_it(
    new_drill: NewDrill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(situation("members"), silent)
    error = await refusal(
        drill,
        "BEGIN",
        "SELECT id FROM messages WHERE id = 17999 FOR KEY SHARE",
        "SAVEPOINT inner_one",
        "SELECT id FROM messages WHERE id = 17999 FOR SHARE",
    )
    assert repair_fault(error) is RepairFault.MULTIXACT_STOP
    monkeypatch.setattr(run_step, "PROBE_PATIENCE_S", 0.1)
    target = Target(directory=drill.cluster.directory)
    taker = StepTaker(MaintenanceSessions(target, 1000), lambda key, pid: None, no_standby)
    seen = await read_snapshot(target.connect)
    refused = await taker.take(probe_step(), None, seen)
    assert (refused.state, refused.fault) == (State.FAILED, RepairFault.MULTIXACT_STOP)
    # A run that has nothing left to do is not complete while it is so.
    journal = RunJournal(tmp_path, seen.system_id)
    memory = RunMemory(journal)
    assert memory.refusal is None
    memory.remember(probe_step(), refused)
    assert memory.refusal is not None
    # Files that are in use are removed before IDs are given out again: a refusal is asked about.
    monkeypatch.setattr(run_step, "PROBE_PATIENCE_S", 60.0)
    asking = asyncio.create_task(taker.take(probe_step(), None, seen))
    assert (await repair(drill.cluster.directory, tmp_path / "run", QUICK)).is_complete
    given = await asking
    assert given.state is State.DONE
    memory.remember(probe_step(), given)
    assert memory.refusal is None
    journal.close()
    await taker.close()


async def no_standby(_: object) -> None:
    """What a step asks to be ended before it looks for snapshots: nobody."""


async def test_nothing_is_destroyed_unasked_and_with_consent_writes_come_back(
    new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(situation("several"), silent)
    blockers = (
        "SELECT (SELECT count(*) FROM pg_prepared_xacts) + (SELECT count(*) FROM pg_replication_slots) "
        "+ (SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction')"
    )
    before = await drill.value(blockers)
    told = Told()
    outcome = await repair(drill.cluster.directory, tmp_path, QUICK, told=told)
    assert await drill.value(blockers) == before
    assert not outcome.is_complete
    declined = {key.partition(":")[0] for key, state in told.ended_steps if state == "declined"}
    assert declined == {"session", "prepared", "slot", "lock"}
    # What could win nothing was not read; what a lock alone is in the way of was tried, and named.
    assert any(state == "skipped" for _, state in told.ended_steps)
    words = " ".join({result.words for _, result in outcome.ended})
    assert "left: drop slot (slot " in words
    assert not any(step.key in words for step, _ in outcome.ended)
    assert "--yes slot does" in words
    assert not (await probe(drill.cluster.url)).back
    outcome = await repair(
        drill.cluster.directory,
        tmp_path,
        WHOLE,
        [Consent.SESSION, Consent.PREPARED_ROLLBACK, Consent.SLOT, Consent.LOCK],
    )
    assert outcome.is_complete
    assert (await probe(drill.cluster.url)).back
    rebuilt = [step for step, _ in outcome.ended if step.kind is StepKind.REINDEX]
    assert [step.database for step in rebuilt] == ["app"]
    await drill.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
    assert await drill.value("SELECT bt_index_check('messages_conversation'::regclass)") in (
        "",
        None,
    )


async def test_a_damaged_page_stops_its_own_table_alone_and_is_kept_before_it_is_given_up(
    new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(SYSTEM)
    await drill.drive(situation("damaged-page"), silent)
    outcome = await repair(drill.cluster.directory, tmp_path, QUICK)
    failed = [step for step, result in outcome.ended if result.fault is RepairFault.DAMAGED]
    assert len(failed) == 1
    left = [step.kind for step in outcome.left.steps if step.relation_oid is not None]
    assert left == [StepKind.ZERO_PAGES]  # of all the tables that were old
    assert not (tmp_path / "damaged-pages").exists()
    outcome = await repair(drill.cluster.directory, tmp_path, QUICK, [Consent.ZERO_DAMAGED_PAGES])
    assert outcome.is_complete
    assert (await probe(drill.cluster.url)).back
    pages = list((tmp_path / "damaged-pages").iterdir())
    assert pages
    assert all(page.stat().st_size == 8192 for page in pages)
    connection = await drill.connect()
    await check_no_row_is_taken_for_a_lost_one(connection, "scratched")
    await connection.close()
    # What was given up is so on the disk too, and not only until memory is needed for something else.
    await drill.cluster.stop_at_once()
    await drill.cluster.start()
    assert await drill.value("SELECT count(*) FROM scratched") == 1000 - 8 + 100


STEPS = ("vacuum:1:app", "refresh:1:app", "autovacuum:1:template0", "repair")
TEMPLATE0_YOUNG = "SELECT age(datfrozenxid) < 1000000 FROM pg_database WHERE datname = 'template0'"


async def test_a_run_killed_in_every_kind_of_step_goes_on_and_does_none_twice(
    new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(situation("plain"), silent)
    naptime = await drill.value(NAPTIME)
    directory = drill.cluster.directory
    ended: list[str] = []
    for key in STEPS:
        killed = await asyncio.to_thread(run_command, directory, tmp_path, killed_in=key)
        assert killed.returncode == -signal.SIGKILL, f"no step {key} began: {killed.stderr}"
        ended += ended_steps(killed)
        if key.startswith("autovacuum"):
            # What it had set is back before the next run does anything, and template0 is young by then.
            assert await drill.value(NAPTIME) == "1"
            await drill.wait_until(TEMPLATE0_YOUNG)
        else:
            assert await drill.value(NAPTIME) == naptime
    last = await asyncio.to_thread(run_command, directory, tmp_path, killed_in=None)
    ended += ended_steps(last)
    assert json.loads(last.stdout)["complete"], last.stdout
    # Writes came back when the first plans were done; a look at it costs nothing but an ID.
    once = [key for key in ended if key.startswith(("vacuum", "repair"))]
    assert len(once) == len(set(once))
    assert {key.partition(":")[0] for key in ended} >= {"vacuum", "refresh", "repair"}
    frozen = {key.split(":", 2)[2] for key in once if key.startswith("vacuum")}
    repaired = {key.split(":", 1)[1] for key in once if key.startswith("repair")}
    assert frozen <= repaired
    assert await drill.value(NAPTIME) == naptime
    assert (await probe(drill.cluster.url)).back
    assert await drill.changes() == ()
    oldest = await drill.value(OLDEST)
    assert isinstance(oldest, int)
    assert oldest < STOP_AGE


async def test_a_full_disk_breaks_a_running_step_off_and_a_step_that_fails_stops_no_other(
    new_drill: NewDrill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(situation("lock"), silent)
    folders = disk_floor.wal_folders(drill.cluster.directory)
    assert folders
    in_maintenance: list[bool] = []

    async def fill_the_disk() -> None:
        # By then only the VACUUM is left that waits for the lock.
        while not any(key.startswith("refresh") for key, _ in told.ended_steps):
            await asyncio.sleep(0.05)
            in_maintenance.append(is_on(tmp_path))
            # Others wait for it only once they are through, whichever began first.
            if len(told.ended_steps) > 50 and await drill.value(WAITING):
                monkeypatch.setattr(disk_floor, "FLOOR_SHARE", 2.0)  # a floor that no disk has free

    told = Told()
    filling = asyncio.create_task(fill_the_disk())
    outcome = await repair(
        drill.cluster.directory,
        tmp_path,
        Policy(last_stage=1, maintenance=True, disk_floor_bytes=1 << 50, lock_timeout_ms=60_000),
        told=told,
        place=Surroundings(state_dir=tmp_path, data_dir=tmp_path, wal_folders=folders),
    )
    filling.cancel()
    assert outcome.stopped is not None
    assert str(drill.cluster.directory) in outcome.stopped
    states = [result.state for _, result in outcome.ended]
    assert states.count(State.DONE) > 50
    assert State.STOPPED in states
    assert any(in_maintenance)
    assert not is_on(tmp_path)
    assert not await drill.value(WAITING)
    monkeypatch.undo()
    outcome = await repair(drill.cluster.directory, tmp_path, QUICK)
    locked = {step.object for step, result in outcome.ended if result.fault is RepairFault.LOCKED}
    assert len(locked) == 1
    assert {one.state for step, one in outcome.ended if step.object not in locked} >= {State.DONE}
    assert not outcome.is_complete
    outcome = await repair(drill.cluster.directory, tmp_path, QUICK, [Consent.LOCK])
    assert outcome.is_complete
    assert (await probe(drill.cluster.url)).back


async def orphans(target: Target) -> tuple[Step, ...]:
    """The steps that drop the orphans of the database app, were they old."""
    seen = await read_snapshot(target.connect)
    app = next(one for one in seen.databases if one.name == "app")
    assert app.relations is not None
    aged = [
        replace(one, xid_age=STOP_AGE - 1000 if one.temporary else one.xid_age)
        for one in app.relations
    ]
    old = replace(seen, databases=(replace(app, relations=tuple(aged)),))
    plan = make_plan(old, Policy())
    return tuple(step for step in plan.steps if step.kind is StepKind.DROP_TEMP)


async def test_an_orphan_is_dropped_and_not_the_table_that_has_its_name_since(
    new_drill: NewDrill,
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.cluster.start()
    await drill.execute_each("postgres", "CREATE DATABASE app")
    target = Target(directory=drill.cluster.directory)
    sessions = MaintenanceSessions(target, 1000)

    taker = StepTaker(sessions, lambda key, pid: None, no_standby)
    await situation("orphan").plant(drill)
    (step,) = await orphans(target)
    schema = step.object.split(".")[1]
    while True:  # the server gives its numbers out in turn
        heir = await drill.connect()
        await heir.execute("CREATE TEMP TABLE scratch (n int)")
        if await heir.fetchval("SELECT pg_my_temp_schema()::regnamespace::text") == schema:
            break
        await heir.close()
    seen = await read_snapshot(target.connect)
    result = await taker.take(step, step.choices[0], seen)
    assert (result.state, result.words) == (State.DONE, "it was gone already")
    assert await heir.fetchval("SELECT count(*) FROM scratch") == 0
    await heir.close()
    await drill.end_actors()
    await situation("orphan").plant(drill)
    (step,) = await orphans(target)
    assert (await taker.take(step, step.choices[0], seen)).words == ""
    assert await orphans(target) == ()
    await sessions.close()
