"""Backups and restores: to a moment between two turns, beside the folder, and back."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from appliance.cli.main import main
from appliance.config import DatabaseConfig
from appliance.dbops.cluster.account import account_of_cluster
from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.cluster.leftover import processes_in, recorded_pid
from appliance.dbops.copies.archive import STAMP, Archive
from appliance.dbops.copies.backup import back_up
from appliance.dbops.copies.restore import restore, undo
from appliance.dbops.monitoring.backups import Backups, read_backups
from appliance.errors import DatabaseError, NotRunning
from appliance.store.ledger import Ledger
from appliance.store.migrate import migrate
from appliance.store.pool import connect
from appliance.store.records import Conversation
from tests.postgres.folders import ask, copy, digest, open_folder, run_all
from tests.postgres.turns import TENANT, new_conversation, turn
from tests.postgres_fixtures import quiet


@pytest.fixture
def archive() -> Iterator[Archive]:
    """A folder that the server's user can reach."""
    with open_folder() as folder:
        yield Archive(folder / "it's 100% safe")


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory, pristine: Path, binaries: Binaries) -> Path:
    """A stopped cluster with the appliance's schema, to be copied."""
    cluster = Cluster(copy(pristine, tmp_path_factory.mktemp("migrated") / "postgres"), binaries)

    async def make() -> None:
        await cluster.start(quiet)
        pool = await connect(cluster.url(), DatabaseConfig())
        await migrate(pool)
        await pool.close()
        await cluster.stop()

    with asyncio.Runner() as runner:
        runner.run(make())
    return cluster.directory


@pytest.fixture
async def own(tmp_path: Path, migrated: Path, binaries: Binaries) -> AsyncIterator[Cluster]:
    """A running cluster that a test may stop and replace."""
    cluster = Cluster(copy(migrated, tmp_path / "postgres"), binaries)
    await cluster.start(quiet)
    yield cluster
    await cluster.stop()


async def talk(cluster: Cluster, conversation: Conversation | None, said: str) -> Conversation:
    """One turn, in a new conversation if there is none yet."""
    pool = await connect(cluster.url(), DatabaseConfig())
    ledger = Ledger(pool)
    if conversation is None:
        conversation = await new_conversation(ledger)
    parent = (await ledger.get(TENANT, conversation.conversation_id)).head_id
    await ledger.append_turn(turn(conversation, parent, said, f"re: {said}"))
    await pool.close()
    return conversation


async def said(cluster: Cluster, conversation_id: UUID) -> list[str]:
    """What is stored of the user's messages, in order."""
    pool = await connect(cluster.url(), DatabaseConfig())
    messages = await Ledger(pool).messages(TENANT, conversation_id)
    await pool.close()
    return [message.text for message in messages if message.role == "user"]


async def test_a_moment_between_two_turns_is_restored_and_what_came_later_can_be_had_back(
    own: Cluster, binaries: Binaries, archive: Archive
) -> None:
    chat = await talk(own, None, "before the backup")
    made = await back_up(own.directory, binaries, archive, None, quiet)
    assert made.began_archiving
    with pytest.raises(DatabaseError, match="in use by another appliance"):
        await restore(own.directory, binaries, archive, None, quiet)
    await talk(own, chat, "first")
    await asyncio.sleep(0.05)
    between = datetime.now(UTC)
    await asyncio.sleep(0.05)
    await talk(own, chat, "second")
    # Both turns are in a segment that nobody archived: only the folder of the dead server has them.
    await die(own)
    restored = await restore(own.directory, binaries, archive, between, quiet)
    assert restored.kept is not None
    before = digest(restored.kept)
    await own.start(quiet)
    assert await said(own, chat.conversation_id) == ["before the backup", "first"]
    for name in ("restore_command", "recovery_target_time"):
        assert await ask(own.directory, f"SHOW {name}") == ""
    await talk(own, chat, "another second")
    # A backup of the new line of history goes into the same archive.
    again = await back_up(own.directory, binaries, archive, None, quiet)
    assert not again.began_archiving
    await talk(own, chat, "third")
    await own.stop()
    assert digest(restored.kept) == before
    assert await restored_says(own, binaries, archive, None, chat) == [
        "before the backup",
        "first",
        "another second",
        "third",
    ]


async def die(cluster: Cluster) -> None:
    """kill -9 of the server, and the end of its sessions."""
    pid = recorded_pid(cluster.directory)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await cluster.stop()
    account = account_of_cluster(cluster.directory)
    while processes_in(cluster.directory, account):
        await asyncio.sleep(0.05)


async def restored_says(
    own: Cluster,
    binaries: Binaries,
    archive: Archive,
    moment: datetime | None,
    chat: Conversation,
) -> list[str]:
    """What a restore to a moment would have; the folder is as before afterwards."""
    restored = await restore(own.directory, binaries, archive, moment, quiet)
    await own.start(quiet)
    found = await said(own, chat.conversation_id)
    await own.stop()
    await undo(own.directory, binaries)
    assert restored.kept is not None
    assert not restored.kept.exists()
    return found


async def test_what_cannot_be_restored_is_refused_and_the_folder_stays(
    own: Cluster, binaries: Binaries, archive: Archive, tmp_path: Path
) -> None:
    with pytest.raises(DatabaseError, match="does not exist"):
        await restore(own.directory, binaries, archive, None, quiet)
    made = await back_up(own.directory, binaries, archive, None, quiet)
    await own.stop()
    before = digest(own.directory)
    rotten = made.base.path / "PG_VERSION"
    rotten.write_text(rotten.read_text().replace("\n", " "))
    with pytest.raises(DatabaseError, match=r"pg_verifybackup failed.*PG_VERSION"):
        await restore(own.directory, binaries, archive, None, quiet)
    rotten.write_text(rotten.read_text().replace(" ", "\n"))
    early = made.base.finished_at - timedelta(seconds=1)
    with pytest.raises(DatabaseError, match="earliest moment"):
        await restore(own.directory, binaries, archive, early, quiet)
    late = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(DatabaseError, match="is in the future"):
        await restore(own.directory, binaries, archive, late, quiet)
    twin = tmp_path / "twin"
    with pytest.raises(DatabaseError, match="later than the last change"):
        await restore(twin, binaries, archive, datetime.now(UTC), quiet)
    assert not twin.exists()
    with pytest.raises(NotRunning):
        await back_up(own.directory, binaries, archive, None, quiet)
    assert digest(own.directory) == before
    left = {"postgres", "postgres.lock", "postgres.start.log", "twin.lock"}
    assert set(os.listdir(tmp_path)) <= left


async def test_a_lost_folder_is_made_again_and_only_the_wanted_backups_stay(
    own: Cluster, binaries: Binaries, archive: Archive
) -> None:
    await run_all(own.directory, "CREATE TABLE t AS SELECT generate_series(1, 1000) AS n")
    await back_up(own.directory, binaries, archive, 2, quiet)
    for _ in range(2):
        await run_all(own.directory, "INSERT INTO t SELECT generate_series(1, 1000)")
        made = await back_up(own.directory, binaries, archive, 2, quiet)
    assert len(archive.bases()) == 2
    oldest = archive.bases()[0].first_wal
    assert min(path.name for path in archive.wal.iterdir()) == oldest
    assert any(path.parent == archive.wal for path in made.removed)
    await run_all(own.directory, "INSERT INTO t VALUES (0)", "SELECT pg_switch_wal()")
    await own.stop()
    shutil.rmtree(own.directory)
    restored = await restore(own.directory, binaries, archive, None, quiet)
    assert restored.kept is None
    await own.start(quiet)
    assert await ask(own.directory, "SELECT count(*) FROM t") == 3001


async def test_the_backup_just_verified_stays_though_an_earlier_one_has_a_later_time(
    own: Cluster, binaries: Binaries, archive: Archive
) -> None:
    first = (await back_up(own.directory, binaries, archive, None, quiet)).base
    ahead = (first.finished_at + timedelta(days=1)).strftime(STAMP)
    first.path.rename(first.path.with_name(f"base-{ahead}"))
    made = await back_up(own.directory, binaries, archive, 1, quiet)
    assert archive.bases() == [made.base]
    told = read_backups(own.directory)
    assert told is not None
    assert told.newest_at == made.base.finished_at
    assert told.free_bytes
    # Another's, or a disk that is not mounted, holds none of this database.
    archive.folder.rename(archive.folder.with_name("elsewhere"))
    assert read_backups(own.directory) == Backups(newest_at=None)
    archive.folder.with_name("elsewhere").rename(archive.folder)
    # What a segment was named is on the disk before the server forgets the segment.
    command = str(await ask(own.directory, "SHOW archive_command"))
    assert command.endswith(f" && sync {shlex.quote(str(archive.wal).replace('%', '%%'))}; fi")


async def test_a_damaged_backup_does_not_count_as_one(
    own: Cluster, binaries: Binaries, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(words: str) -> None:
        if words == "verifying it":
            victim = archive.folder / "base.part" / "global" / "pg_control"
            victim.write_bytes(bytes(victim.stat().st_size))

    with pytest.raises(DatabaseError, match=r"pg_verifybackup failed.*pg_control"):
        await back_up(own.directory, binaries, archive, None, damage)
    assert archive.bases() == []
    assert {path.name for path in archive.folder.iterdir()} == {"wal", "lock", "owner.json"}
    assert await ask(own.directory, "SHOW archive_command") == "true"


async def test_an_archive_that_the_server_cannot_write_to_is_refused_at_once(
    own: Cluster, binaries: Binaries, tmp_path: Path
) -> None:
    if account_of_cluster(own.directory).uid == os.geteuid():
        pytest.skip("everybody is the same user here")
    closed = Archive(tmp_path / "closed")
    with pytest.raises(DatabaseError, match=r"cannot write to .*wal: .*chmod o\+x"):
        await back_up(own.directory, binaries, closed, None, quiet)
    assert await ask(own.directory, "SHOW archive_command") == "true"


def test_the_commands_name_what_is_wrong_with_their_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--data-dir", str(tmp_path)]
    for arguments, told in (
        (["restore", "--from", "x", "--to", "yesterday", *place], "'yesterday': expected a time"),
        (["backup", "--into", "x", "--keep", "0", *place], "expected a number from 1"),
        (["restore", *place], "one of the arguments --from --undo is required"),
    ):
        with pytest.raises(SystemExit):
            main(["db", *arguments])
        assert told in capsys.readouterr().err
    assert main(["db", "restore", "--from", str(tmp_path / "none"), *place]) == 2
    assert "does not exist: there is no backup in it" in capsys.readouterr().err
