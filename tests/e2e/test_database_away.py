"""The whole product while its database is away: no request fails, no turn is lost or moved."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import asyncpg
import psutil
import pytest

from appliance.cli.demo_model import DEMO_MODEL_NAME
from appliance.database_failure import DatabaseFailure
from appliance.dbops.cluster.cluster import socket_url
from appliance.dbops.cluster.leftover import recorded_status
from appliance.dbops.target import Connection
from tests.e2e.box import Box, start_box, stop_box
from tests.e2e.chats import (
    NIGHTLY,
    Chatter,
    all_took_another_turn,
    assert_stored_once_and_in_order,
    finish,
    postgres_of,
)

pytestmark = [pytest.mark.model, pytest.mark.slow]

CHATS = 8 if NIGHTLY else 2
AWAY_S = 60 if NIGHTLY else 4
DISK = "size=768m"
WAL_FILES_MAX = 100
ENDED = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'appliance'
"""


@pytest.fixture(scope="module")
def small_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A demo whose data folder has a small disk of its own."""
    folder = tmp_path_factory.mktemp("small-disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "none", str(folder)], check=False)
    try:
        running = start_box(folder / "data")
        yield running
        assert stop_box(running) == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def hanging(box: Box) -> Iterator[None]:
    """The server's processes stand still."""
    server = box.child("postgres")
    frozen = [server, *server.children(recursive=True)]
    for process in frozen:
        process.suspend()
    try:
        yield
    finally:
        for process in frozen:
            process.resume()


@contextmanager
def killed(box: Box, *, statuses: tuple[str, ...], every_s: float) -> Iterator[None]:
    """Its postmaster is killed, by kill -9, whenever it has got to one of these states."""
    stopping = threading.Event()

    def kill() -> None:
        while not stopping.wait(every_s):
            for child in psutil.Process(box.process.pid).children():
                # By its own name: a shell that looks for leftovers has the word in its command line too.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.name() == "postgres" and recorded_status(postgres_of(box)) in statuses:
                        child.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def stopped(box: Box) -> AbstractContextManager[None]:
    """It never comes up."""
    return killed(box, statuses=("", "starting", "ready"), every_s=0.02)


def killed_again_and_again(box: Box) -> AbstractContextManager[None]:
    """It comes up, and is killed soon after."""
    return killed(box, statuses=("ready",), every_s=0.2)


@contextmanager
def out_of_connections(box: Box) -> Iterator[None]:
    """Others have taken every connection, the appliance's own included."""

    async def take() -> list[Connection]:
        url = socket_url(postgres_of(box))
        taken = [await asyncpg.connect(url)]
        most = int(await taken[0].fetchval("SHOW max_connections"))
        # Until all are held: one that is being opened has no name yet, and would go on afterwards.
        while len(taken) < most:
            try:
                taken.append(await asyncpg.connect(url))
            except asyncpg.TooManyConnectionsError:
                await taken[0].execute(ENDED)
        return taken

    async def give_back(taken: list[Connection]) -> None:
        for connection in taken:
            await connection.close()

    with asyncio.Runner() as runner:
        taken = runner.run(take())
        try:
            yield
        finally:
            runner.run(give_back(taken))


@contextmanager
def full_disk(box: Box) -> Iterator[None]:
    """The disk of the data folder, the journal's too, has not a byte left."""
    filler = Path(box.data_dir / "filler")
    if not box.data_dir.parent.is_mount():
        pytest.fail("a disk to be filled needs the right to mount one (run as root)")
    try:
        asyncio.run(fill(box, filler))
        yield
    finally:
        filler.unlink()


async def fill(box: Box, filler: Path) -> None:
    """Take the room that is left, and have the server use up the files of its log that it has ahead: it
    would go on with them for hours."""
    connection = await asyncpg.connect(socket_url(postgres_of(box)))
    chunk = bytes(1 << 20)
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(chunk)
    try:
        for _ in range(WAL_FILES_MAX):
            await connection.execute(
                "SELECT pg_logical_emit_message(false, 'full', 'disk'), pg_switch_wal()"
            )
    except DatabaseFailure:
        return
    finally:
        connection.terminate()
    raise AssertionError("the server found room for its log")


Trouble = Callable[[Box], AbstractContextManager[None]]
STOPS_WRITES: tuple[Trouble, ...] = (hanging, stopped, out_of_connections, full_disk)


@pytest.mark.parametrize("trouble", [*STOPS_WRITES, killed_again_and_again])
def test_chats_go_on_while_the_database_is(small_box: Box, trouble: Trouble) -> None:
    box = small_box
    chatters = [Chatter(box, box.create_conversation()) for _ in range(CHATS)]
    for chatter in chatters:
        chatter.start()
    all_took_another_turn(chatters)
    with trouble(box):
        all_took_another_turn(chatters, 2, at_least_s=AWAY_S)
        if trouble in STOPS_WRITES:
            assert box.metric("appliance_journal_entries") > 0, "nothing was stopped"
        answer = box.request(
            "POST",
            "/v1/chat/completions",
            {
                "model": DEMO_MODEL_NAME,
                "messages": [{"role": "user", "content": "Hello!"}],
                "max_tokens": 4,
            },
        )
        assert answer["choices"]
    all_took_another_turn(chatters)
    finish(chatters)
    assert_stored_once_and_in_order(box, chatters)
