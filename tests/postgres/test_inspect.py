"""Inspection of a real cluster: what a person caused is told, each action works as it is printed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from appliance.cli.main import main
from appliance.dbops.blockers.blocker import BlockerKind
from appliance.dbops.blockers.blockers import Watch, blockers
from appliance.dbops.blockers.damage_probe import probe_damage
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.limits import MEMBERS_PER_SEGMENT
from appliance.dbops.snapshot.inspect import read_cluster, read_snapshot
from appliance.dbops.snapshot.snapshot import AgeMin, Database, Relation, Snapshot
from appliance.dbops.target import Connection, Target
from appliance.errors import DatabaseError, NotRunning
from appliance.store.journal_frame import KEY_BYTES, header
from appliance.task_notes import read_database
from tests.postgres_fixtures import execute, quiet

TABLES = 100


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two databases with prepared transactions and logical slots; autovacuum sleeps."""
    folder = tmp_path_factory.mktemp("watched") / "postgres"
    cluster = Cluster(folder, find_binaries())

    async def make() -> None:
        await cluster.init(quiet)
        await cluster.start(quiet)
        for setting in (
            "fsync = off",
            # One test kills a session, and nobody here would start the server again.
            "restart_after_crash = on",
            "max_prepared_transactions = 5",
            "wal_level = logical",
            "autovacuum_naptime = '50min'",
        ):
            await execute(cluster, f"ALTER SYSTEM SET {setting}")
        await execute(cluster, "CREATE DATABASE app")
        await execute(cluster, "CREATE DATABASE other")
        await execute(cluster, "CREATE DATABASE damaged")
        paths = await make_damaged(cluster)
        await cluster.stop()
        for path, page in zip(paths, (3, 4), strict=True):
            damage(cluster.directory / path, page)
        await cluster.start(quiet)
        await in_app(
            cluster,
            "CREATE TABLE turns (id int PRIMARY KEY, body text)",
            "INSERT INTO turns SELECT n, repeat('x', 500) FROM generate_series(1, 2000) AS n",
            "DELETE FROM turns WHERE id <= 500",
            f"DO $$ BEGIN FOR n IN 1..{TABLES} LOOP "
            "EXECUTE format('CREATE TABLE many_%s (i int, t text)', n); END LOOP; END $$",
        )

    with asyncio.Runner() as runner:
        runner.run(make())
        yield cluster
        runner.run(cluster.stop())


@pytest.fixture
async def client(watched: Cluster) -> AsyncIterator[Connection]:
    """A client of the database app."""
    connection = await asyncpg.connect(watched.url("app"))
    yield connection
    await connection.close()


async def make_damaged(cluster: Cluster) -> list[str]:
    """Two tables in a database of their own; the files of a table and of an index, to be damaged."""
    connection = await asyncpg.connect(cluster.url("damaged"))
    try:
        for statement in (
            "CREATE TABLE broken (i int, t text)",
            "INSERT INTO broken SELECT n, repeat('y', 500) FROM generate_series(1, 500) AS n",
            "CREATE TABLE misled (i int PRIMARY KEY)",
            "INSERT INTO misled SELECT generate_series(1, 5000)",
        ):
            await connection.execute(statement)
        query = "SELECT pg_relation_filepath($1::text::regclass)"
        return [await connection.fetchval(query, name) for name in ("broken", "misled_pkey")]
    finally:
        await connection.close()


def damage(path: Path, page: int) -> None:
    """Change eight bytes of a page, so that its checksum is wrong."""
    with path.open("r+b") as file:
        file.seek(page * 8192 + 4000)
        file.write(b"GARBAGE!")


async def in_app(cluster: Cluster, *statements: str) -> None:
    connection = await asyncpg.connect(cluster.url("app"))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def target(cluster: Cluster) -> Target:
    return Target(directory=cluster.directory)


async def snapshot_of(cluster: Cluster) -> Snapshot:
    return await read_snapshot(target(cluster).connect)


def app(snapshot: Snapshot) -> Database:
    found = snapshot.database("app")
    assert found is not None
    return found


def table(snapshot: Snapshot, name: str) -> Relation:
    (found,) = (item for item in app(snapshot).relations or () if item.name == name)
    return found


def run(cluster: Cluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """What `appliance db` gives and prints."""
    code = main(["db", *arguments, "--data-dir", str(cluster.directory)])
    return code, capsys.readouterr().out


async def test_everything_is_read_and_no_xid_is_taken(watched: Cluster) -> None:
    before = await snapshot_of(watched)
    after = await snapshot_of(watched)
    assert before.missing == ()
    assert after.next_xid == before.next_xid
    assert before.next_xid > 700
    assert before.version == 180_006 or before.major == 18
    assert before.members is not None
    assert before.members.used == MEMBERS_PER_SEGMENT
    assert {item.name for item in before.databases} == {
        "postgres",
        "template0",
        "template1",
        "app",
        "other",
        "damaged",
    }
    closed = before.database("template0")
    assert closed is not None
    assert (closed.connectable, closed.relations) == (False, None)
    assert 0 < closed.xid_age <= before.xid_age
    assert before.autovacuum_launcher is True
    assert [item.own for item in before.sessions if item.application == "appliance-db"] == [True]
    assert sum(item.name.startswith("many_") for item in app(before).relations or ()) == TABLES


async def test_a_relation_that_was_never_vacuumed_has_its_real_size(watched: Cluster) -> None:
    turns = table(await snapshot_of(watched), "turns")
    assert turns.pages * 8192 == await _size(watched)
    assert turns.pages_not_frozen == turns.pages > 100
    assert turns.pages_all_frozen == 0
    assert (turns.last_autovacuum, turns.shared, turns.catalog) == (None, False, False)
    toast = [item for item in app(await snapshot_of(watched)).relations or () if item.toast_owner]
    assert turns.oid in {item.toast_owner for item in toast}


async def _size(cluster: Cluster) -> object:
    connection = await asyncpg.connect(cluster.url("app"))
    try:
        return await connection.fetchval("SELECT pg_relation_size('turns')")
    finally:
        await connection.close()


async def test_a_doctors_findings_are_told_and_its_actions_work_as_printed(
    watched: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    # Case D07: a forgotten transaction, a prepared one, an unused slot, a table with dead rows.
    # A slot waits for the transactions that run when it is made.
    await in_app(watched, "SELECT pg_create_logical_replication_slot('unused', 'test_decoding')")
    forgotten = await asyncpg.connect(
        watched.url("app"), server_settings={"application_name": "psql"}
    )
    await forgotten.execute("BEGIN")
    await forgotten.execute("SELECT txid_current()")
    await in_app(watched, "BEGIN", "INSERT INTO many_1 VALUES (1)", "PREPARE TRANSACTION 'left''s'")
    scratch = await asyncpg.connect(watched.url("app"))
    await scratch.execute("CREATE TEMP TABLE scratch (i int)")
    locking = await asyncpg.connect(watched.url("app"))
    await locking.execute("BEGIN; LOCK TABLE turns IN SHARE UPDATE EXCLUSIVE MODE")

    options = ("diagnose", "--json", "--older-than", "0", "--age", "0")
    code, printed = await asyncio.to_thread(run, watched, capsys, *options)
    told = json.loads(printed)
    assert (code, told["severity"]) == (1, "warning")
    found = {item["kind"]: item for item in told["blockers"]}
    (transaction,) = (
        item
        for item in told["blockers"]
        if item["kind"] == "idle_in_transaction" and "txid_current" in item["detail"]
    )
    assert transaction["pid"] == forgotten.get_server_pid()
    assert "application psql" in transaction["detail"]
    assert found["prepared_transaction"]["gid"] == "left's"
    assert found["logical_slot"]["slot"] == "unused"
    assert found["live_temp_table"]["pid"] == scratch.get_server_pid()
    locked = [item for item in told["blockers"] if item["kind"] == "lock"]
    assert locking.get_server_pid() in {item["pid"] for item in locked}
    (turns,) = (item for item in told["tables"] if item["name"] == "turns")
    assert turns["dead_share"] == 0.25
    assert turns["last_autovacuum"] is None
    assert told["levels"]["xids"] == {
        "lagging": 240_000_000,
        "failsafe": 1_600_000_000,
        "warn": 2_107_483_647,
        "stopped": 2_144_483_647,
    }
    assert all(0 < item["xid_age_share"] < 0.001 for item in told["databases"])

    for kind in ("prepared_transaction", "logical_slot", "live_temp_table"):
        await _do(watched, found[kind]["actions"][-1])
    for item in [transaction, *locked]:
        for action in item["actions"]:
            await _do(watched, action)
    code, printed = await asyncio.to_thread(run, watched, capsys, *options)
    kinds = {item["kind"] for item in json.loads(printed)["blockers"]}
    assert kinds == {"old_database", "unconnectable_database"}
    code, printed = await asyncio.to_thread(run, watched, capsys, "diagnose")
    assert code == 0
    assert "nothing holds it back" in printed
    for connection in (forgotten, scratch, locking):
        connection.terminate()


async def _do(cluster: Cluster, action: dict[str, str]) -> None:
    """Enter an action as a person would, where it says; what is gone already is gone."""
    connection = await asyncpg.connect(cluster.url(action["database"] or "postgres"))
    try:
        for statement in action["text"].split("; "):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_the_orphans_of_a_crash_are_found_and_dropped_as_printed(
    watched: Cluster, client: Connection
) -> None:
    await client.execute("CREATE TEMP TABLE lost (i int)")
    living = app(await snapshot_of(watched)).temp_namespaces
    assert living is not None
    assert living[0].owners == (client.get_server_pid(),)
    os.kill(client.get_server_pid(), signal.SIGKILL)
    async with asyncio.timeout(20):
        while True:
            try:
                snapshot = await snapshot_of(watched)
                break
            except (DatabaseError, NotRunning):
                await asyncio.sleep(0.05)
    found = blockers(snapshot, Watch(relation_age_min=0))
    (orphan,) = (item for item in found if item.kind == BlockerKind.ORPHANED_TEMP_TABLE)
    assert orphan.id.endswith('"lost"')
    await in_app(watched, orphan.actions[0].text)
    assert app(await snapshot_of(watched)).temp_namespaces == ()


async def test_the_table_of_a_living_session_is_no_orphan_after_the_clock_was_set_back(
    watched: Cluster, client: Connection
) -> None:
    await client.execute("CREATE TEMP TABLE kept (i int)")
    path = watched.directory / await client.fetchval("SELECT pg_relation_filepath('kept')")
    earlier = path.stat().st_mtime - 3600
    os.utime(path, (earlier, earlier))
    found = blockers(await snapshot_of(watched), Watch(relation_age_min=0))
    assert BlockerKind.ORPHANED_TEMP_TABLE not in {item.kind for item in found}
    (living,) = (item for item in found if item.kind == BlockerKind.LIVE_TEMP_TABLE)
    assert living.pid == client.get_server_pid()


async def test_a_locked_table_is_read_past(watched: Cluster, client: Connection) -> None:
    async with client.transaction():
        await client.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
        snapshot = await snapshot_of(watched)
    assert snapshot.missing == ()
    assert table(snapshot, "turns").pages > 100
    (lock,) = (item for item in snapshot.locks if item.pid == client.get_server_pid())
    assert (lock.mode, lock.granted) == ("AccessExclusiveLock", True)
    assert lock.relation_oid == table(snapshot, "turns").oid


async def test_a_part_that_cannot_be_read_is_named_and_the_rest_is_there(
    watched: Cluster, client: Connection
) -> None:
    whole = target(watched)

    async def impatient(database: str | None) -> Connection:
        return await whole.connect(database, lock_timeout_ms=100)

    async with client.transaction():
        await client.execute("LOCK TABLE pg_catalog.pg_namespace IN ACCESS EXCLUSIVE MODE")
        locked = await read_snapshot(impatient)
    assert app(locked).relations is None
    assert {(item.part, item.database) for item in locked.missing} == {("relations", "app")}
    other = locked.database("other")
    assert other is not None
    assert other.relations

    async def hurried(database: str | None) -> Connection:
        return await whole.connect(
            database, statement_timeout_ms=1 if database == "app" else 10_000
        )

    timed_out = await read_snapshot(hurried)
    assert {item.database for item in timed_out.missing} == {"app"}
    assert "timeout" in timed_out.missing[0].reason


async def test_a_database_that_refuses_is_named_and_the_rest_is_there(watched: Cluster) -> None:
    oid = app(await snapshot_of(watched)).oid
    version = watched.directory / "base" / str(oid) / "PG_VERSION"
    hidden = version.with_name("PG_VERSION.hidden")
    version.rename(hidden)
    try:
        snapshot = await snapshot_of(watched)
    finally:
        hidden.rename(version)
    assert [(item.part, item.database) for item in snapshot.missing] == [("relations", "app")]
    assert app(snapshot).xid_age > 0


async def test_what_a_session_of_another_encoding_runs_stops_no_reading(watched: Cluster) -> None:
    await execute(
        watched,
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc",
    )
    connection = await asyncpg.connect(watched.url("latin"))
    try:
        await connection.execute("SELECT 'café', pg_backend_pid()")
        snapshot = await read_snapshot(target(watched).connect)
    finally:
        await connection.close()
        await execute(watched, "DROP DATABASE latin")
    said = [session.query for session in snapshot.sessions if session.database == "latin"]
    assert said == ["SELECT 'caf\ufffd', pg_backend_pid()"]


async def test_an_owners_settings_put_nothing_before_the_servers_own(watched: Cluster) -> None:
    await execute(watched, "CREATE DATABASE trapped")
    owner = await asyncpg.connect(watched.url("trapped"))
    try:
        await owner.execute("CREATE SCHEMA trap")
        await owner.execute(
            "CREATE FUNCTION trap.age(xid) RETURNS integer LANGUAGE sql AS 'SELECT 1 / 0'"
        )
        # It fits two names better than the server's own, which takes any values.
        await owner.execute(
            "CREATE FUNCTION public.format(text, name, name) RETURNS text LANGUAGE sql AS 'SELECT 1 / 0'"
        )
        await owner.execute("ALTER DATABASE trapped SET search_path = trap, pg_catalog")
        await owner.execute("ALTER DATABASE trapped SET standard_conforming_strings = off")
        session = await target(watched).connect("trapped")
        try:
            assert await session.fetchval("SELECT age('3'::xid) IS NOT NULL")
            names = "SELECT format('%I.%I', 'a'::name, 'b'::name)"
            assert await session.fetchval(names) == "a.b"
            assert await session.fetchval("SELECT 'a\\'") == "a\\"
        finally:
            await session.close()
    finally:
        await owner.close()
        await execute(watched, "DROP DATABASE trapped")


async def test_what_a_poor_role_may_not_see_is_named(watched: Cluster) -> None:
    await in_app(watched, "CREATE ROLE poor LOGIN", "CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    try:
        url = watched.url().replace("//postgres@", "//poor@")
        poor = await read_snapshot(Target(url=url).connect)
        url = watched.url().replace("//postgres@", "//watcher@")
        watcher = await read_snapshot(Target(url=url).connect)
    finally:
        await in_app(watched, "DROP ROLE poor", "DROP ROLE watcher")
    assert {"other users' sessions", "multixact member space"} <= {m.part for m in poor.missing}
    assert poor.autovacuum_launcher is None
    assert app(poor).relations
    assert "other users' sessions" not in {item.part for item in watcher.missing}
    assert watcher.autovacuum_launcher is True


async def test_a_vacuum_at_work_holds_nothing_back(watched: Cluster, client: Connection) -> None:
    await client.execute("SET vacuum_cost_delay = 20; SET vacuum_cost_limit = 1")
    work = asyncio.create_task(client.execute("VACUUM turns"))
    pid = client.get_server_pid()
    while not (snapshot := await read_cluster(target(watched).connect)).vacuums:
        await asyncio.sleep(0.02)
    (vacuum,) = snapshot.vacuums
    assert (vacuum.pid, vacuum.database, vacuum.automatic) == (pid, "app", False)
    (session,) = (item for item in snapshot.sessions if item.pid == pid)
    assert session.vacuuming
    assert session.horizon_age is None
    await execute(watched, f"SELECT pg_cancel_backend({pid})")
    with pytest.raises(asyncpg.QueryCanceledError):
        await work


async def test_a_damaged_page_and_a_damaged_index_are_found_when_asked_for(
    watched: Cluster,
) -> None:
    snapshot = await snapshot_of(watched)
    old = AgeMin(xid=0, mxid=0)
    damages, missing = await probe_damage(target(watched), snapshot, old, seconds_max=60)
    assert {(item.relation, item.index) for item in damages} == {
        ("broken", None),
        ("misled", "misled_pkey"),
    }
    assert not missing
    assert (await snapshot_of(watched)).next_xid == snapshot.next_xid
    # A second look finds the damage in the log that the first one left, and says when time is up.
    damages, missing = await probe_damage(target(watched), snapshot, old, seconds_max=0)
    assert {item.relation for item in damages} == {"broken", "misled"}
    assert all(item.message.startswith("in the server's log: ") for item in damages)
    assert any("damage in" in item.part for item in missing)


def test_status_is_one_screen_and_its_exit_code_is_for_monitoring(
    watched: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text = run(watched, capsys, "status", "--state-dir", str(tmp_path))
    assert code == 0
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "template0" in text
    assert b"appliance_db_up 1.0\n" in read_database(tmp_path)
    assert b"appliance_db_backup_timestamp_seconds " in read_database(tmp_path)
    away = ("--url", "postgresql://postgres@127.0.0.1:1/postgres", "--state-dir", str(tmp_path))
    assert main(["db", "status", *away]) == 2
    assert b"appliance_db_up 0.0\n" in read_database(tmp_path)
    capsys.readouterr()
    code, text = run(watched, capsys, "status", "--json", "--state-dir", str(tmp_path))
    told = json.loads(text)
    assert told["severity"] == "ok"
    assert told["xids"]["left"] > 2_000_000_000
    assert {item["name"] for item in told["databases"]} >= {"template0", "app", "other"}
    assert told["autovacuum"]["overdue"] == 0
    assert told["journal"] is None
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "turns").write_bytes(header(b"k" * KEY_BYTES))
    code, text = run(watched, capsys, "status", "--state-dir", str(tmp_path))
    assert "journal            empty" in text
    (tmp_path / "journal" / "turns").write_bytes(b"no journal")
    code, text = run(watched, capsys, "status", "--state-dir", str(tmp_path))
    assert "the journal cannot be read" in text


def test_a_rate_comes_from_the_sample_of_an_earlier_status(
    watched: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(watched, capsys, "status", "--state-dir", str(tmp_path))
    path = tmp_path / "db-samples.json"
    (sample,) = json.loads(path.read_text())
    # As it would have been, had it been taken 100 s earlier with 30,000 XIDs a second since.
    sample["at_s"] -= 100
    sample["next_xid"] -= 3_000_000
    path.write_text(json.dumps([sample]))
    code, text = run(watched, capsys, "status", "--json", "--state-dir", str(tmp_path))
    told = json.loads(text)
    assert told["rate"]["xids_per_s"] == pytest.approx(30_000, rel=0.2)
    assert told["xids"]["days_left"] == pytest.approx(0.83, rel=0.2)
    # Less than two days are left: critical, however young the cluster is.
    assert (code, told["severity"]) == (2, "critical")
    assert "burn_rate" in {item["kind"] for item in told["blockers"]}
    path.write_text("{")
    code, text = run(watched, capsys, "status", "--state-dir", str(tmp_path))
    assert code == 0
    assert "not known" in text


def test_metrics_are_printed_or_written_and_a_database_that_is_away_is_one_too(
    watched: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text = run(watched, capsys, "metrics")
    assert code == 0
    assert "appliance_db_up 1.0" in text
    assert 'appliance_db_xids_left{database="template0"}' in text
    written = tmp_path / "appliance.prom"
    assert run(watched, capsys, "metrics", "--output", str(written)) == (0, "")
    assert "appliance_db_up 1.0" in written.read_text()
    assert written.stat().st_mode & 0o777 == 0o644
    code = main(["db", "metrics", "--url", "postgresql://postgres@127.0.0.1:1/postgres"])
    assert code == 2
    assert "appliance_db_up 0.0" in capsys.readouterr().out
