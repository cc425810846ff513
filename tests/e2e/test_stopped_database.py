"""The whole product while its database runs out of transaction IDs under it, and while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.leftover import recorded_status
from appliance.dbops.drill.counters import move_to_the_brink, spend
from appliance.dbops.drill.situation import Counter
from appliance.dbops.drill.throwaway import ThrowAway
from appliance.dbops.target import Target
from tests.e2e.box import Box, start_box, stop_box
from tests.e2e.test_faults import Chatter, wait_until

pytestmark = [pytest.mark.model, pytest.mark.slow]

NIGHTLY = "APPLIANCE_TESTS_NIGHTLY" in os.environ
CHATS = 8 if NIGHTLY else 3
AWAY_S = 60 if NIGHTLY else 5
TURN_TIMEOUT_S = 120
PATH = """\
SELECT role, text FROM appliance.messages
WHERE conversation_id = $1::uuid
ORDER BY depth, role DESC
"""
"""A conversation's messages, of which none has been edited or swiped: the root first."""


def postgres_of(box: Box) -> Path:
    return box.data_dir / "postgres"


async def execute(box: Box, *statements: str) -> None:
    connection = await Target(directory=postgres_of(box)).connect()
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def spend_the_last_xids(box: Box) -> None:
    connection = await Target(directory=postgres_of(box)).connect(statement_timeout_ms=0)
    try:
        await spend(connection, Counter.XIDS)
    finally:
        await connection.close()


async def stored_in(box: Box, conversation: str) -> list[tuple[str, str]]:
    connection = await Target(directory=postgres_of(box)).connect()
    try:
        return [(row["role"], row["text"]) for row in await connection.fetch(PATH, conversation)]
    finally:
        await connection.close()


@pytest.fixture
def box_at_the_brink(tmp_path: Path) -> Box:
    """A demo whose database has some thousand transaction IDs left, and an autovacuum that sleeps."""
    box = start_box(tmp_path / "data")
    asyncio.run(
        execute(
            box,
            "CREATE TABLE last_row (id integer PRIMARY KEY)",
            "INSERT INTO last_row (id) VALUES (1)",
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


def all_took_another_turn(chatters: list[Chatter], turns: int = 1) -> None:
    before = [len(chatter.done) for chatter in chatters]
    deadline = time.monotonic() + TURN_TIMEOUT_S
    while any(len(c.done) < n + turns for c, n in zip(chatters, before, strict=True)):
        told = [(len(c.done), c.is_alive(), c.errors[-1:]) for c in chatters]
        assert time.monotonic() < deadline, f"from {before} turns to {told}"
        time.sleep(0.1)


def finish(chatters: list[Chatter]) -> None:
    for chatter in chatters:
        chatter.stopping.set()
    for chatter in chatters:
        chatter.join(120)
        assert not chatter.is_alive()
        assert chatter.errors == []


def assert_stored_once_and_in_order(box: Box, chatters: list[Chatter]) -> None:
    wait_until(lambda: box.metric("appliance_journal_entries") == 0, 60)
    for chatter in chatters:
        stored = asyncio.run(stored_in(box, chatter.conversation))
        assert [text for role, text in stored if role == "assistant"] == [
            message["text"] for message in chatter.done
        ]
        assert [text for role, text in stored if role == "user"] == chatter.said


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


def test_chats_go_on_while_the_database_is_killed_again_and_again(worn_box: Box) -> None:
    box = worn_box
    box.wait_ready()
    chatters = [Chatter(box, box.create_conversation()) for _ in range(CHATS)]
    for chatter in chatters:
        chatter.start()
    all_took_another_turn(chatters)
    until = time.monotonic() + AWAY_S
    while time.monotonic() < until:
        for child in psutil.Process(box.process.pid).children():
            # By its own name: a shell that looks for leftovers has the word in its command line too.
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "postgres" and recorded_status(postgres_of(box)) == "ready":
                    child.kill()
        time.sleep(0.2)
    all_took_another_turn(chatters)
    finish(chatters)
    assert_stored_once_and_in_order(box, chatters)


def test_chats_go_on_while_the_database_hangs(worn_box: Box) -> None:
    box = worn_box
    box.wait_ready()
    chatters = [Chatter(box, box.create_conversation()) for _ in range(CHATS)]
    for chatter in chatters:
        chatter.start()
    all_took_another_turn(chatters)
    server = box.child("postgres")
    frozen = [server, *server.children(recursive=True)]
    for process in frozen:
        process.suspend()
    try:
        time.sleep(AWAY_S)
        all_took_another_turn(chatters)
    finally:
        for process in frozen:
            process.resume()
    all_took_another_turn(chatters)
    finish(chatters)
    assert_stored_once_and_in_order(box, chatters)
