"""Makes a data folder as it was at a moment, from a base backup and archived WAL.

The new folder is built and recovered beside the old one, which is only renamed once the new one runs,
and kept. Never: touches a folder that a server works in, changes a backup, or lets a copy write into the
archive of its original.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from appliance.dbops.cluster.account import (
    Account,
    account_for_new_cluster,
    account_of_cluster,
    own_account,
)
from appliance.dbops.cluster.binaries import Binaries, reachable_binaries
from appliance.dbops.cluster.cluster import Cluster, cluster_lock, major_of
from appliance.dbops.cluster.programs import control_fields, run_program
from appliance.dbops.copies.archive import Archive, BaseBackup, parents_of
from appliance.dbops.copies.kept import (
    Swapped,
    check_space,
    check_stopped,
    copy_folder,
    kept_folders,
    swap_back,
    swap_in,
)
from appliance.dbops.copies.ownership import (
    MARK_FILE,
    Owner,
    belongs,
    read_mark,
    read_owner,
    went_back,
    write_mark,
)
from appliance.dbops.folder import append_text, give_to, opened
from appliance.dbops.quoting import literal
from appliance.dbops.target import Target
from appliance.durable import replace_file
from appliance.errors import DatabaseError

Progress = Callable[[str], None]

PURPOSE = "appliance db restore"
PROGRAM_TIMEOUT_S = 60.0
RECOVERY_TIMEOUT_S = 24 * 3600.0
_SEGMENT = re.compile("[0-9A-F]{24}")

RECOVERY = (
    "restore_command",
    "recovery_target_time",
    "recovery_target_timeline",
    "recovery_target_action",
    "hot_standby",
    "logging_collector",
)
"""Settings for the recovery alone; they are taken back when it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore has made: from which base backup, where the folder before is kept, if any, and
    whether its changes go on being archived."""

    base: BaseBackup
    directory: Path
    kept: Path | None
    archives: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a restore begins with. `folders` are those of the archive's own database, the newest first,
    by timeline: their newest WAL is not archived yet."""

    base: BaseBackup
    account: Account
    timeline: int | None
    folders: dict[int, Path]

    @property
    def is_whole(self) -> bool:
        """Whether all that was ever written on the timeline is at hand."""
        return self.timeline in self.folders


async def restore(
    directory: Path,
    binaries: Binaries,
    archive: Archive,
    moment: datetime | None,
    progress: Progress,
) -> Restored:
    """Bring `directory` to where it was at `moment` (None: the end of what was archived).

    Turns committed until then are there, later ones are not. Where the folder exists it must be stopped;
    if it is the archive's own database, its newest WAL is used too, and the restored one goes on
    archiving. Any other is a copy, and archives nothing. Raises DatabaseError, with the folder as it was.
    """
    now = datetime.now(UTC)
    if moment is not None and moment > now:
        raise DatabaseError(f"{moment.isoformat()} is in the future: it is {now.isoformat()}")
    if not archive.folder.is_dir():
        raise DatabaseError(f"{archive.folder} does not exist: there is no backup in it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = cluster_lock(directory, PURPOSE)
    lock.acquire()
    work = directory.with_name(f"{directory.name}.restore")
    try:
        with _held(archive):
            exists = _holds_anything(directory)
            if exists:
                check_stopped(directory)
            owner = read_owner(archive.folder)
            source = await _source(directory, binaries, archive, owner, moment)
            shutil.rmtree(work, ignore_errors=True)  # Of a restore that was killed.
            work.mkdir(mode=0o700)
            new = work / "postgres"
            check_space(source.base.path, work)
            progress("verifying the base backup")
            await run_program(
                binaries.program("pg_verifybackup"),
                *("--quiet", source.base.path),
                cwd=archive.folder,
                account=own_account(),
                timeout_s=RECOVERY_TIMEOUT_S,
            )
            progress(f"copying the base backup of {source.base.finished_at:%Y-%m-%d %H:%M:%S} UTC")
            await copy_folder(source.base.path, new)
            archives = belongs(directory, owner) and _is_at(directory, archive)
            _add_newest_wal(source, new)
            _prepare(new, source, archive, moment)
            (new / MARK_FILE).unlink(missing_ok=True)
            mark = read_mark(directory)
            if mark is not None and belongs(directory, owner):
                write_mark(new, mark)
            progress("replaying what was archived since")
            command = archive.archive_command(owner) if archives and owner is not None else None
            cluster = Cluster(new, binaries, purpose=PURPOSE)
            try:
                await _recover(cluster, source, archive, moment, progress)
                await _settle(new, command)
            finally:
                await cluster.stop()
            timeline = await _timeline(new, binaries, source.account)
            kept = None
            if exists:
                kept = swap_in(directory, new).kept
            else:
                new.rename(directory)
            went_back(directory, timeline, datetime.now(UTC))
            return Restored(base=source.base, directory=directory, kept=kept, archives=archives)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()


async def undo(directory: Path, binaries: Binaries) -> Swapped:
    """Put back the folder that the last restore has kept; the restored one is kept in its place."""
    major = major_of(directory)
    lock = cluster_lock(directory, PURPOSE)
    lock.acquire()
    try:
        check_stopped(directory)
        swapped = swap_back(directory, lambda kept: major_of(kept) == major)
        timeline = await _timeline(directory, binaries, account_of_cluster(directory))
        went_back(directory, timeline, datetime.now(UTC))
        return swapped
    finally:
        lock.release()


def _holds_anything(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _is_at(directory: Path, archive: Archive) -> bool:
    """Whether a data folder's changes go into this very archive, and not to where it was moved since."""
    mark = read_mark(directory)
    return mark is not None and Path(mark.archive) == archive.folder


@contextlib.contextmanager
def _held(archive: Archive) -> Iterator[None]:
    """No backup removes meanwhile what a restore reads; nothing can from a disk that is read-only."""
    lock = archive.lock(PURPOSE)
    try:
        lock.acquire()
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
    try:
        yield
    finally:
        lock.release()


async def _source(
    directory: Path,
    binaries: Binaries,
    archive: Archive,
    owner: Owner | None,
    moment: datetime | None,
) -> _Source:
    """Choose the line of history that the database was on at that moment, and a base backup for it."""
    own = [
        folder
        for folder in (*kept_folders(directory), directory)
        if belongs(folder, owner) and major_of(folder) == binaries.major
    ]
    folders = {
        await _timeline(folder, binaries, account_of_cluster(folder)): folder for folder in own
    }
    timeline = None if owner is None else owner.line_at(moment)
    if moment is None and directory in own:
        timeline = next(line for line, folder in folders.items() if folder == directory)
    histories = [folder / "pg_wal" for folder in folders.values()]
    base = archive.base_for(moment, timeline, histories)
    if major_of(base.path) != binaries.major:
        raise DatabaseError(
            f"{base.path} is of PostgreSQL {major_of(base.path)}, this is {binaries.version}"
        )
    if _holds_anything(directory):
        account = account_of_cluster(directory)
    else:
        account = _account_of_archive(archive)
    await _check_readable(archive, account)
    return _Source(base=base, account=account, timeline=timeline, folders=folders)


def _account_of_archive(archive: Archive) -> Account:
    """Who is to own a folder that is lost: who owned it, and so its WAL."""
    new = account_for_new_cluster()
    status = archive.wal.stat()
    if not new.borrowed or status.st_uid == 0:
        return new
    return Account(uid=status.st_uid, gid=status.st_gid, borrowed=True)


async def _check_readable(archive: Archive, account: Account) -> None:
    """A segment that cannot be read looks like the end of the archive, and all after it would be lost."""
    newest = max(archive.wal.iterdir(), default=archive.wal)
    try:
        await run_program(
            Path("/bin/sh"),
            *("-c", 'test -x "$1" && test -r "$2"', "sh", archive.wal, newest),
            cwd=Path("/"),
            account=account,
            timeout_s=PROGRAM_TIMEOUT_S,
        )
    except DatabaseError as error:
        raise DatabaseError(
            f"uid {account.uid}, which the restored database is to run as, cannot read {newest}: open "
            f"the folders above it (chmod o+x), or give it the WAL (chown -R {account.uid} {archive.wal})"
        ) from error


async def _timeline(directory: Path, binaries: Binaries, account: Account) -> int:
    """The line of history that a stopped folder is on."""
    reachable = reachable_binaries(binaries, account)
    with opened(directory) as here:
        told = await run_program(
            reachable.program("pg_controldata"),
            *("-D", here.path),
            cwd=directory,
            account=account,
            timeout_s=PROGRAM_TIMEOUT_S,
            pass_fds=(here.descriptor,),
        )
    return int(control_fields(told)["Latest checkpoint's TimeLineID"])


def _add_newest_wal(source: _Source, new: Path) -> None:
    """What stopped servers had not archived yet: segments of the wanted line, recovery looks there last;
    and where histories part, so that the new line gets a number that none has had."""
    paths = [
        path
        for timeline, folder in source.folders.items()
        for path in (folder / "pg_wal").iterdir()
        if timeline == source.timeline or path.suffix == ".history"
    ]
    for path in paths:
        if path.is_file() and not path.is_symlink() and not (new / "pg_wal" / path.name).exists():
            shutil.copy2(path, new / "pg_wal" / path.name)


def _prepare(new: Path, source: _Source, archive: Archive, moment: datetime | None) -> None:
    """Tell the copy to recover, and until when; then to go on as an ordinary database."""
    settings = {
        "restore_command": archive.restore_command(),
        "recovery_target_timeline": "latest" if source.timeline is None else str(source.timeline),
        "recovery_target_action": "promote",
        # What it writes until it is known to be good stays with it.
        "archive_command": "",
        "hot_standby": "off",  # It is ready when it has recovered, and not before.
        "logging_collector": "off",  # Its words go where the start's are read.
    }
    if moment is not None:
        settings["recovery_target_time"] = moment.astimezone(UTC).isoformat(sep=" ")
    lines = [f"{name} = {literal(value)}" for name, value in settings.items()]
    for path in new.glob(".s.PGSQL.*"):
        path.unlink()  # Of the server that it was copied from, which may still run.
    owner = (source.account.uid, source.account.gid)
    replace_file(new / "recovery.signal", b"", owner=owner)
    append_text(new, "postgresql.auto.conf", "\n".join(["", *lines, ""]))
    give_to(new, uid=source.account.uid, gid=source.account.gid)


async def _recover(
    cluster: Cluster,
    source: _Source,
    archive: Archive,
    moment: datetime | None,
    progress: Progress,
) -> None:
    """Start it and wait until it has recovered, to the moment or to the end of what there is."""
    to_the_end = moment is None
    try:
        await cluster.start(progress, timeout_s=RECOVERY_TIMEOUT_S)
    except DatabaseError as error:
        if "before configured recovery target" not in error.message:
            raise
        if not source.is_whole:
            raise DatabaseError(
                "that moment was not reached: it is later than the last change that was archived. "
                "Leave --to out to restore to the end"
            ) from error
        # Between the last change and that moment there was none: the end is what it was then.
        append_text(cluster.directory, "postgresql.auto.conf", "recovery_target_time = ''\n")
        await cluster.start(progress, timeout_s=RECOVERY_TIMEOUT_S)
        to_the_end = True
    if to_the_end:
        _check_all_read(cluster.directory, archive)


def _check_all_read(new: Path, archive: Archive) -> None:
    """Refuse a recovery to the end that ended before the archive does: PostgreSQL takes a segment that is
    missing or damaged for the end, and all later ones would be lost without a word."""
    wal = new / "pg_wal"
    newest = max(int(path.stem, 16) for path in wal.glob("*.history"))
    line, end = max(parents_of(newest, [wal]).items())
    for path in sorted(archive.wal.iterdir()):
        if not _SEGMENT.fullmatch(path.name) or int(path.name[:8], 16) != line:
            continue
        # All of a cluster's segments are of one size, and whole in the archive.
        start = (int(path.name[8:16], 16) << 32) + int(path.name[16:], 16) * path.stat().st_size
        if start >= end:
            raise DatabaseError(
                f"a segment before {path} is missing or damaged: the changes of line {line} end at "
                f"{end >> 32:X}/{end & 0xFFFFFFFF:X}, and the archive goes on behind that. Bring the "
                "segment back, or restore to a moment before it (--to)"
            )


async def _settle(new: Path, archive_command: str | None) -> None:
    """Make it an ordinary database; `archive_command` holds from its next start on (None: none does)."""
    connection = await Target(directory=new).connect()
    try:
        for name in (*RECOVERY, "archive_command"):
            await connection.execute(f"ALTER SYSTEM RESET {name}")
        if archive_command is not None:
            value = literal(archive_command)
            await connection.execute(f"ALTER SYSTEM SET archive_command = {value}")
    finally:
        await connection.close()
