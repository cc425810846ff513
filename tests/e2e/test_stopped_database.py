"""The whole product while its database runs out of transaction IDs under it, and while it is repaired."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.drill.counters import move_to_the_brink, spend
from appliance.dbops.drill.situation import Counter
from appliance.dbops.drill.throwaway import ThrowAway
from appliance.dbops.target import Target
from tests.e2e.box import Box, start_box, stop_box
from tests.e2e.chats import (
    NIGHTLY,
    Chatter,
    all_took_another_turn,
    assert_stored_once_and_in_order,
    execute,
    finish,
    postgres_of,
)

pytestmark = [pytest.mark.model, pytest.mark.slow]

CHATS = 8 if NIGHTLY else 3


async def spend_the_last_xids(box: Box) -> None:
    connection = await Target(directory=postgres_of(box)).connect(statement_timeout_ms=0)
    try:
        await spend(connection, Counter.XIDS)
    finally:
        await connection.close()


@pytest.fixture
def box_at_the_brink(tmp_path: Path) -> Box:
    """A demo whose database has some thousand transaction IDs left, and an autovacuum that sleeps."""
    box = start_box(tmp_path / "data")
    asyncio.run(
        execute(
            box,
            "CREATE TABLE public.last_row (id integer PRIMARY KEY)",
            "INSERT INTO public.last_row (id) VALUES (1)",
            "ALTER SYSTEM SET autovacuum_naptime = 2147483",
        )
    )
    assert stop_box(box) == 0
    asyncio.run(move_to_the_brink(ThrowAway(postgres_of(box), find_binaries()), Counter.XIDS))
    return start_box(box.data_dir)


def appliance_db(box: Box, *words: str) -> subprocess.CompletedProcess[str]:
    """`appliance db …` as its operator types it."""
    return subprocess.run(
        [sys.executable, "-m", "appliance.cli.main", "db", *words, "--data-dir", str(box.data_dir)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_chats_go_on_while_the_database_has_no_transaction_ids_and_while_it_is_repaired(
    box_at_the_brink: Box,
) -> None:
    box = box_at_the_brink
    try:
        chatters = [Chatter(box, box.create_conversation()) for _ in range(CHATS)]
        for chatter in chatters:
            chatter.start()
        all_took_another_turn(chatters)
        asyncio.run(spend_the_last_xids(box))
        all_took_another_turn(chatters, 2)
        assert box.metric("appliance_journal_entries") > 0, "nothing was stopped"
        chatters.append(Chatter(box, box.create_conversation()))
        chatters[-1].start()
        all_took_another_turn(chatters)
        repair = appliance_db(box, "run", "--execute")
        assert repair.returncode == 0, repair.stdout + repair.stderr
        all_took_another_turn(chatters)
        finish(chatters)
        assert_stored_once_and_in_order(box, chatters)
        asyncio.run(
            execute(box, "ALTER SYSTEM RESET autovacuum_naptime", "SELECT pg_reload_conf()")
        )
        status = appliance_db(box, "status")
        assert status.returncode == 0, status.stdout
    finally:
        stop_box(box)
