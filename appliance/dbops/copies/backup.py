"""Makes backups of a running cluster: WAL archived from now on, and a verified base backup.

Never: writes a row, stops the server, or lets a backup that was not finished look like one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from appliance.dbops.cluster.account import Account, account_of_cluster
from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.programs import run_program
from appliance.dbops.copies.archive import STAMP, Archive, BaseBackup
from appliance.dbops.folder import opened, sync_folder
from appliance.dbops.settings import PORT, SUPERUSER
from appliance.dbops.target import Connection, Target
from appliance.errors import DatabaseError

Progress = Callable[[str], None]

BACKUP_TIMEOUT_S = 24 * 3600.0
ARCHIVE_TIMEOUT_S = 60.0
POLL_S = 0.05

_SETTING = "SELECT setting FROM pg_settings WHERE name = $1"
_ARCHIVED = "SELECT last_archived_wal >= $1, last_failed_wal FROM pg_stat_archiver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What a backup has made, and removed as no longer wanted."""

    base: BaseBackup
    began_archiving: bool
    removed: tuple[Path, ...]


async def back_up(
    directory: Path, binaries: Binaries, archive: Archive, keep: int | None, progress: Progress
) -> Backup:
    """Back the cluster in `directory` up into `archive`; it must run, and goes on running.

    With `keep`, so many base backups stay, and the WAL they need. Works in a database without
    transaction IDs too. Raises NotRunning, DatabaseError.
    """
    account = account_of_cluster(directory)
    _make_folders(archive, account)
    target = Target(directory=directory)
    connection = await target.connect(statement_timeout_ms=0)
    try:
        await _check_writable(archive, account)
        began = await _begin_archiving(connection, archive)
        progress("making a base backup")
        base = await _base_backup(directory, binaries, archive, progress)
        progress("archiving the newest changes")
        await push_wal(connection)
    finally:
        await connection.close()
    removed: tuple[Path, ...] = ()
    if keep is not None:
        removed = archive.forget_before(archive.bases()[-keep:])
    return Backup(base=base, began_archiving=began, removed=removed)


async def push_wal(connection: Connection) -> None:
    """Let the server archive what it has written until now; raises DatabaseError when it does not."""
    # Without a change since the last switch this names the segment before, which is there already.
    segment = await connection.fetchval(
        "SELECT pg_walfile_name(pg_switch_wal() - CASE WHEN pg_is_in_recovery() THEN 0 ELSE 1 END)"
    )
    clock = asyncio.get_running_loop().time
    deadline = clock() + ARCHIVE_TIMEOUT_S
    while True:
        row = await connection.fetchrow(_ARCHIVED, segment)
        assert row is not None
        if row[0]:
            return
        if clock() > deadline:
            raise DatabaseError(
                f"the server has not archived {segment} within {ARCHIVE_TIMEOUT_S:.0f} s"
                + (f"; it failed with {row[1]} (see its log)" if row[1] else "")
            )
        await asyncio.sleep(POLL_S)


def _make_folders(archive: Archive, account: Account) -> None:
    archive.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not archive.wal.exists():
        archive.wal.mkdir(mode=0o700)
        os.chown(archive.wal, account.uid, account.gid)


async def _check_writable(archive: Archive, account: Account) -> None:
    """The server's user copies its WAL itself; better told now than in its log tonight."""
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


async def _begin_archiving(connection: Connection, archive: Archive) -> bool:
    """Let the server archive into this folder; whether it did not before."""
    if await connection.fetchval(_SETTING, "archive_mode") == "off":
        raise DatabaseError("archive_mode is off: restart the database, which turns it on")
    command = archive.archive_command()
    if await connection.fetchval(_SETTING, "archive_command") == command:
        return False
    quoted = command.replace("'", "''")
    await connection.execute(f"ALTER SYSTEM SET archive_command = '{quoted}'")
    await connection.execute("SELECT pg_reload_conf()")
    # This session and the archiver are told at once; the copy of the newest WAL proves that it works.
    return True


async def _base_backup(
    directory: Path, binaries: Binaries, archive: Archive, progress: Progress
) -> BaseBackup:
    part = archive.folder / "base.part"
    shutil.rmtree(part, ignore_errors=True)  # Of a backup that was killed.
    own = Account(uid=os.geteuid(), gid=os.getegid(), borrowed=False)

    async def run(name: str, *arguments: str | Path, pass_fds: tuple[int, ...] = ()) -> None:
        await run_program(
            binaries.program(name),
            *arguments,
            cwd=archive.folder,
            account=own,
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
        path = archive.folder / f"base-{finished_at.strftime(STAMP)}"
        part.rename(path)
        sync_folder(archive.folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return BaseBackup(path=path, finished_at=finished_at)
