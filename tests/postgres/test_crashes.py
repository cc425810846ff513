"""kill -9 of server and postmaster at random: no acknowledged turn is lost, none is there twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.errors import NotFound
from appliance.store.ledger import Ledger
from tests.postgres.journalled import keeping
from tests.postgres.turns import TENANT
from tests.postgres_fixtures import TEMPLATE, quiet, start_new

ROOT = Path(__file__).parents[2]
CRASHES = int(os.environ.get("JOURNAL_CRASHES", "5"))
CHATS = 6


@pytest.fixture
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("own") / "postgres", find_binaries())
    await start_new(cluster)
    yield cluster
    await cluster.stop()


class Life:
    """One run of the writer, and what it acknowledged."""

    def __init__(self, url: str, folder: Path, name: str) -> None:
        self.arguments = (
            "-m",
            "tests.postgres.crashing_writer",
            url,
            str(folder),
            str(CHATS),
            name,
        )
        self.lines: list[tuple[UUID, int, str]] = []
        self.process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start it, and read what it says until it is gone."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *self.arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):
                conversation, number, reply = line.decode().split()
                self.lines.append((UUID(conversation), int(number), reply))

    async def kill(self) -> None:
        """kill -9, and take in its last words."""
        assert self.process is not None
        assert self._reading is not None
        self.process.kill()
        await self._reading
        await self.process.wait()

    async def more(self, lines: int) -> None:
        """Wait until it acknowledged so many more."""
        wanted = len(self.lines) + lines
        async with asyncio.timeout(30):
            while len(self.lines) < wanted:
                await asyncio.sleep(0.005)


def kill_postmaster(cluster: Cluster) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid = int((cluster.directory / "postmaster.pid").read_text().split("\n")[0])
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", [int(os.environ.get("JOURNAL_SEED", "1"))])
async def test_no_acknowledged_turn_is_lost_or_doubled_by_kills_at_random(
    own: Cluster, tmp_path: Path, seed: int
) -> None:
    random_ = random.Random(seed)
    # What is synced counts here: a killed server finds in its pages what a machine finds on its disk.
    url, folder = own.url(TEMPLATE), tmp_path / "journal"
    lives: list[Life] = []
    life: Life | None = None
    was_down = 0
    for crash in range(CRASHES):
        if life is None:
            life = Life(url, folder, f"life {crash}")
            await life.begin()
            lives.append(life)
        await life.more(random_.randint(1, 150))
        victims = random_.choice(("server", "postgres", "both"))
        if crash == 0:
            victims = "postgres"  # once for sure the chats go on without it
        if victims != "server":
            kill_postmaster(own)
        if victims != "postgres":
            await asyncio.sleep(random_.uniform(0, 0.02))
            await life.kill()
            life = None
        if victims != "server":
            if life is not None and (crash == 0 or random_.random() < 0.5):
                await life.more(CHATS)
                was_down += 1
            await own.stop()
            await own.start(quiet)
    if life is not None:
        await life.kill()
    assert was_down
    async with keeping(url, folder) as kept:
        await kept.drained(60)
        acknowledged = 0
        for life in lives:
            for conversation_id in {line[0] for line in life.lines}:
                said = [line for line in life.lines if line[0] == conversation_id]
                acknowledged += len(said) - 1
                await whole(kept.ledger, conversation_id, [line[2] for line in said[1:]])
    assert acknowledged > 20 * CRASHES / 2
    refused = folder / "refused.jsonl"
    assert not refused.exists(), refused.read_text()


async def whole(ledger: Ledger, conversation_id: UUID, replies: list[str]) -> None:
    """The acknowledged turns are there once, in order; at most one more had not been told yet."""
    try:
        tree = await ledger.messages(TENANT, conversation_id)
        head = (await ledger.get(TENANT, conversation_id)).head_id
    except NotFound:
        raise AssertionError(f"{conversation_id} was acknowledged and is gone") from None
    found = [str(message.message_id) for message in tree if message.role == "assistant"]
    assert found[: len(replies)] == replies
    assert len(found) <= len(replies) + 1
    assert [m.text for m in tree] == [
        text for n in range(len(found)) for text in (f"q{n}", f"a{n}")
    ]
    assert (str(head) if head else None) == (found[-1] if found else None)
