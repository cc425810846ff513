"""What a repair meets on a real cluster that is old and still takes writes: locks, cursors, leftovers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from appliance.cli.main import main
from appliance.dbops import remedies
from appliance.dbops.drill.counters import move_to_xid
from appliance.dbops.drill.drill import HALFWAY_XIDS, Drill
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.throwaway import ThrowAway, silent
from appliance.dbops.faults import RepairFault
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Consent, Step, StepKind
from appliance.dbops.repair.autovacuum_call import (
    call_autovacuum,
    overruled,
    restore_settings,
)
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.result import State
from appliance.dbops.repair.row_counts import count_rows
from appliance.dbops.repair.run import Run, Surroundings
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.repair.run_lock import RunLock
from appliance.dbops.repair.run_step import StepTaker
from appliance.dbops.repair.verify import check_structures
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.target import APPLICATION_NAME, Target
from appliance.errors import DatabaseError
from tests.drill_fixtures import BOTH, EMBEDDED, NewDrill, drill_on
from tests.postgres.test_refusals import StaleXidLimit
from tests.repairs import Told, repair

POLICY = Policy(last_stage=2, lock_timeout_ms=300)
LOCKED_AT_ONCE = 300
OLDEST = "SELECT max(age(datfrozenxid)) FROM pg_database"


@pytest.fixture(scope="module")
def aged(drill_folder: Path, pristine_clusters: Callable[[str], ThrowAway]) -> Iterator[Drill]:
    """A cluster whose tables are a billion transactions old: a margin is to be restored."""
    with asyncio.Runner() as runner:
        drill = runner.run(make_aged(drill_folder, pristine_clusters(EMBEDDED)))
        yield drill
        runner.run(drill.close())


async def make_aged(drill_folder: Path, template: ThrowAway) -> Drill:
    drill = await drill_on(template, drill_folder / "aged")
    await drill.cluster.start()
    await drill.execute_each("postgres", "CREATE DATABASE app")
    await drill.execute(
        "CREATE TABLE pinned AS SELECT n FROM generate_series(1, 1000) AS n; "
        "CREATE TABLE free AS SELECT n FROM generate_series(1, 1000) AS n; "
        "CREATE TABLE counted AS SELECT 1 AS counted, 2 AS other; "
        "CREATE TABLE indexed AS SELECT n FROM generate_series(1, 1000) AS n; "
        "CREATE INDEX indexed_n ON indexed (n); "
        "CREATE TABLE lost AS SELECT n FROM generate_series(1, 10) AS n"
    )
    await drill.cluster.stop()
    await move_to_xid(drill.cluster, HALFWAY_XIDS)
    await drill.cluster.start()
    return drill


@pytest.fixture
async def sessions(aged: Drill) -> AsyncIterator[MaintenanceSessions]:
    """Those of a worker."""
    opened = MaintenanceSessions(target(aged), LOCKED_AT_ONCE)
    yield opened
    await opened.close()


def target(drill: Drill) -> Target:
    return Target(directory=drill.cluster.directory)


def taker(sessions: MaintenanceSessions) -> StepTaker:
    async def clear_way(_: object) -> None:
        """No standby is there."""

    return StepTaker(sessions, lambda key, pid: None, clear_way)


def states(told: Told, name: str) -> list[str]:
    return [state for key, state in told.ended_steps if key.startswith(name)]


async def test_a_vacuum_that_waits_for_a_cursors_page_names_it_and_the_others_go_on(
    aged: Drill, tmp_path: Path
) -> None:
    holder = await aged.session(
        "forgotten cursor", "BEGIN", "DECLARE c CURSOR FOR SELECT n FROM pinned", "FETCH 1 FROM c"
    )
    oid = await aged.value("SELECT 'pinned'::regclass::oid::bigint")
    told = Told()
    async with asyncio.timeout(120):
        outcome = await repair(aged.cluster.directory, tmp_path, POLICY, told=told)
    waited = [result for step, result in outcome.ended if step.relation_oid == oid]
    assert {result.fault for result in waited} == {RepairFault.PINNED}
    assert f"pid {holder.pid}" in waited[0].words
    assert "forgotten cursor" in waited[0].words
    assert "query" in waited[0].words
    assert f"lock:{holder.pid}" in told.asked
    failed = {step.relation_oid for step, one in outcome.ended if one.state is State.FAILED}
    assert failed == {oid}
    assert not holder.ended
    outcome = await repair(aged.cluster.directory, tmp_path, POLICY, [Consent.LOCK])
    assert outcome.is_complete, outcome.left.steps
    assert holder.ended
    await aged.end_actors()


async def test_a_session_that_ends_slowly_is_told_apart_from_one_that_cannot_be_ended(
    aged: Drill, sessions: MaintenanceSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = await aged.session("slow")
    seen = await read_snapshot(target(aged).connect)

    def step(wait_ms: int) -> Step:
        monkeypatch.setattr(remedies, "TERMINATE_WAIT_MS", wait_ms)
        return Step(
            key=f"session:{slow.pid}",
            kind=StepKind.END_SESSION,
            stage=1,
            database=None,
            object="a session",
            reason="",
            statements=(remedies.end_session_seen(slow.pid, seen.taken_at, idle_too=True),),
            pid=slow.pid,
        )

    os.kill(slow.pid, signal.SIGSTOP)
    result = await taker(sessions).take(step(200), None, seen)
    os.kill(slow.pid, signal.SIGCONT)
    assert (result.state, result.fault) == (State.FAILED, RepairFault.ENDING)
    assert (await taker(sessions).take(step(60_000), None, seen)).state is State.DONE
    await aged.end_actors()


async def test_two_runs_exclude_each_other_wherever_they_keep_their_state(
    aged: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.dbops.repair.run_lock.WAIT_S", 0.3)
    for place in (Target(url=aged.cluster.url("app")), Target(url=aged.cluster.url("template1"))):
        sessions = MaintenanceSessions(place, LOCKED_AT_ONCE)
        lock = RunLock(sessions)
        await lock.hold()
        await lock.hold()  # Each round asks again.
        with pytest.raises(DatabaseError, match=r"another repair is at work.*session \d+ on"):
            await repair(aged.cluster.directory, tmp_path, POLICY)
        await lock.close()
    assert (await repair(aged.cluster.directory, tmp_path, POLICY)).stopped is None


async def test_a_worker_has_one_session_however_many_databases_it_goes_to(
    aged: Drill, sessions: MaintenanceSessions
) -> None:
    for database in ("app", "postgres", "template1", None, "app"):
        connection = await sessions.get(database)
        found = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", APPLICATION_NAME
        )
        assert found == 1


async def test_a_column_named_as_the_row_is_hides_no_other(
    aged: Drill, sessions: MaintenanceSessions
) -> None:
    digests = []
    for value in (2, 3):
        await aged.execute(f"UPDATE counted SET other = {value}")
        counts = await count_rows(await read_snapshot(target(aged).connect), sessions, digest=True)
        digests += [one.digest for one in counts.tables if one.table == '"public"."counted"']
    assert len(set(digests)) == 2


async def test_what_the_limit_left_out_is_told_and_not_called_right(
    aged: Drill, sessions: MaintenanceSessions
) -> None:
    await aged.execute_each("app", "CREATE EXTENSION IF NOT EXISTS amcheck")
    seen = await read_snapshot(target(aged).connect)
    found = {one.name: one async for one in check_structures(seen, sessions, bytes_max=0)}
    app = found["structures in app"]
    assert app.ok is None
    assert re.search(r"; \d+ tables of \d+ MiB not looked at$", app.words)


async def test_an_index_that_was_half_built_is_gone_after_the_next_try(
    aged: Drill, sessions: MaintenanceSessions
) -> None:
    left = "SELECT count(*) FROM pg_index WHERE indrelid = 'indexed'::regclass AND NOT indisvalid"
    writer = await aged.session("writer", "BEGIN", "INSERT INTO indexed VALUES (0)")
    seen = await read_snapshot(target(aged).connect)
    oid = await aged.value("SELECT 'indexed'::regclass::oid::bigint")
    assert isinstance(oid, int)
    step = Step(
        key="reindex:app:1",
        kind=StepKind.REINDEX,
        stage=3,
        database="app",
        object="app.public.indexed",
        reason="",
        statements=("REINDEX TABLE CONCURRENTLY public.indexed",),
        relation_oid=oid,
    )
    result = await taker(sessions).take(step, None, seen)
    assert (result.state, result.fault) == (State.FAILED, RepairFault.LOCKED)
    assert await aged.value(left) == 1
    await writer.say("COMMIT")
    assert (await taker(sessions).take(step, None, seen)).state is State.DONE
    assert await aged.value(left) == 0
    await aged.end_actors()


async def test_an_index_that_a_rebuild_passes_over_is_built_by_consent_or_told(
    aged: Drill, tmp_path: Path
) -> None:
    await aged.execute_each(
        "app",
        "CREATE TABLE booked (n int, during int4range, "
        "CONSTRAINT booked_once EXCLUDE USING gist (during WITH &&))",
        "CREATE INDEX booked_n ON booked (n)",
        "CREATE INDEX booked_half ON booked (n)",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'booked_half'::regclass",
    )
    files = (
        "SELECT string_agg(c.relname || pg_relation_filenode(c.oid), ',' ORDER BY c.relname) "
        "FROM pg_class AS c WHERE c.relname IN ('booked_once', 'booked_n', 'booked_half')"
    )
    valid = "SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'booked'::regclass"
    oid = await aged.value("SELECT 'booked'::regclass::oid::bigint")
    journal = RunJournal(tmp_path, (await read_snapshot(target(aged).connect)).system_id)
    journal.write("started", kind=StepKind.REINDEX, database="app", relation_oid=oid)
    journal.close()
    before = str(await aged.value(files)).split(",")
    told = Told()
    outcome = await repair(aged.cluster.directory, tmp_path, Policy(), told=told)
    after = str(await aged.value(files)).split(",")
    assert await aged.value(valid) is True
    assert [one for one in after if one in before] == [
        one for one in before if one.startswith("booked_once")
    ]
    assert states(told, "reindex:") == ["failed"]
    assert told.asked == [f"reindex-locked:app:{oid}"]
    assert not outcome.is_complete
    assert any("booked_once" in result.words for _, result in outcome.ended)
    agreed = [Consent.BLOCKING_REINDEX]
    outcome = await repair(aged.cluster.directory, tmp_path, Policy(), agreed)
    assert outcome.is_complete, outcome.left.steps
    last = str(await aged.value(files)).split(",")
    assert not set(last) & set(before)
    again = Told()
    outcome = await repair(aged.cluster.directory, tmp_path, Policy(), told=again)
    assert [key for key, _ in again.ended_steps] == ["probe"]


@pytest.mark.parametrize("version", BOTH)
async def test_what_has_a_name_that_is_no_utf8_is_told_and_frozen_all_the_same(
    version: str, new_drill: NewDrill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drill = await new_drill(version)
    await drill.cluster.start()
    named = "quote_ident('caf' || chr(233))"
    await drill.execute_each(
        "postgres",
        "CREATE DATABASE app",
        "CREATE DATABASE odd",
        "CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE_PROVIDER libc LOCALE 'C'",
    )
    await drill.execute_each(
        "ascii",
        f"DO $$ BEGIN EXECUTE 'CREATE TABLE ' || {named} || ' AS SELECT 1 AS n'; "
        f"EXECUTE 'ALTER DATABASE odd RENAME TO ' || {named}; END $$",
        "CREATE TABLE plain AS SELECT 1 AS n",
    )
    await drill.cluster.stop()
    await move_to_xid(drill.cluster, HALFWAY_XIDS)
    await drill.cluster.start()
    directory = drill.cluster.directory
    seen = await read_snapshot(target(drill).connect)
    assert seen.missing == ()
    assert {one.name for one in seen.databases} >= {"app", r"caf\xe9", "ascii"}
    place = ["--data-dir", str(directory), "--state-dir", str(tmp_path)]
    await asyncio.to_thread(main, ["db", "status", *place])
    told = capsys.readouterr()
    assert r"caf\xe9" in told.out
    assert told.err == ""
    outcome = await repair(directory, tmp_path, POLICY)
    assert outcome.is_complete, [result.words for _, result in outcome.ended if result.words]
    oldest = await drill.value(OLDEST)
    assert isinstance(oldest, int)
    assert oldest < HALFWAY_XIDS // 10
    sessions = MaintenanceSessions(target(drill), 1000)
    counts = await count_rows(seen, sessions, digest=True)
    await sessions.close()
    rows = {one.table: (one.rows, one.fault) for one in counts.tables if one.database == "ascii"}
    assert rows == {
        r'"public"."caf\xe9"': (None, "its name is no UTF-8"),
        '"public"."plain"': (1, None),
    }


async def test_a_table_without_its_file_is_told_as_such_and_stops_no_other(
    aged: Drill, sessions: MaintenanceSessions
) -> None:
    path = await aged.value("SELECT pg_relation_filepath('lost')")
    oid = await aged.value("SELECT 'lost'::regclass::oid::bigint")
    assert isinstance(path, str)
    assert isinstance(oid, int)
    await aged.execute_each("app", "CHECKPOINT")
    (aged.cluster.directory / path).rename(aged.cluster.directory / f"{path}.away")
    step = Step(
        key="vacuum:1:app:lost",
        kind=StepKind.VACUUM,
        stage=1,
        database="app",
        object="app.public.lost",
        reason="",
        statements=("VACUUM (INDEX_CLEANUP OFF) public.lost",),
        relation_oid=oid,
    )
    result = await taker(sessions).take(step, None, await read_snapshot(target(aged).connect))
    (aged.cluster.directory / f"{path}.away").rename(aged.cluster.directory / path)
    assert result.fault is RepairFault.MISSING_FILE
    assert result.damage is not None
    assert (result.damage.kind, result.damage.relation) == ("file", "lost")


async def test_autovacuum_that_no_file_can_switch_on_is_not_waited_for(
    sessions: MaintenanceSessions,
) -> None:
    # As `postgres -c autovacuum=off` would stand there, and here another switch of one session's own.
    connection = await sessions.get("postgres")
    assert await overruled(connection, {"jit": "off", "autovacuum_naptime": "1s"}) == ""
    await connection.execute("SET jit = on")
    assert "jit is on by its session" in await overruled(connection, {"jit": "off"})


async def test_where_alter_system_is_forbidden_nothing_is_put_back_that_was_not_set(
    aged: Drill, sessions: MaintenanceSessions, tmp_path: Path
) -> None:
    path = aged.cluster.directory / "postgresql.conf"
    before = path.read_text()
    path.write_text(f"{before}\nallow_alter_system = off\n")
    await aged.execute_each("postgres", "SELECT pg_reload_conf()")
    journal = RunJournal(tmp_path, "1")
    step = Step(
        key="autovacuum:template0",
        kind=StepKind.AUTOVACUUM,
        stage=1,
        database="template0",
        object="template0",
        reason="",
        settings={"autovacuum_naptime": "1s"},
    )
    with pytest.raises(asyncpg.FeatureNotSupportedError):
        await call_autovacuum(step, sessions, journal)
    assert journal.settings_to_restore() == {}
    await restore_settings(sessions, journal)
    journal.close()
    path.write_text(before)
    await aged.execute_each("postgres", "SELECT pg_reload_conf()")


async def test_a_run_is_not_over_while_its_last_try_of_a_write_fails_whatever_for(
    aged: Drill, tmp_path: Path
) -> None:
    await repair(aged.cluster.directory, tmp_path, POLICY)
    await aged.execute_each(
        "postgres",
        "SET allow_in_place_tablespaces = on",
        "CREATE TABLESPACE gone LOCATION ''",
        "ALTER DATABASE postgres SET temp_tablespaces = gone",
    )
    oid = await aged.value("SELECT oid::bigint FROM pg_tablespace WHERE spcname = 'gone'")
    folder = aged.cluster.directory / "pg_tblspc" / str(oid)
    folder.rename(folder.with_suffix(".away"))
    told = Told()
    outcome = await repair(aged.cluster.directory, tmp_path, POLICY, told=told)
    folder.with_suffix(".away").rename(folder)
    assert told.ended_steps == [("probe", "failed")]
    assert not outcome.is_complete
    assert outcome.stopped is not None
    assert "No such file" in outcome.stopped
    outcome = await repair(aged.cluster.directory, tmp_path, POLICY)
    assert outcome.is_complete, outcome.stopped
    await aged.execute_each(
        "postgres", "ALTER DATABASE postgres RESET temp_tablespaces", "DROP TABLESPACE gone"
    )


async def fill(aged: Drill, *, but: int) -> list[asyncpg.Connection]:
    """Take every connection of the server, and give some up again."""
    taken = []
    while True:
        try:
            taken.append(await asyncpg.connect(aged.cluster.url("template1")))
        except asyncpg.TooManyConnectionsError:
            break
    for _ in range(but):
        await taken.pop().close()
    while True:  # A closed one is free only once its process has ended.
        free = await asyncpg.connect(aged.cluster.url("template1"))
        count = await free.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
        await free.close()
        if count == len(taken) + 1:
            return taken


async def test_a_run_goes_on_with_one_worker_where_two_connections_are_left(
    new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.cluster.start()
    await drill.execute_each("postgres", "CREATE DATABASE app", "CREATE DATABASE other")
    await drill.cluster.stop()
    await move_to_xid(drill.cluster, HALFWAY_XIDS)
    await drill.cluster.start()
    taken = await fill(drill, but=2)
    told = Told()
    async with asyncio.timeout(200):
        outcome = await repair(drill.cluster.directory, tmp_path, POLICY, told=told)
    assert outcome.is_complete, outcome.stopped
    assert {state for _, state in told.ended_steps} == {"done"}
    keys = [key for key, _ in told.ended_steps]
    assert len(keys) == len(set(keys)) > 300
    for connection in taken:
        await connection.close()


async def test_a_run_without_a_connection_waits_and_then_says_what_to_do(
    aged: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.dbops.repair.door.PATIENCE_S", 1.0)
    taken = await fill(aged, but=2)
    journal_place = target(aged)
    seen = await read_snapshot(journal_place.connect)
    taken += [await asyncpg.connect(aged.cluster.url("template1")) for _ in range(2)]
    told = Told()

    async def nobody(_: Step) -> None:
        """Agrees to nothing."""

    journal = RunJournal(tmp_path, seen.system_id)
    place = Surroundings(state_dir=tmp_path, data_dir=None, wal_folders=())
    run = Run(journal_place, POLICY, journal, place, confirm=nobody, report=told)
    with pytest.raises(DatabaseError, match=r"no connection free.*Two are enough.*--workers 1"):
        await run.go()
    journal.close()
    assert [words for words in told.words if words.startswith("waiting:")]
    for connection in taken:
        await connection.close()


async def test_a_login_that_the_databases_owner_lets_fail_is_got_past(aged: Drill) -> None:
    await aged.execute_each("postgres", "CREATE DATABASE trapped")
    await aged.execute_each(
        "trapped",
        "CREATE FUNCTION spring() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'sprung'; END $$",
        "CREATE EVENT TRIGGER trap ON login EXECUTE FUNCTION spring()",
        "ALTER EVENT TRIGGER trap ENABLE ALWAYS",
    )
    with pytest.raises(asyncpg.RaiseError):
        await asyncpg.connect(aged.cluster.url("trapped"))
    snapshot = await read_snapshot(target(aged).connect)
    assert snapshot.missing == ()
    alone = await target(aged).connect("trapped")
    assert await alone.fetchval("SELECT current_setting('event_triggers')") == "off"
    await alone.close()
    await aged.execute_each("postgres", "DROP DATABASE trapped")


async def test_a_server_that_refuses_writes_by_an_old_count_is_made_to_count_anew(
    new_drill: NewDrill, tmp_path: Path
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(StaleXidLimit(), silent)
    seen = await read_snapshot(target(drill).connect)
    assert seen.xids_left > 900_000_000
    assert not (await probe(drill.cluster.url)).back
    told = Told()
    policy = Policy(last_stage=1)
    outcome = await repair(drill.cluster.directory, tmp_path, policy, told=told)
    assert outcome.is_complete
    assert told.ended_steps == [("probe", "failed"), ("recount", "done"), ("probe", "done")]
    assert (await probe(drill.cluster.url)).back
