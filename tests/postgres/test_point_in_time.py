"""Rows at known times, brought back on every line of history, from an archive that nobody spoils."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from pathlib import Path

import pytest

from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.copies import backup
from appliance.dbops.copies.archive import Archive
from appliance.dbops.copies.backup import Backup, back_up
from appliance.dbops.copies.ownership import MARK_FILE
from appliance.dbops.copies.restore import Restored, restore, undo
from appliance.dbops.drill.throwaway import ThrowAway
from appliance.dbops.folder import give_to
from appliance.errors import DatabaseError
from tests.drill_fixtures import BOTH, binaries_of
from tests.postgres.folders import ask, copy, digest, open_folder, run_all
from tests.postgres_fixtures import quiet

NOBODY = pwd.getpwnam("nobody")


class Box:
    """A database whose rows are numbers, with its archive; `at` has when each of them was there."""

    def __init__(self, directory: Path, archive: Archive, binaries: Binaries) -> None:
        self.archive, self.binaries = archive, binaries
        self.cluster = Cluster(directory, binaries)
        self.at: dict[int, datetime] = {}

    @property
    def directory(self) -> Path:
        return self.cluster.directory

    async def add(self, *numbers: int) -> None:
        """Each in a transaction of its own; a moment later is a moment between it and the next one."""
        for number in numbers:
            await run_all(self.directory, f"INSERT INTO public.rows VALUES ({number})")
            moment = await ask(self.directory, "SELECT pg_sleep(0.02), clock_timestamp()", column=1)
            assert isinstance(moment, datetime)
            self.at[number] = moment
            await asyncio.sleep(0.02)

    async def rows(self) -> list[int]:
        found = await ask(self.directory, "SELECT array_agg(n ORDER BY n) FROM public.rows")
        assert isinstance(found, list)
        return found

    async def back_up(self, *, keep: int | None = None, take_over: bool = False) -> Backup:
        return await back_up(
            self.directory, self.binaries, self.archive, keep, quiet, take_over=take_over
        )

    async def go_back(self, number: int | None) -> Restored:
        """To when this number had just been added; the server was stopped, and runs afterwards."""
        moment = None if number is None else self.at[number]
        done = await restore(self.directory, self.binaries, self.archive, moment, quiet)
        await self.cluster.start(quiet)
        return done

    def another(self, name: str) -> Box:
        """A folder beside this one, with the same archive."""
        box = Box(self.directory.with_name(name), self.archive, self.binaries)
        box.at = dict(self.at)
        return box


NewBox = Callable[[str], Awaitable[Box]]


@pytest.fixture
async def new_box(
    pristine_clusters: Callable[[str], ThrowAway],
) -> AsyncIterator[NewBox]:
    """A running database of a version, of a user that is not this machine's usual one for it."""
    made: list[Box] = []
    with open_folder() as folder:

        async def make(version: str) -> Box:
            pristine = pristine_clusters(version)
            if not pristine.directory.exists():
                await pristine.create()
            directory = copy(pristine.directory, folder / "postgres")
            if os.geteuid() == 0:
                give_to(directory, uid=NOBODY.pw_uid, gid=NOBODY.pw_gid)
            box = Box(directory, Archive(folder / "it's 100% safe"), binaries_of(version))
            made.append(box)
            await box.cluster.start(quiet)
            await run_all(box.directory, "CREATE TABLE public.rows (n integer)")
            return box

        yield make
        for box in made:
            await box.cluster.stop()


@pytest.mark.parametrize("version", BOTH)
async def test_a_moment_is_what_the_database_was_then_however_often_it_was_restored_since(
    new_box: NewBox, version: str
) -> None:
    box = await new_box(version)
    await box.add(0)
    await box.back_up()
    await box.add(1, 2)
    # Of what is given up: no later line goes on from this base backup.
    await box.back_up()
    await box.add(3)
    await box.cluster.stop()
    # A second line of history begins behind 1, a third one behind 2, which only the first has.
    first = await box.go_back(1)
    assert first.archives
    assert await box.rows() == [0, 1]
    await box.add(10)
    await box.cluster.stop()
    await box.go_back(2)
    assert await box.rows() == [0, 1, 2]
    await box.add(20)
    assert not (await box.back_up()).began_archiving
    await box.add(21)
    await box.cluster.stop()
    # The newest base backup is of the third line, and so none for the second.
    await box.go_back(10)
    assert await box.rows() == [0, 1, 10]
    await box.cluster.stop()
    assert (await undo(box.directory, box.binaries)).directory == box.directory
    # What is lost comes back as it was last, and not from the line that was given up.
    for path in box.directory.parent.glob("postgres*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lost = await box.go_back(None)
    assert await box.rows() == [0, 1, 2, 20, 21]
    assert not lost.archives
    if os.geteuid() == 0:
        assert box.directory.stat().st_uid == NOBODY.pw_uid


async def test_a_restored_copy_leaves_the_archive_of_its_original_alone(new_box: NewBox) -> None:
    box = await new_box("18")
    await box.add(0)
    await box.back_up()
    await box.add(1)
    await run_all(box.directory, "SELECT pg_switch_wal()")
    twin = box.another("twin")
    await archived(box)
    assert not (await twin.go_back(None)).archives
    assert await twin.rows() == [0, 1]
    assert not (twin.directory / MARK_FILE).exists()
    assert await ask(twin.directory, "SHOW archive_command") == "true"
    await twin.add(100)
    with pytest.raises(DatabaseError, match=rf"another database \({box.directory}\).*--take-over"):
        await twin.back_up()
    await run_all(twin.directory, "SELECT pg_switch_wal()", "CHECKPOINT")
    await twin.cluster.stop()
    await box.add(2)
    await run_all(box.directory, "SELECT pg_switch_wal()")
    await archived(box)
    # Nor does the copy of a copy, made where a copy was.
    assert not (await twin.go_back(1)).archives
    assert await twin.rows() == [0, 1]
    await twin.cluster.stop()
    assert {path.name[:8] for path in box.archive.wal.iterdir()} == {"00000001"}
    third = box.another("third")
    await third.go_back(None)
    assert await third.rows() == [0, 1, 2]
    # In the original's place after all: what was its own stays whole, and it writes there no more.
    begun = await third.back_up(take_over=True)
    assert begun.aside is not None
    await third.add(300)
    before = digest(begun.aside)
    await box.add(3)
    await run_all(box.directory, "SELECT pg_switch_wal()")
    await until(box, "SELECT failed_count > 0 FROM pg_stat_archiver")
    with pytest.raises(DatabaseError, match=f"another database .{third.directory}"):
        await box.back_up()
    await third.cluster.stop()
    assert (await third.go_back(300)).archives
    assert await third.rows() == [0, 1, 2, 300]
    assert digest(begun.aside) == before
    await third.cluster.stop()
    earlier = Box(box.directory.with_name("earlier"), Archive(begun.aside), box.binaries)
    earlier.at = box.at
    await earlier.go_back(1)
    assert await earlier.rows() == [0, 1]
    await earlier.cluster.stop()


async def archived(box: Box) -> None:
    """Wait until the server has copied all but the segment that it writes."""
    await until(
        box,
        "SELECT last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 16777216) "
        "FROM pg_stat_archiver",
    )


async def until(box: Box, query: str) -> None:
    """Wait for a truth about the running server."""
    async with asyncio.timeout(90):
        while not await ask(box.directory, query):
            await asyncio.sleep(0.02)


async def test_of_two_backups_at_once_one_is_told_that_the_other_runs(new_box: NewBox) -> None:
    box = await new_box("18")
    done = await asyncio.gather(*(box.back_up() for _ in range(3)), return_exceptions=True)
    faults = [one for one in done if isinstance(one, BaseException)]
    assert len(faults) == 2
    for fault in faults:
        assert isinstance(fault, DatabaseError)
        assert f"{box.archive.folder} is in use by appliance db backup (process" in fault.message
    lock = box.archive.lock("appliance db backup")
    lock.acquire()
    with pytest.raises(DatabaseError, match="in use by appliance db backup"):
        await box.another("twin").go_back(None)
    lock.release()
    assert len(box.archive.bases()) == 1


async def test_a_backup_that_fails_leaves_the_server_archiving_as_it_did(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await new_box("18")
    command = "SHOW archive_command"
    await box.back_up()
    used = await ask(box.directory, command)
    # A second archive, in which another database's segment lies where ours is to go.
    segment = await ask(box.directory, "SELECT pg_walfile_name(pg_current_wal_lsn())")
    other = Box(box.directory, Archive(box.archive.folder.with_name("other")), box.binaries)
    monkeypatch.setattr(backup, "ARCHIVE_TIMEOUT_S", 1.0)

    def spoil(words: str) -> None:
        if words == "making a base backup":
            for number in range(4):
                name = f"{int(str(segment), 16) + number:024X}"
                (other.archive.wal / name).write_bytes(b"another's")

    with pytest.raises(DatabaseError, match=f"has not archived .* it failed with {segment}"):
        await back_up(other.directory, other.binaries, other.archive, None, spoil)
    assert await ask(box.directory, command) == used
    (box.archive.folder / "owner.json").write_text("{")
    with pytest.raises(DatabaseError, match=r"owner\.json is damaged"):
        await box.back_up()


def mounted(folder: Path, options: str, *more: str) -> bool:
    """Mount a disk in memory, or change it; False where this user may not."""
    done = subprocess.run(("mount", "-o", options, *more, str(folder)), capture_output=True)
    return done.returncode == 0


def unmount(folder: Path) -> None:
    subprocess.run(("umount", "-l", str(folder)), check=True)


async def test_an_archive_on_a_disk_that_is_full_and_then_read_only(new_box: NewBox) -> None:
    box = await new_box("18")
    box.archive.folder.mkdir()
    if not mounted(box.archive.folder, "size=24m", "-t", "tmpfs", "archive"):
        pytest.skip("no disk of one's own can be mounted here")
    try:
        with pytest.raises(DatabaseError, match="No space left on device"):
            await box.back_up()
        assert await ask(box.directory, "SHOW archive_command") == "true"
        assert not list(box.archive.folder.glob("base*"))
        assert mounted(box.archive.folder, "remount,size=400m")
        await box.back_up()
        # Filled later: the server keeps what it cannot copy, and copies it when there is room.
        (box.archive.folder / "others").write_bytes(bytes(shutil.disk_usage(box.archive.wal).free))
        await box.add(1)
        await run_all(box.directory, "SELECT pg_switch_wal()")
        await until(box, "SELECT failed_count > 0 FROM pg_stat_archiver")
        with pytest.raises(DatabaseError, match="No space left on device"):
            await box.back_up()
        (box.archive.folder / "others").unlink()
        await archived(box)
        assert mounted(box.archive.folder, "remount,ro")
        with pytest.raises(DatabaseError, match="cannot be written to: Read-only file system"):
            await box.back_up()
        twin = box.another("twin")
        await twin.go_back(None)
        assert await twin.rows() == [1]
        await twin.cluster.stop()
    finally:
        await box.cluster.stop()
        unmount(box.archive.folder)


async def test_wal_that_the_restored_server_could_not_read_is_no_end_of_the_archive(
    new_box: NewBox,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("one user has all the files here")
    box = await new_box("18")
    await box.add(0)
    await box.back_up()
    await box.add(1)
    await box.cluster.stop()
    newest = max(box.archive.wal.iterdir())
    newest.chmod(0o600)
    os.chown(newest, 0, 0)
    with pytest.raises(DatabaseError, match=rf"uid {NOBODY.pw_uid}.*cannot read .*{newest.name}"):
        await box.go_back(None)
    os.chown(newest, NOBODY.pw_uid, NOBODY.pw_gid)
    await box.go_back(None)
    assert await box.rows() == [0, 1]


@pytest.mark.parametrize("version", BOTH)
async def test_a_hole_in_the_archive_is_no_end_of_it(new_box: NewBox, version: str) -> None:
    box = await new_box(version)
    await box.back_up()
    for number in range(1, 5):
        await box.add(number)
        await run_all(box.directory, "SELECT pg_switch_wal()")
    await box.cluster.stop()
    segments = sorted(path for path in box.archive.wal.iterdir() if len(path.name) == 24)
    lost = segments[-3]
    kept = lost.read_bytes()
    (box.directory / "pg_wal" / lost.name).unlink(missing_ok=True)
    for damaged in (None, kept[:40] + bytes(len(kept) - 40)):
        lost.unlink(missing_ok=True)
        if damaged is not None:
            lost.write_bytes(damaged)
            lost.chmod(0o644)
        for moment in (None, 4):
            with pytest.raises(DatabaseError, match="missing or damaged"):
                await box.go_back(moment)
    lost.write_bytes(kept)
    await box.go_back(4)
    assert await box.rows() == [1, 2, 3, 4]
