"""Damaged pages of a real 15 and 18: found whatever hides them, given up, and no trace of them left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from appliance.dbops.blockers.damage import Damage, DamageKind
from appliance.dbops.blockers.damage_probe import probe_damage
from appliance.dbops.drill.counters import move_to_xid
from appliance.dbops.drill.damage import DAMAGED_PAGE, PAGE_BYTES
from appliance.dbops.drill.drill import HALFWAY_XIDS, Drill
from appliance.dbops.drill.throwaway import ThrowAway
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Consent, StepKind
from appliance.dbops.repair.empty_page import empty_page, page_checksum
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.row_counts import count_rows
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.snapshot.snapshot import AgeMin
from appliance.dbops.target import Connection, Target
from tests.drill_fixtures import BOTH, EMBEDDED, NewDrill, drill_on
from tests.postgres.repair_cases import check_no_row_is_taken_for_a_lost_one
from tests.repairs import repair

ROWS, TEXT = 2000, "repeat('z', 980)"
"""Eight rows fill a page, so that it is taken for new ones only once nothing is on it."""

LONG_ROWS = 60
HIDDEN = (
    "CREATE TABLE hidden (n int PRIMARY KEY, body text)",
    f"INSERT INTO hidden SELECT n, {TEXT} FROM generate_series(1, {ROWS}) AS n",
    "VACUUM (ANALYZE) hidden",
)
"""All of it is visible to all, and its index is a fraction of it: to count its rows, that is enough."""

LOST = (
    "CREATE TABLE lost (n int PRIMARY KEY, body text)",
    f"INSERT INTO lost SELECT n, {TEXT} FROM generate_series(1, 200) AS n",
)
LONG = (
    "CREATE TABLE long (n int, body text)",
    "ALTER TABLE long ALTER body SET STORAGE EXTERNAL",
    f"INSERT INTO long SELECT n, repeat(n::text, 4000) FROM generate_series(1, {LONG_ROWS}) AS n",
)
TOAST = "(SELECT reltoastrelid FROM pg_class WHERE relname = 'long')"
ANY_AGE = AgeMin(xid=0, mxid=0)


@pytest.fixture(scope="module", params=BOTH)
def damaged(
    request: pytest.FixtureRequest,
    drill_folder: Path,
    pristine_clusters: Callable[[str], ThrowAway],
) -> Iterator[Drill]:
    """Tables half way to the stop, a page of each damaged; in the database bare there is no amcheck."""
    with asyncio.Runner() as runner:
        drill = runner.run(make_damaged(drill_folder, pristine_clusters(request.param)))
        yield drill
        runner.run(drill.close())


async def make_damaged(drill_folder: Path, template: ThrowAway) -> Drill:
    drill = await drill_on(template, drill_folder / f"damaged-{template.directory.name}")
    await drill.cluster.start()
    await drill.execute_each(
        "postgres",
        "ALTER SYSTEM SET logging_collector = on",
        "CREATE DATABASE app",
        "CREATE DATABASE bare TEMPLATE template0",
    )
    await drill.execute_each("app", *HIDDEN, *LOST, *LONG)
    await drill.execute_each("bare", *HIDDEN)
    paths = [
        await drill.value(f"SELECT pg_relation_filepath({name})", database)
        for database, name in (
            ("app", "'hidden'"),
            ("app", "'lost'"),
            ("app", TOAST),
            ("bare", "'hidden'"),
        )
    ]
    await drill.cluster.stop()
    await move_to_xid(drill.cluster, HALFWAY_XIDS)
    for path in paths:
        drill.cluster.overwrite(
            Path(str(path)), PAGE_BYTES * DAMAGED_PAGE + PAGE_BYTES // 2, b"GARBAGE!"
        )
    await drill.cluster.start()
    await drill.execute_each("bare", "DROP EXTENSION amcheck")  # A start has made it.
    return drill


def target(drill: Drill) -> Target:
    return Target(directory=drill.cluster.directory)


async def found(drill: Drill) -> list[Damage]:
    damages, missing = await probe_damage(
        target(drill), await read_snapshot(target(drill).connect), ANY_AGE, seconds_max=60
    )
    assert missing == ()
    return list(damages)


async def test_a_page_that_no_count_needs_is_found_all_the_same(damaged: Drill) -> None:
    hidden = [one for one in await found(damaged) if one.relation == "hidden"]
    assert [(one.database, one.kind) for one in hidden] == [
        ("app", DamageKind.PAGE),
        ("bare", DamageKind.PAGE),
    ]
    assert not any("in the server's log" in one.message for one in hidden)
    sessions = MaintenanceSessions(target(damaged), 1000)
    counts = await count_rows(await read_snapshot(target(damaged).connect), sessions, digest=False)
    await sessions.close()
    rows = {(one.database, one.table): one.rows for one in counts.tables}
    assert rows == {
        ("app", '"public"."hidden"'): None,
        ("app", '"public"."lost"'): None,
        ("app", '"public"."long"'): LONG_ROWS,
        ("bare", '"public"."hidden"'): None,
    }


async def test_a_page_that_was_given_up_leaves_no_entry_in_an_index_and_is_told_no_more(
    damaged: Drill, tmp_path: Path
) -> None:
    outcome = await repair(
        damaged.cluster.directory, tmp_path, Policy(last_stage=2), [Consent.ZERO_DAMAGED_PAGES]
    )
    assert outcome.is_complete, outcome.left.steps
    rebuilt = [step.relation_oid for step, _ in outcome.ended if step.kind is StepKind.REINDEX]
    given_up = [step.relation_oid for step, _ in outcome.ended if step.kind is StepKind.ZERO_PAGES]
    assert len(given_up) == 4
    assert sorted(map(str, rebuilt)) == sorted(map(str, given_up))
    connection = await damaged.connect()
    await check_no_row_is_taken_for_a_lost_one(connection, "lost")
    await check_no_text_is_taken_for_a_lost_one(connection)
    await check_no_row_that_nobody_wrote_is_seen(connection)
    await connection.close()
    assert await found(damaged) == []
    # An index's name alone says neither where it is nor that it is damaged still.
    log = await damaged.value("SELECT pg_current_logfile()")
    with (damaged.cluster.directory / str(log)).open("a") as file:
        file.write('ERROR:  index "hidden_pkey" contains corrupted page at block 1\n')
    told = [(one.database, one.index) for one in await found(damaged)]
    assert told == [("bare", "hidden_pkey")]


async def check_no_row_that_nobody_wrote_is_seen(connection: Connection) -> None:
    """All of the table was visible to all before its page was given up, and an index-only scan asks no
    page about its rows that still is so."""
    page = f"ctid >= '({DAMAGED_PAGE},0)' AND ctid < '({DAMAGED_PAGE + 1},0)'"
    await connection.execute(
        f"BEGIN; INSERT INTO hidden SELECT n, {TEXT} FROM generate_series(9001, 9100) AS n"
    )
    assert await connection.fetchval(f"SELECT count(*) FROM hidden WHERE {page}") > 0
    await connection.execute("ROLLBACK; SET enable_seqscan = off; SET enable_bitmapscan = off")
    count = "SELECT count(n) FROM hidden WHERE n > 9000"
    plan = await connection.fetch(f"EXPLAIN {count}")
    assert any("Index Only Scan" in row[0] for row in plan), plan
    assert await connection.fetchval(count) == 0


@pytest.mark.parametrize("block", [0, DAMAGED_PAGE, (1 << 32) - 2])
async def test_an_empty_page_has_the_checksum_of_its_place(damaged: Drill, block: int) -> None:
    page = empty_page(PAGE_BYTES, block, little_endian=True)
    connection = await damaged.connect()
    header = await connection.fetchrow("SELECT * FROM page_header($1)", page)
    told = await connection.fetchval("SELECT page_checksum($1, $2)", page, block)
    await connection.close()
    assert header is not None
    assert header["checksum"] == told
    assert (header["flags"], header["lower"], header["upper"]) == (4, 24, PAGE_BYTES)
    noise = random.Random(block).randbytes(PAGE_BYTES)
    noise = noise[:8] + bytes(2) + noise[10:]
    assert page_checksum(noise, block, little_endian=True) == await checksum_of(
        damaged, noise, block
    )


async def checksum_of(drill: Drill, page: bytes, block: int) -> int:
    """As the server's own extension computes it."""
    connection = await drill.connect()
    found: int = await connection.fetchval("SELECT page_checksum($1, $2)", page, block)
    await connection.close()
    return found & 0xFFFF


async def check_no_text_is_taken_for_a_lost_one(connection: Connection) -> None:
    await connection.execute(
        "INSERT INTO long SELECT n, repeat('x', 8000) FROM generate_series(901, 920) AS n"
    )
    lost = []
    for key in range(1, LONG_ROWS + 1):
        try:
            text = await connection.fetchval("SELECT body FROM long WHERE n = $1", key)
        except asyncpg.PostgresError as error:
            lost.append(str(error))
        else:
            assert text == str(key) * 4000
    assert 0 < len(lost) < LONG_ROWS
    assert all("missing chunk" in words for words in lost)


async def test_a_log_line_is_of_the_index_in_its_own_database(new_drill: NewDrill) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.cluster.start()
    await drill.execute_each(
        "postgres",
        "ALTER SYSTEM SET logging_collector = on",
        "ALTER SYSTEM SET log_line_prefix = '%m [%p] %q%d %a '",
        "CREATE DATABASE app",
        "CREATE DATABASE bare TEMPLATE template0",
    )
    for database in ("app", "bare"):
        await drill.execute_each(
            database,
            "CREATE TABLE same (n int PRIMARY KEY)",
            "INSERT INTO same SELECT generate_series(1, 1000)",
        )
    path = await drill.value("SELECT pg_relation_filepath('same_pkey')")
    await drill.cluster.stop()
    drill.cluster.overwrite(Path(str(path)), PAGE_BYTES, bytes(PAGE_BYTES))
    await drill.cluster.start()
    # Where there is no amcheck, nobody can say that an index is in order.
    await drill.execute_each("bare", "DROP EXTENSION amcheck")
    with pytest.raises(asyncpg.IndexCorruptedError):
        await drill.execute_each("app", "SET enable_seqscan = off", "SELECT FROM same WHERE n = 5")
    told = [(one.database, one.index) for one in await found(drill) if one.relation == "same"]
    assert told == [("app", "same_pkey")]


async def test_a_damaged_page_of_long_values_is_no_damaged_index_and_its_loss_is_told(
    damaged: Drill, tmp_path: Path
) -> None:
    """The page is frozen, so that nothing meets it before what comes after freezing: an ANALYZE."""
    await damaged.execute_each("postgres", "CREATE DATABASE whole")
    await damaged.execute_each(
        "whole",
        "CREATE TABLE noted (n int, body text)",
        "ALTER TABLE noted ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO noted SELECT n, repeat(n::text, 4000) FROM generate_series(1, {LONG_ROWS}) AS n",
        "CREATE INDEX noted_digest ON noted (md5(body))",
        "VACUUM (FREEZE) noted",
    )
    # A copy of files, of which no page is in memory.
    await damaged.execute_each("postgres", "CREATE DATABASE torn TEMPLATE whole STRATEGY file_copy")
    noted = await damaged.value("SELECT 'noted'::regclass::oid::bigint", "torn")
    toast = await damaged.value(
        "SELECT reltoastrelid::bigint FROM pg_class WHERE relname = 'noted'", "torn"
    )
    path = await damaged.value(f"SELECT pg_relation_filepath({toast}::regclass)", "torn")
    damaged.cluster.overwrite(
        Path(str(path)), PAGE_BYTES * DAMAGED_PAGE + PAGE_BYTES // 2, b"GARBAGE!"
    )
    journal = RunJournal(tmp_path, (await read_snapshot(target(damaged).connect)).system_id)
    journal.write("started", kind=StepKind.VACUUM, database="torn", relation_oid=noted)
    journal.close()
    directory = damaged.cluster.directory
    outcome = await repair(directory, tmp_path, Policy())
    tried = {step.kind for step, _ in outcome.ended if step.database == "torn"}
    assert StepKind.REINDEX not in tried
    left = {step.kind: step for step in outcome.left.steps if step.database == "torn"}
    assert left.keys() == {StepKind.ZERO_PAGES, StepKind.REPAIR}
    assert left[StepKind.ZERO_PAGES].relation_oid == toast
    assert "cannot be read any more (missing chunk)" in left[StepKind.ZERO_PAGES].choices[0].loses
    outcome = await repair(directory, tmp_path, Policy(), [Consent.ZERO_DAMAGED_PAGES])
    ended = [step for step, _ in outcome.ended if step.database == "torn"]
    assert [step.relation_oid for step in ended if step.kind is StepKind.REINDEX] == [toast]
    (asked,) = [step for step in outcome.left.steps if step.database == "torn"]
    assert (asked.kind, asked.relation_oid) == (StepKind.ASK, noted)
    assert "a long value in it cannot be read" in asked.reason
    await damaged.execute_each("postgres", "DROP DATABASE torn", "DROP DATABASE whole")
