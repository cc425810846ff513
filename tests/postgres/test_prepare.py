"""A server of one's own: what it lacks is said, what is wrong shows in the exit code."""

from __future__ import annotations

import asyncio

import pytest

from appliance.cli.main import main
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.cluster.prepare import RECOMMENDED, compared
from tests.postgres_fixtures import execute

AS_RECOMMENDED = {name: value for name, (value, _) in RECOMMENDED.items()}


def test_what_endangers_chats_comes_first() -> None:
    assert compared(AS_RECOMMENDED) == ()
    found = compared({**AS_RECOMMENDED, "log_min_messages": "warning", "autovacuum": "off"})
    assert [(one.name, one.is_needed) for one in found] == [
        ("autovacuum", True),
        ("log_min_messages", False),
    ]


@pytest.mark.parametrize(("value", "is_needed"), [("off", True), ("remote_apply", False)])
def test_a_commit_that_waits_for_no_disk_endangers_chats(value: str, is_needed: bool) -> None:
    (found,) = compared({**AS_RECOMMENDED, "synchronous_commit": value})
    assert (found.name, found.is_needed) == ("synchronous_commit", is_needed)


async def test_the_appliances_own_server_is_as_recommended_but_for_what_a_test_has_switched_off(
    cluster: Cluster, empty_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await asyncio.to_thread(main, ["db", "init", "--url", empty_database])
    words = capsys.readouterr().out
    # The tests' own server does without fsync.
    assert code == 1
    assert "WRONG     fsync is off, not on: a power cut must not lose or damage chats" in words
    assert words.count("\n") == 2
    assert "missing" not in words


async def test_a_role_that_may_not_is_told_what_is_missing(
    cluster: Cluster, empty_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = empty_database.partition("@/")[2].partition("?")[0]
    bare = f"{name}_bare"
    await execute(cluster, f"CREATE DATABASE {bare} TEMPLATE template0")
    await execute(cluster, f"CREATE ROLE {bare} LOGIN")
    url = cluster.url(bare).replace("postgres@", f"{bare}@")
    code = await asyncio.to_thread(main, ["db", "init", "--url", url])
    assert code == 1
    assert "missing   pg_visibility, which a repair may need: permission denied" in (
        capsys.readouterr().out
    )
    await execute(cluster, f"DROP DATABASE {bare}")
    await execute(cluster, f"DROP ROLE {bare}")
