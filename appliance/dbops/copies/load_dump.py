"""Copies all databases of a running PostgreSQL into a new embedded cluster, by pg_dumpall.

The way for an old version whose programs are elsewhere, and into the appliance from another server.
Never: changes anything at its source, or touches a folder that exists.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from appliance.dbops.cluster.account import account_of_cluster
from appliance.dbops.cluster.binaries import Binaries, reachable_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.cluster.programs import end_process, last_line
from appliance.errors import DatabaseError

Progress = Callable[[str], None]

EXPECTED = ('role "postgres" already exists', 'unrecognized parameter "pg_attver"')
"""Statements of a dump that fail in a new cluster and may: the one that makes the superuser again, and
those that give columns a mark that the server of the dump keeps for itself (see `upgrade.DROP_MARKS`)."""


async def load_dump(directory: Path, binaries: Binaries, url: str, progress: Progress) -> None:
    """Make `directory` a cluster with all roles and databases of the server at `url`.

    Raises DatabaseError when the folder exists, the source cannot be read whole, or a statement of the
    dump fails; then there is no folder.
    """
    work = _new_folder(directory)
    cluster = Cluster(work / "postgres", binaries)
    try:
        await cluster.init(progress)
        await cluster.start(progress)
        try:
            progress("copying all databases")
            await _copy(url, cluster, binaries)
        finally:
            await cluster.stop()
        cluster.directory.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _new_folder(directory: Path) -> Path:
    if directory.exists():
        raise DatabaseError(f"{directory} exists; the copy needs a new folder")
    work = directory.with_name(f"{directory.name}.load")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700, parents=True)
    return work


def _without_password(url: str) -> tuple[str, dict[str, str]]:
    """The address for a command line, which every user may read, and the password for the environment."""
    parts = urlsplit(url)
    if parts.password is None:
        return url, {}
    user, _, place = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=f"{user.partition(':')[0]}@{place}")
    return urlunsplit(bare), {"PGPASSWORD": unquote(parts.password)}


async def _copy(url: str, cluster: Cluster, binaries: Binaries) -> None:
    """Stream a dump into psql; both fail on their own, and both are asked."""
    own = reachable_binaries(binaries, account_of_cluster(cluster.directory))
    address, password = _without_password(url)
    reading, writing = os.pipe()
    try:
        dump = await asyncio.create_subprocess_exec(
            own.program("pg_dumpall"),
            "--no-password",
            f"--dbname={address}",
            env={**os.environ, "LC_ALL": "C", **password},
            stdin=DEVNULL,
            stdout=writing,
            stderr=PIPE,
        )
        psql = await asyncio.create_subprocess_exec(
            own.program("psql"),
            *("--no-psqlrc", "--quiet", "--dbname", cluster.url()),
            env={"LC_ALL": "C", "PATH": os.defpath, "HOME": "/"},
            stdin=reading,
            stdout=DEVNULL,
            stderr=PIPE,
        )
    finally:
        os.close(reading)
        os.close(writing)
    try:
        (_, dumped), (_, loaded) = await asyncio.gather(dump.communicate(), psql.communicate())
    except BaseException:
        await end_process(dump)
        await end_process(psql)
        raise
    if dump.returncode != 0:
        raise DatabaseError(f"the source could not be read: {last_line(dumped)}")
    failed = [
        line
        for line in loaded.decode("utf-8", "replace").splitlines()
        if "ERROR:" in line and not any(expected in line for expected in EXPECTED)
    ]
    if failed or psql.returncode != 0:
        raise DatabaseError(f"the copy failed: {failed[0] if failed else last_line(loaded)}")
