"""What an owner may set in a database against a superuser's repair, on a real 15 and 18."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from appliance.dbops.amcheck import Amcheck
from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.throwaway import ThrowAway
from appliance.dbops.remedies import check_rows, drop_temp_table
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.row_counts import RowCounts, count_rows
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.target import Target
from tests.drill_fixtures import BOTH, drill_on

GRAB = (
    "RETURNS {type} LANGUAGE plpgsql AS $$ BEGIN "
    "EXECUTE 'ALTER ROLE owner SUPERUSER'; RETURN {value}; END $$"
)
IS_SUPERUSER = "SELECT rolsuper FROM pg_roles WHERE rolname = 'owner'"


@pytest.fixture(scope="module", params=BOTH)
def owned(
    request: pytest.FixtureRequest,
    drill_folder: Path,
    pristine_clusters: Callable[[str], ThrowAway],
) -> Iterator[Drill]:
    """A cluster whose database app is a role's without any other right."""
    with asyncio.Runner() as runner:
        drill = runner.run(make_owned(drill_folder, pristine_clusters(request.param)))
        yield drill
        runner.run(drill.close())


async def make_owned(drill_folder: Path, template: ThrowAway) -> Drill:
    drill = await drill_on(template, drill_folder / f"owned-{template.directory.name}")
    await drill.cluster.start()
    await drill.execute_each("postgres", "CREATE ROLE owner", "CREATE DATABASE app OWNER owner")
    await drill.execute_each(
        "app",
        "CREATE EXTENSION IF NOT EXISTS amcheck",
        "SET ROLE owner; CREATE TABLE kept AS SELECT 1 AS n, now() AS at, interval '1 day' AS of, "
        r"'\x00'::bytea AS raw, 0.1::float8 + 0.2 AS share, 1.5::money AS price",
    )
    return drill


@pytest.fixture
async def sessions(owned: Drill) -> AsyncIterator[MaintenanceSessions]:
    """Those of a worker."""
    opened = MaintenanceSessions(Target(directory=owned.cluster.directory), 1000)
    yield opened
    await opened.close()


async def counts_of(owned: Drill, sessions: MaintenanceSessions) -> RowCounts:
    snapshot = await read_snapshot(Target(directory=owned.cluster.directory).connect)
    counts = await count_rows(snapshot, sessions, digest=True)
    assert [one.fault for one in counts.tables if one.fault] == []
    return counts


async def test_no_cast_of_a_tables_owner_runs_while_its_rows_are_counted(
    owned: Drill, sessions: MaintenanceSessions
) -> None:
    await owned.execute_each(
        "app",
        "SET ROLE owner; "
        f"CREATE FUNCTION grab(kept) {GRAB.format(type='text', value=repr('x'))}; "
        "CREATE CAST (kept AS text) WITH FUNCTION grab(kept)",
    )
    await counts_of(owned, sessions)
    assert await owned.value(IS_SUPERUSER) is False


async def test_no_namesake_of_amchecks_functions_runs_or_stands_in_their_way(
    owned: Drill, sessions: MaintenanceSessions
) -> None:
    given = ("text", "regclass", "regclass, boolean", "regclass, boolean, boolean")
    for types in given:
        await owned.execute_each(
            "app",
            "SET ROLE owner; "
            f"CREATE FUNCTION public.verify_heapam({types}, OUT blkno int, OUT msg text) "
            f"{GRAB.format(type='record', value='').replace('RETURN ;', 'RETURN;')}",
        )
    connection = await sessions.get("app")
    amcheck = await Amcheck.of(connection)
    assert amcheck is not None
    oid = await connection.fetchval("SELECT 'public.kept'::regclass::oid::bigint")
    assert await amcheck.first_bad_row(oid) is None
    call = check_rows(
        await connection.fetchval(
            "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'amcheck'"
        ),
        "'public.kept'",
    )
    assert await connection.fetch(f"SELECT blkno FROM {call}") == []
    assert await owned.value(IS_SUPERUSER) is False


async def test_a_role_that_a_database_sets_takes_no_right_from_the_operator(
    owned: Drill, sessions: MaintenanceSessions
) -> None:
    await owned.execute_each("postgres", "ALTER DATABASE app SET role = owner")
    connection = await sessions.get("app")
    assert await connection.fetchval("SELECT current_user = session_user")
    assert connection.get_settings().is_superuser == "on"
    await owned.execute_each("postgres", "ALTER DATABASE app RESET role")


async def test_the_defaults_of_a_database_change_no_hash_of_a_row(
    owned: Drill, sessions: MaintenanceSessions
) -> None:
    before = await counts_of(owned, sessions)
    await sessions.close()
    changed = {
        "TimeZone": "'Asia/Tokyo'",
        "DateStyle": "'German'",
        "IntervalStyle": "'postgres_verbose'",
        "bytea_output": "'escape'",
        "extra_float_digits": "0",
    }
    for name, value in changed.items():
        await owned.execute_each("postgres", f"ALTER DATABASE app SET {name} = {value}")
    assert await counts_of(owned, sessions) == before
    for name in changed:
        await owned.execute_each("postgres", f"ALTER DATABASE app RESET {name}")


async def test_an_event_trigger_refuses_no_repair(
    owned: Drill, sessions: MaintenanceSessions
) -> None:
    await owned.execute_each(
        "app",
        "CREATE TABLE unwanted ()",
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'refused'; END $$",
        "CREATE EVENT TRIGGER frozen ON ddl_command_start EXECUTE FUNCTION refuse()",
    )
    await (await sessions.get("app")).execute(drop_temp_table("public", "unwanted"))
    await owned.execute_each("app", "DROP EVENT TRIGGER frozen")


async def test_a_session_that_is_gone_leaves_a_table_with_a_view_of_it_that_can_be_dropped(
    owned: Drill, sessions: MaintenanceSessions
) -> None:
    """As an orphan's, without its session's end."""
    connection = await sessions.get("app")
    await connection.execute("CREATE TABLE public.scratch (n int)")
    await connection.execute("CREATE VIEW public.seen AS SELECT n FROM public.scratch")
    await connection.execute(drop_temp_table("public", "scratch"))
    assert await connection.fetchval("SELECT to_regclass('public.seen')") is None
