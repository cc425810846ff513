"""`appliance db journal`: status, verify and replay on the files of a server that is gone, or runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.store.journal_file import DAMAGED_PREFIX, FILE_NAME, TORN_PREFIX, JournalFile
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
