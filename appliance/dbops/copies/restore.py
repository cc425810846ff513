"""Makes a data folder as it was at a moment, from a base backup and archived WAL.

The new folder is built and recovered beside the old one, which is only renamed once the new one runs, and
kept. Never: touches a folder that a server works in, or changes a backup.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from appliance.dbops.cluster.account import Account, account_for_new_cluster, account_of_cluster
from appliance.dbops.cluster.binaries import Binaries, reachable_binaries
from appliance.dbops.cluster.cluster import Cluster, cluster_lock, major_of
from appliance.dbops.cluster.programs import control_fields, run_program
from appliance.dbops.copies.archive import Archive, BaseBackup
from appliance.dbops.copies.kept import (
    Swapped,
    check_space,
    check_stopped,
    copy_folder,
    swap_back,
    swap_in,
)
from appliance.dbops.folder import append_text, give_to, opened, replace_file
from appliance.dbops.target import Target
from appliance.errors import DatabaseError

Progress = Callable[[str], None]

PURPOSE = "appliance db restore"
CONTROL_TIMEOUT_S = 60.0
RECOVERY_TIMEOUT_S = 24 * 3600.0
RECOVERY = (
    "restore_command",
    "recovery_target_time",
    "recovery_target_timeline",
    "recovery_target_action",
    "logging_collector",
)
"""Settings for the recovery alone; they are taken back when it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore has made: from which base backup, and where the folder before is kept, if any."""

    base: BaseBackup
    directory: Path
    kept: Path | None


async def restore(
    directory: Path,
    binaries: Binaries,
    archive: Archive,
    moment: datetime | None,
    progress: Progress,
) -> Restored:
    """Bring `directory` to where it was at `moment` (None: the end of what was archived).

    Turns committed until then are there, later ones are not. Where the folder exists it must be stopped;
    its own newest WAL is used too. Raises DatabaseError, with the folder as it was.
    """
    base = archive.base_for(moment)
    if major_of(base.path) != binaries.major:
        raise DatabaseError(
            f"{base.path} is of PostgreSQL {major_of(base.path)}, this is {binaries.version}"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = cluster_lock(directory, PURPOSE)
    lock.acquire()
    work = directory.with_name(f"{directory.name}.restore")
    try:
        exists = _holds_anything(directory)
        account = account_of_cluster(directory) if exists else account_for_new_cluster()
        timeline = "latest"
        if exists:
            check_stopped(directory)
            timeline = await _timeline(directory, binaries, account)
        shutil.rmtree(work, ignore_errors=True)  # Of a restore that was killed.
        work.mkdir(mode=0o700)
        new = work / "postgres"
        check_space(base.path, work)
        progress(f"copying the base backup of {base.finished_at:%Y-%m-%d %H:%M:%S} UTC")
        await copy_folder(base.path, new)
        if exists:
            _add_newest_wal(directory, new)
        _prepare(new, account, archive, moment, timeline)
        progress("replaying what was archived since")
        await _recover(new, binaries, progress)
        if exists:
            return Restored(base=base, directory=directory, kept=swap_in(directory, new).kept)
        new.rename(directory)
        return Restored(base=base, directory=directory, kept=None)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()


def undo(directory: Path) -> Swapped:
    """Put back the folder that the last restore has kept; the restored one is kept in its place."""
    major = major_of(directory)
    lock = cluster_lock(directory, PURPOSE)
    lock.acquire()
    try:
        check_stopped(directory)
        return swap_back(directory, lambda kept: major_of(kept) == major)
    finally:
        lock.release()


def _holds_anything(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


async def _timeline(directory: Path, binaries: Binaries, account: Account) -> str:
    """The line of history that a stopped folder is on: an earlier restore may have begun another one,
    which was then given up."""
    reachable = reachable_binaries(binaries, account)
    with opened(directory) as here:
        told = await run_program(
            reachable.program("pg_controldata"),
            *("-D", here.path),
            cwd=directory,
            account=account,
            timeout_s=CONTROL_TIMEOUT_S,
            pass_fds=(here.descriptor,),
        )
    return control_fields(told)["Latest checkpoint's TimeLineID"]


def _add_newest_wal(directory: Path, new: Path) -> None:
    """Segments of the stopped server that it had not archived yet: recovery looks there last."""
    for path in (directory / "pg_wal").iterdir():
        if path.is_file() and not path.is_symlink() and not (new / "pg_wal" / path.name).exists():
            shutil.copy2(path, new / "pg_wal" / path.name)


def _prepare(
    new: Path, account: Account, archive: Archive, moment: datetime | None, timeline: str
) -> None:
    """Tell the copy to recover, and until when; then to go on as an ordinary database."""
    settings = {
        "restore_command": archive.restore_command(),
        "recovery_target_timeline": timeline,
        "recovery_target_action": "promote",
        "logging_collector": "off",  # Its words go where the start's are read.
    }
    if moment is not None:
        settings["recovery_target_time"] = moment.astimezone(UTC).isoformat(sep=" ")
    lines = [
        f"{name} = '{value.replace(chr(39), chr(39) * 2)}'" for name, value in settings.items()
    ]
    replace_file(new, "recovery.signal", "", uid=account.uid, gid=account.gid)
    append_text(new, "postgresql.auto.conf", "\n".join(["", *lines, ""]))
    give_to(new, uid=account.uid, gid=account.gid)


async def _recover(new: Path, binaries: Binaries, progress: Progress) -> None:
    cluster = Cluster(new, binaries, purpose=PURPOSE)
    try:
        await cluster.start(progress, timeout_s=RECOVERY_TIMEOUT_S)
        connection = await Target(directory=new).connect()
        try:
            for name in RECOVERY:
                await connection.execute(f"ALTER SYSTEM RESET {name}")
        finally:
            await connection.close()
    except DatabaseError as error:
        if "before configured recovery target" in error.message:
            raise DatabaseError(
                "that moment was not reached: it is later than the last change that was archived. "
                "Leave --to out to restore to the end"
            ) from error
        raise
    finally:
        await cluster.stop()
