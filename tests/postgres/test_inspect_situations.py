"""Real clusters in the stop: what is told, and where vacuumdb and published queries see nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from appliance.dbops.blockers.blocker import Blocker, BlockerKind
from appliance.dbops.blockers.blockers import blockers
from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.registry import situation
from appliance.dbops.drill.throwaway import silent
from appliance.dbops.limits import STOP_AGE, Stage
from appliance.dbops.monitoring.status import Severity, severity_of
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.dbops.target import Target
from tests.drill_fixtures import BOTH, EMBEDDED, NewDrill

# As they are published, in our own words: the filter of postgres_exporter's collector database_wraparound
# and of pgmonitor's query, and the list of tables in PostgreSQL's manual (24.1.5).
DATABASES = """
SELECT max(age(datfrozenxid)) AS xids, max(mxid_age(datminmxid)) AS mxids
  FROM pg_database WHERE datallowconn
"""
TABLES = """
SELECT max(greatest(age(c.relfrozenxid), age(t.relfrozenxid)))
  FROM pg_class AS c LEFT JOIN pg_class AS t ON t.oid = c.reltoastrelid
 WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't'
"""
ALARM_AGE = 1_500_000_000
"""Where guides put `critical`."""


async def driven(new_drill: NewDrill, version: str, name: str) -> Drill:
    drill = await new_drill(version)
    await drill.drive(situation(name), silent)
    return drill


async def look(drill: Drill) -> tuple[Snapshot, tuple[Blocker, ...]]:
    snapshot = await read_snapshot(target(drill).connect)
    assert snapshot.missing == ()
    return snapshot, blockers(snapshot)


def target(drill: Drill) -> Target:
    return Target(url=drill.cluster.url("postgres"))


async def published(drill: Drill) -> tuple[int, int, int]:
    """(XID age, MXID age, age of the oldest table of the application) that the queries see."""
    connection = await asyncpg.connect(drill.cluster.url("app"))
    try:
        row = await connection.fetchrow(DATABASES)
        assert row is not None
        return row["xids"], row["mxids"], await connection.fetchval(TABLES)
    finally:
        await connection.close()


def vacuumdb(drill: Drill, *options: str) -> str:
    """What the program of this version says when it is to mend every database."""
    place = parse_qs(urlsplit(drill.cluster.url("postgres")).query)
    done = subprocess.run(
        [
            drill.cluster.binaries.program("vacuumdb"),
            *("--host", place["host"][0], "--port", place["port"][0], "--username", "postgres"),
            *("--all", "--echo", "--no-index-cleanup", "--no-truncate", *options),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path("/"),
    )
    return done.stdout + done.stderr


def first(found: tuple[Blocker, ...]) -> Blocker:
    """The gravest, apart from autovacuum, which sleeps in every drill."""
    return next(item for item in found if item.kind != BlockerKind.AUTOVACUUM_OFF)


async def test_template0_alone_stops_a_cluster_and_is_told(new_drill: NewDrill) -> None:
    drill = await driven(new_drill, EMBEDDED, "template0")
    xids, mxids, tables = await published(drill)
    snapshot, found = await look(drill)
    assert snapshot.stopped
    assert severity_of(snapshot, found) == Severity.CRITICAL
    assert first(found).kind == BlockerKind.UNCONNECTABLE_DATABASE
    assert first(found).database == "template0"
    # The others see a young cluster, and the program finds nothing to do.
    assert max(xids, mxids, tables) < ALARM_AGE
    assert "VACUUM (" not in vacuumdb(drill, f"--min-xid-age={ALARM_AGE}")
    snapshot, _ = await look(drill)
    assert snapshot.stopped


async def test_member_space_that_is_used_up_is_told(new_drill: NewDrill) -> None:
    drill = await driven(new_drill, EMBEDDED, "members")
    xids, mxids, tables = await published(drill)
    snapshot, found = await look(drill)
    assert snapshot.stage == Stage.STOPPED
    assert not snapshot.stopped
    assert first(found).kind == BlockerKind.MEMBER_SPACE
    # In 2 billion multixact IDs these are next to nothing.
    assert max(xids, mxids, tables) < 1_000_000
    assert "VACUUM (" not in vacuumdb(drill, "--min-mxid-age=1000000")


@pytest.mark.parametrize("version", BOTH)
async def test_an_orphan_that_stops_a_cluster_is_told(version: str, new_drill: NewDrill) -> None:
    drill = await driven(new_drill, version, "orphan")
    snapshot, found = await look(drill)
    assert snapshot.stopped
    assert first(found).kind == BlockerKind.ORPHANED_TEMP_TABLE
    assert first(found).age == STOP_AGE
    assert "pg_temp" not in vacuumdb(drill, f"--min-xid-age={ALARM_AGE}")
    # Now the queries name a database that is old, and no table that would be.
    xids, _, tables = await published(drill)
    assert xids >= STOP_AGE
    assert tables < ALARM_AGE
    snapshot, found = await look(drill)
    assert snapshot.stopped
    assert first(found).kind == BlockerKind.ORPHANED_TEMP_TABLE


@pytest.mark.parametrize("version", BOTH)
async def test_a_living_owner_is_known_and_not_to_be_ended(
    version: str, new_drill: NewDrill
) -> None:
    drill = await driven(new_drill, version, "live-temp")
    snapshot, found = await look(drill)
    owner = await drill.value(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'pooled worker'"
    )
    assert first(found).kind == BlockerKind.LIVE_TEMP_TABLE
    assert first(found).pid == owner
    assert [action.text[:6] for action in first(found).actions] == ["VACUUM"]
    assert "pg_temp" not in vacuumdb(drill, f"--min-xid-age={ALARM_AGE}")
    snapshot, _ = await look(drill)
    assert snapshot.stopped


async def test_a_prepared_transaction_that_locks_a_table_is_named(new_drill: NewDrill) -> None:
    drill = await driven(new_drill, EMBEDDED, "prepared-lock")
    gid = await drill.value("SELECT gid FROM pg_prepared_xacts")
    _, found = await look(drill)
    (lock,) = (item for item in found if item.kind == BlockerKind.LOCK)
    assert lock.gid == gid
    assert "PREPARED" in lock.actions[0].text


async def test_a_stale_age_is_told_where_vacuumdb_finds_nothing_to_do(new_drill: NewDrill) -> None:
    drill = await driven(new_drill, EMBEDDED, "stale")
    assert "VACUUM (" not in vacuumdb(drill, f"--min-xid-age={ALARM_AGE}")
    _, found = await look(drill)
    stale = first(found)
    assert (stale.kind, stale.database) == (BlockerKind.STALE_DATFROZENXID, "app")
    await drill.execute(stale.actions[0].text)
    snapshot, found = await look(drill)
    assert not snapshot.stopped
    assert BlockerKind.STALE_DATFROZENXID not in {item.kind for item in found}
