"""Makes backups of a running cluster: WAL archived from now on, and a verified base backup.

Never: writes a row, stops the server, or lets a backup that was not finished look like one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from appliance.dbops.cluster.account import Account, account_of_cluster, own_account
from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.programs import run_program
from appliance.dbops.copies.archive import BASE_PART, STAMP, Archive, BaseBackup
from appliance.dbops.copies.ownership import (
    Mark,
    Owner,
    belongs,
    claim,
    read_owner,
    write_mark,
    write_owner,
)
from appliance.dbops.folder import give_to, opened
from appliance.dbops.quoting import literal
from appliance.dbops.settings import PORT, SUPERUSER
from appliance.dbops.target import Connection, Target
from appliance.durable import replace_file, sync_folder
from appliance.errors import DatabaseError

Progress = Callable[[str], None]

PURPOSE = "appliance db backup"
BACKUP_TIMEOUT_S = 24 * 3600.0
ARCHIVE_TIMEOUT_S = 60.0
POLL_S = 0.05

_SETTING = "SELECT setting FROM pg_settings WHERE name = $1"
_ARCHIVED = """
SELECT last_archived_wal COLLATE "C" >= $1,
    CASE WHEN last_failed_time > COALESCE(last_archived_time, '-infinity') THEN last_failed_wal END
FROM pg_stat_archiver
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What a backup has made, and removed as no longer wanted; `aside` holds an earlier database's."""

    base: BaseBackup
    began_archiving: bool
    removed: tuple[Path, ...]
    aside: Path | None


async def back_up(
    directory: Path,
    binaries: Binaries,
    archive: Archive,
    keep: int | None,
    progress: Progress,
    *,
    take_over: bool = False,
) -> Backup:
    """Back the cluster in `directory` up into `archive`; it must run, and goes on running.

    With `keep`, so many base backups stay, and the WAL they need. With `take_over` an archive of another
    database is set aside first. Works in a database without transaction IDs too. Raises NotRunning,
    DatabaseError.
    """
    account = account_of_cluster(directory)
    connection = await Target(directory=directory).connect(statement_timeout_ms=0)
    try:
        try:
            archive.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            lock = archive.lock(PURPOSE)
            lock.acquire()
        except OSError as error:
            raise DatabaseError(
                f"{archive.folder} cannot be written to: {error.strerror}"
            ) from error
        try:
            owner, aside = _owner(archive, directory, take_over)
            await _prepare_wal(archive, directory, account)
            async with _archiving(connection, archive.archive_command(owner)) as began:
                progress("making a base backup")
                base = await _base_backup(directory, binaries, archive, progress)
                progress("archiving the newest changes")
                await push_wal(connection, archive)
            write_owner(archive.folder, owner.on(base.timeline, base.finished_at))
            removed: tuple[Path, ...] = ()
            if keep is not None:
                # The one just verified stays, also where an earlier one has a later time: clocks jump.
                others = [one for one in archive.bases() if one != base]
                removed = archive.forget_before([*others[max(0, len(others) - keep + 1) :], base])
        finally:
            lock.release()
    finally:
        await connection.close()
    return Backup(base=base, began_archiving=began, removed=removed, aside=aside)


async def push_wal(connection: Connection, archive: Archive) -> None:
    """Let the server archive what it has written until now; raises DatabaseError when it does not."""
    # A record of its own, so that there is a segment to be copied where nothing has changed since.
    await connection.execute("SELECT pg_create_restore_point('appliance db backup')")
    segment = await connection.fetchval("SELECT pg_walfile_name(pg_switch_wal() - 1)")
    clock = asyncio.get_running_loop().time
    deadline = clock() + ARCHIVE_TIMEOUT_S
    while True:
        row = await connection.fetchrow(_ARCHIVED, segment)
        assert row is not None
        # It says so of another command's work too; and the file alone may be another database's.
        if row[0] and (archive.wal / segment).exists():
            return
        if clock() > deadline:
            raise DatabaseError(
                f"the server has not archived {segment} within {ARCHIVE_TIMEOUT_S:.0f} s"
                + (f"; it failed with {row[1]} (see its log)" if row[1] else "")
            )
        await asyncio.sleep(POLL_S)


def _owner(archive: Archive, directory: Path, take_over: bool) -> tuple[Owner, Path | None]:
    """(whose the archive is: this database's; where another's was moved). Raises DatabaseError."""
    owner = read_owner(archive.folder)
    if owner is not None and belongs(directory, owner):
        write_mark(directory, Mark(token=owner.token, archive=str(archive.folder)))
        return owner, None
    aside = None
    if owner is not None or not archive.is_empty:
        if not take_over:
            whose = "an unknown database" if owner is None else f"another database ({owner.folder})"
            raise DatabaseError(
                f"{archive.folder} has the backups of {whose}: choose another folder. If this database "
                "has taken that one's place, by a restore or an upgrade, add --take-over: they are moved "
                "into a folder of their own in it"
            )
        aside = archive.set_aside(owner)
    return claim(archive.folder, directory), aside


async def _prepare_wal(archive: Archive, directory: Path, account: Account) -> None:
    """The folder that the server's user copies its WAL to; better told now than in its log tonight."""
    if not archive.wal.exists():
        archive.wal.mkdir(mode=0o700)
        os.chown(archive.wal, account.uid, account.gid)
    try:
        await run_program(
            Path("/bin/sh"),
            *("-c", 'test -w "$1" && test -x "$1"', "sh", archive.wal),
            cwd=Path("/"),
            account=account,
            timeout_s=ARCHIVE_TIMEOUT_S,
        )
    except DatabaseError as error:
        raise DatabaseError(
            f"uid {account.uid}, which the database runs as, cannot write to {archive.wal}: choose a "
            "folder that every user may walk to, or open the folders above it (chmod o+x)"
        ) from error
    # Where histories part is written once, when a restore ends; nothing may have been archived then.
    for history in (directory / "pg_wal").glob("????????.history"):
        if not (archive.wal / history.name).exists():
            replace_file(archive.wal / history.name, history.read_bytes())


@asynccontextmanager
async def _archiving(connection: Connection, command: str) -> AsyncIterator[bool]:
    """The server archives by this command from now on; whether it did not before.

    A backup that fails leaves the command as it was: what cannot be archived would fill the data's disk.
    """
    if await connection.fetchval(_SETTING, "archive_mode") == "off":
        raise DatabaseError("archive_mode is off: restart the database, which turns it on")
    before = await connection.fetchval(_SETTING, "archive_command")
    if before != command:
        await _set_command(connection, command)
    try:
        yield before != command
    except BaseException:
        if before != command and not connection.is_closed():
            await _set_command(connection, before)
        raise


async def _set_command(connection: Connection, command: str) -> None:
    # This session and the archiver are told at once; the copy of the newest WAL proves that it works.
    await connection.execute(f"ALTER SYSTEM SET archive_command = {literal(command)}")
    await connection.execute("SELECT pg_reload_conf()")


async def _base_backup(
    directory: Path, binaries: Binaries, archive: Archive, progress: Progress
) -> BaseBackup:
    part = archive.folder / BASE_PART
    shutil.rmtree(part, ignore_errors=True)  # Of a backup that was killed: the lock is ours.

    async def run(name: str, *arguments: str | Path, pass_fds: tuple[int, ...] = ()) -> None:
        await run_program(
            binaries.program(name),
            *arguments,
            cwd=archive.folder,
            account=own_account(),
            timeout_s=BACKUP_TIMEOUT_S,
            pass_fds=pass_fds,
        )

    try:
        with opened(directory) as here:
            place = f"host={quote(here.path, safe='')}&port={PORT}"
            await run(
                "pg_basebackup",
                f"--dbname=postgresql://{SUPERUSER}@/postgres?{place}",
                f"--pgdata={part}",
                "--wal-method=stream",
                "--checkpoint=fast",
                pass_fds=(here.descriptor,),
            )
        # It ended with the WAL that it needs beside it, so from this moment on it can be restored to.
        finished_at = datetime.now(UTC)
        progress("verifying it")
        await run("pg_verifybackup", "--quiet", part)
        above = archive.folder.stat()
        if os.geteuid() == 0:
            # Whoever makes the next one has to be able to remove this one.
            give_to(part, uid=above.st_uid, gid=above.st_gid)
        path = archive.folder / f"base-{finished_at.strftime(STAMP)}"
        part.rename(path)
        sync_folder(archive.folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return BaseBackup(path=path, finished_at=finished_at)
