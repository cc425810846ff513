"""`appliance db journal`: status, verify and replay on the files of a server that is gone, or runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from appliance.cli.main import main
from appliance.errors import JournalForeign
from appliance.store.journal_aside import DAMAGED_PREFIX, REFUSED_NAME, TORN_PREFIX
from appliance.store.journal_file import FILE_NAME, JournalFile
from appliance.store.ledger import Ledger
from tests.postgres.journalled import Chat, keeping

ROOT = Path(__file__).parents[2]


@dataclass(slots=True, kw_only=True)
class Told:
    """How a command ended."""

    code: int
    said: Any


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Told:
        code = main(["db", "journal", words[0], "--data-dir", str(tmp_path), "--json", *words[1:]])
        said = capsys.readouterr()
        return Told(code=code, said=json.loads(said.out) if said.out else said.err)

    return run


async def test_a_journal_is_shown_proven_and_replayed_without_a_server(
    database_url: str, tmp_path: Path, ledger: Ledger, command: Any
) -> None:
    folder = tmp_path / "journal"
    async with keeping(database_url, folder, replays=False) as kept:
        chats = [await Chat.begin(kept.ledger) for _ in range(2)]
        kept.is_maintenance = True
        for chat in chats:
            for _ in range(3):
                await chat.say()
        held = await asyncio.to_thread(command, "status")
        assert held.said["holder"] == str(os.getpid())
        refused = await asyncio.to_thread(command, "replay", "--url", database_url)
        assert refused.code == 2
        assert f"process {os.getpid()}" in refused.said
    shown = await asyncio.to_thread(command, "status")
    assert (shown.code, shown.said["holder"]) == (0, None)
    assert (shown.said["entries"], shown.said["conversations"]) == (6, 2)
    assert shown.said["oldest_s"] < 60
    assert (await asyncio.to_thread(command, "verify")).said["ok"]
    replayed = await asyncio.to_thread(command, "replay", "--url", database_url)
    assert (replayed.code, replayed.said) == (0, {"stored": 6, "refused": 0, "left": 0})
    for chat in chats:
        await chat.is_whole_in(ledger)
    assert (await asyncio.to_thread(command, "status")).said["entries"] == 0


async def test_a_database_that_is_away_leaves_the_entries_where_they_are(
    database_url: str, tmp_path: Path, command: Any
) -> None:
    async with keeping(database_url, tmp_path / "journal", replays=False) as kept:
        chat = await Chat.begin(kept.ledger)
        kept.is_maintenance = True
        await chat.say()
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    told = await asyncio.to_thread(command, "replay", "--url", nowhere, "--wait-s", "0.3")
    assert (told.code, told.said["left"]) == (1, 1)
    assert (await asyncio.to_thread(command, "status")).said["entries"] == 1


@pytest.mark.parametrize("hit", [1, 2])
async def test_damage_is_found_and_the_rest_is_replayed(
    database_url: str, tmp_path: Path, ledger: Ledger, command: Any, hit: int
) -> None:
    folder = tmp_path / "journal"
    async with keeping(database_url, folder, replays=False) as kept:
        chats = [await Chat.begin(kept.ledger) for _ in range(3)]
        kept.is_maintenance = True
        for chat in chats:
            await chat.say()
    data = (folder / FILE_NAME).read_bytes()
    reply = chats[hit].done[0].assistant.message_id.bytes
    (folder / FILE_NAME).write_bytes(data.replace(reply, reply[::-1]))
    told = await asyncio.to_thread(command, "verify")
    assert (told.code, told.said["entries"]) == (1, 2)
    replayed = await asyncio.to_thread(command, "replay", "--url", database_url)
    assert replayed.said == {"stored": 2, "refused": 0, "left": 0}
    await chats[0].is_whole_in(ledger)
    await chats[3 - hit].is_whole_in(ledger)
    assert await ledger.messages(*chats[hit].key) == ()
    # What was kept aside is told until somebody has looked at it and taken it away.
    (aside,) = (await asyncio.to_thread(command, "verify")).said["damaged"]
    (kept_aside,) = folder.glob(f"{DAMAGED_PREFIX}*")
    assert aside == str(kept_aside)
    assert reply[::-1] in kept_aside.read_bytes()


async def test_another_database_gets_nothing_of_a_journal_and_loses_nothing_of_it(
    database_url: str, tmp_path: Path, ledger: Ledger, command: Any
) -> None:
    folder = tmp_path / "journal"
    async with keeping(database_url, folder, replays=False) as kept:
        await kept.replay.bind(budget_s=5)
        chat = await Chat.begin(kept.ledger)
        kept.is_maintenance = True
        for _ in range(3):
            await chat.say()
    async with as_another(database_url):
        told = await asyncio.to_thread(command, "replay", "--url", database_url)
        assert told.code == 2
        assert "3 entries wait for the database whose schema was made at" in told.said
        # A server of that database does not take them for its own either, and says why it ends.
        async with keeping(database_url, folder, replays=False) as kept:
            with pytest.raises(JournalForeign):
                await kept.replay.bind(budget_s=5)
            assert kept.waiting == 3
    assert not (folder / REFUSED_NAME).exists()
    replayed = await asyncio.to_thread(command, "replay", "--url", database_url)
    assert replayed.said == {"stored": 3, "refused": 0, "left": 0}
    await chat.is_whole_in(ledger)
    # An empty journal is whoever's comes.
    async with as_another(database_url), keeping(database_url, folder, replays=False) as kept:
        await kept.replay.bind(budget_s=5)


async def test_refused_entries_are_put_back_and_written_in_order_once_they_can_be(
    database_url: str, tmp_path: Path, ledger: Ledger, command: Any
) -> None:
    folder = tmp_path / "journal"
    async with keeping(database_url, folder, replays=False) as kept:
        chats = [await Chat.begin(kept.ledger) for _ in range(2)]
        kept.is_maintenance = True
        for chat in (*chats, *chats, *chats):
            await chat.say()
    lost, other = chats
    operator = await asyncpg.connect(database_url)
    try:
        await operator.execute("CREATE TABLE away AS SELECT * FROM appliance.conversations")
        await ledger.delete(*lost.key)
        replayed = await asyncio.to_thread(command, "replay", "--url", database_url)
        assert (replayed.code, replayed.said) == (1, {"stored": 3, "refused": 3, "left": 0})
        refused = folder / REFUSED_NAME
        told = await asyncio.to_thread(
            command, "replay", "--url", database_url, f"--from={refused}"
        )
        assert (told.code, told.said["put_back"], told.said["refused"]) == (1, 3, 3)
        await operator.execute(
            "INSERT INTO appliance.conversations SELECT * FROM away WHERE conversation_id = $1",
            lost.conversation.conversation_id,
        )
    finally:
        await operator.execute("DROP TABLE IF EXISTS away")
        await operator.close()
    with refused.open("ab") as file:
        file.write(b"a note of somebody's\n")
    told = await asyncio.to_thread(command, "replay", "--url", database_url, f"--from={refused}")
    assert told.code == 1
    assert told.said == {"stored": 3, "refused": 0, "left": 0, "put_back": 3, "rest_bytes": 21}
    assert refused.read_bytes() == b"a note of somebody's\n"
    for chat in (lost, other):
        await chat.is_whole_in(ledger)
    told = await asyncio.to_thread(command, "replay", "--url", database_url, f"--from={refused}")
    assert (told.code, told.said["put_back"]) == (1, 0)


async def test_a_journal_that_was_moved_away_is_written_from_there(
    database_url: str, tmp_path: Path, ledger: Ledger, command: Any
) -> None:
    folder = tmp_path / "journal"
    async with keeping(database_url, folder, replays=False) as kept:
        chat = await Chat.begin(kept.ledger)
        kept.is_maintenance = True
        for _ in range(2):
            await chat.say()
    told = await asyncio.to_thread(
        command, "replay", "--url", database_url, f"--from={folder / FILE_NAME}"
    )
    assert told.code == 2
    assert "is the journal itself" in told.said
    away = tmp_path / "away"
    (folder / FILE_NAME).rename(away)
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    told = await asyncio.to_thread(
        command, "replay", "--url", nowhere, "--wait-s", "0.1", f"--from={away}"
    )
    assert (told.code, away.exists()) == (2, True)
    told = await asyncio.to_thread(command, "replay", "--url", database_url, f"--from={away}")
    expected = {"stored": 2, "refused": 0, "left": 0, "put_back": 2, "rest_bytes": 0}
    assert (told.code, told.said, away.exists()) == (0, expected, False)
    await chat.is_whole_in(ledger)


@asynccontextmanager
async def as_another(url: str) -> AsyncIterator[None]:
    """The database, while it says that it was made at another time than it was."""
    operator = await asyncpg.connect(url)
    shift = "UPDATE appliance.migrations SET applied_at = applied_at + $1::int * interval '1 s'"
    try:
        await operator.execute(shift, 1)
        yield
        await operator.execute(shift, -1)
    finally:
        await operator.close()


def test_an_entry_that_was_not_written_out_is_no_damage_and_is_told_before_and_after_it_is_cut(
    tmp_path: Path, command: Any
) -> None:
    folder = tmp_path / "journal"
    file = JournalFile(folder, bytes_max=4 << 20)
    file.append([b"x" * 50])
    end = file.used_bytes
    file.close()
    os.truncate(folder / FILE_NAME, end - 20)
    before = command("verify")
    assert (before.code, before.said["ok"], before.said["torn"]) == (0, True, [])
    assert before.said["torn_bytes"] > 30
    JournalFile(folder, bytes_max=4 << 20).close()
    after = command("verify")
    assert (after.code, after.said["ok"], after.said["torn_bytes"]) == (0, True, 0)
    assert after.said["torn"] == [str(path) for path in folder.glob(f"{TORN_PREFIX}*")]


def test_what_a_server_is_writing_at_the_moment_is_no_damage(tmp_path: Path, command: Any) -> None:
    folder = tmp_path / "journal"
    file = JournalFile(folder, bytes_max=4 << 20)
    with (folder / FILE_NAME).open("r+b") as half_written:
        half_written.seek(file.used_bytes + 4096)
        half_written.write(b"the second page first")
    assert command("verify").code == 0
    file.close()
    assert command("verify").code == 1


def test_without_a_journal_there_is_nothing_to_say(tmp_path: Path) -> None:
    program = (sys.executable, "-m", "appliance.cli.main", "db", "journal")
    for name in ("status", "verify", "replay"):
        done = subprocess.run(
            [*program, name, "--data-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
