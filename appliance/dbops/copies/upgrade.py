"""Moves a stopped embedded cluster to another major version of PostgreSQL, and back.

Works on a copy of the data folder beside it: the folder itself is only renamed, once the new one is
whole, and kept. So a kill at any moment leaves one complete folder under the old name, and going back is
a rename.
Never: changes a file of the old folder, or removes it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.dbops.cluster.account import Account, account_for_initdb, account_of_cluster
from appliance.dbops.cluster.binaries import Binaries, find_major, reachable_binaries
from appliance.dbops.cluster.cluster import cluster_lock, major_of
from appliance.dbops.cluster.extensions import CONNECTABLE
from appliance.dbops.cluster.initdb import adopt, initdb
from appliance.dbops.cluster.programs import control_fields, last_line, run_program
from appliance.dbops.copies.kept import (
    Swapped,
    check_space,
    check_stopped,
    copy_folder,
    swap_back,
    swap_in,
)
from appliance.dbops.folder import give_to, opened
from appliance.dbops.settings import SUPERUSER
from appliance.errors import DatabaseError

Progress = Callable[[str], None]

PURPOSE = "appliance db upgrade"
UPGRADE_TIMEOUT_S = 24 * 3600.0

DROP_MARKS = (
    "UPDATE pg_attribute SET attoptions = "
    "NULLIF(ARRAY(SELECT one FROM unnest(attoptions) AS one WHERE one NOT LIKE 'pg\\_attver=%'), '{}') "
    "WHERE attrelid >= 16384 AND attoptions::text LIKE '%pg\\_attver=%'"
)
"""Minor versions of November 2026 mark the columns of views and of tables made by queries; a pg_dump from
before them writes the mark down as an option of the column's, which its own server refuses."""

_NAME = re.compile(r'^\s*1: datname = "(.*)"\s+\(typeid', re.MULTILINE)


async def upgrade(
    directory: Path, binaries: Binaries, old_bin: Path | None, progress: Progress
) -> Swapped:
    """Make the cluster in `directory` one of `binaries`' version with pg_upgrade.

    The old version's programs are looked for in `old_bin`, else where packages put them. Raises
    DatabaseError, with the folder as it was, when it is in use, not older, or cannot be upgraded.
    """
    old_major = major_of(directory)
    account = account_of_cluster(directory)
    _check_versions(directory, old_major, binaries)
    old = find_major(old_major, old_bin)
    if old is None:
        raise DatabaseError(_missing_programs(directory, old_major, binaries, old_bin))
    lock = cluster_lock(directory, PURPOSE)
    lock.acquire()
    try:
        check_stopped(directory)
        work = directory.with_name(f"{directory.name}.upgrade")
        shutil.rmtree(work, ignore_errors=True)  # Of an upgrade that was killed.
        check_space(directory, directory.parent)
        work.mkdir(mode=0o700)
        try:
            await _build(directory, work, old, binaries, progress)
            adopt(work / "new", account)
            return swap_in(directory, work / "new")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        lock.release()


def roll_back(directory: Path) -> Swapped:
    """Put back the folder of another version that was kept last; the present one is kept in its place.

    What was written since the upgrade is in the kept folder alone. Raises DatabaseError.
    """
    major = major_of(directory)
    lock = cluster_lock(directory, PURPOSE)
    lock.acquire()
    try:
        check_stopped(directory)
        return swap_back(directory, lambda kept: major_of(kept) != major)
    finally:
        lock.release()


async def _build(
    directory: Path, work: Path, old: Binaries, binaries: Binaries, progress: Progress
) -> None:
    """Fill `work/new` with the upgraded cluster.

    As root everything runs under the user of initdb: pg_upgrade too looks its own user up in passwd. The
    folder may lie where that user cannot walk to, hence the paths through an open descriptor.
    """
    account = account_for_initdb()
    old, new = reachable_binaries(old, account), reachable_binaries(binaries, account)
    progress("copying the data folder")
    copy, fresh = work / "old", work / "new"
    await copy_folder(directory, copy)
    (copy / "postmaster.pid").unlink(missing_ok=True)
    fresh.mkdir(mode=0o700)
    give_to(work, uid=account.uid, gid=account.gid)
    # A server that was killed has WAL to replay, which pg_upgrade would refuse to do.
    told = await _in(copy, account, old, "postgres", "template1", given=CONNECTABLE)
    for database in _NAME.findall(told):
        await _in(copy, account, old, "postgres", database, given=DROP_MARKS)
    control = control_fields(await _in(copy, account, old, "pg_controldata"))
    checksums = control["Data page checksum version"] != "0"
    segment_mb = int(control["Bytes per WAL segment"]) >> 20
    progress(f"creating a database of PostgreSQL {new.version}")
    await initdb(fresh, new, account, checksums=checksums, wal_segment_mb=segment_mb)
    progress("moving the data over")
    await _pg_upgrade(work, account, old, new)
    if not checksums:
        progress("adding checksums")
        await _in(fresh, account, new, "pg_checksums", "--enable")


async def _pg_upgrade(work: Path, account: Account, old: Binaries, new: Binaries) -> None:
    with opened(work) as here, _told_why(work / "new"):
        await run_program(
            new.program("pg_upgrade"),
            f"--old-bindir={old.program('postgres').parent}",
            f"--new-bindir={new.program('postgres').parent}",
            f"--old-datadir={here.path}/old",
            f"--new-datadir={here.path}/new",
            f"--socketdir={here.path}",
            f"--username={SUPERUSER}",
            "--link",  # The copy is ours to use up.
            # The copy must not write into the archive of the original.
            "--old-options=-c archive_mode=off",
            cwd=work,
            account=account,
            timeout_s=UPGRADE_TIMEOUT_S,
            pass_fds=(here.descriptor,),
        )


@contextmanager
def _told_why(new: Path) -> Iterator[None]:
    """pg_upgrade ends with the name of a log file, which is gone when the person reads it."""
    try:
        yield
    except DatabaseError as error:
        logs = sorted(new.glob("pg_upgrade_output.d/**/*.log"), key=lambda log: log.stat().st_mtime)
        found = [line for path in logs if " error: " in (line := last_line(path.read_bytes()))]
        raise DatabaseError(found[-1] if found else error.message) from error


async def _in(
    folder: Path, account: Account, of: Binaries, name: str, *arguments: str, given: str = ""
) -> str:
    """Run a program on a data folder, which it gets as `-D`, before the other arguments.

    `given` is a line that `postgres` runs in single-user mode.
    """
    first = ("--single",) if name == "postgres" else ()
    with opened(folder) as here:
        return await run_program(
            of.program(name),
            *(*first, "-D", here.path, *arguments),
            cwd=folder,
            account=account,
            timeout_s=UPGRADE_TIMEOUT_S,
            pass_fds=(here.descriptor,),
            given=f"{given}\n".encode() if given else b"",
        )


def _check_versions(directory: Path, major: str, binaries: Binaries) -> None:
    if not major.isdecimal():
        raise DatabaseError(
            f"{directory} was written by PostgreSQL {major}, which is not supported"
        )
    if int(major) >= int(binaries.major):
        raise DatabaseError(
            f"{directory} is of PostgreSQL {major} and this is PostgreSQL {binaries.version}: "
            "there is nothing to upgrade"
        )
    if any((directory / "pg_tblspc").glob("*")):
        raise DatabaseError(
            f"{directory} has tablespaces, which cannot be copied beside it: dump and restore it "
            "(appliance db upgrade --from-url)"
        )


def _missing_programs(directory: Path, major: str, binaries: Binaries, old_bin: Path | None) -> str:
    if old_bin is not None:
        return f"{old_bin} holds no postgres of PostgreSQL {major} that runs"
    return (
        f"upgrading {directory} from PostgreSQL {major} to {binaries.version} needs the programs of "
        f"{major}: install them (Debian and Ubuntu: apt install postgresql-{major}) or name their "
        "folder with --old-bin; or let the old server run elsewhere and copy from it into a new "
        "folder: appliance db upgrade --from-url postgresql://… --data-dir NEW"
    )
