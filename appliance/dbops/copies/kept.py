"""Data folders that change places: a new one is put in by a rename, the old one is kept beside it.

Owns the names of kept folders. Never: removes one, or touches a folder that a server works in.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from appliance.dbops.cluster import leftover
from appliance.dbops.cluster.account import account_of_cluster, own_account
from appliance.dbops.cluster.cluster import major_of
from appliance.dbops.cluster.programs import run_program
from appliance.dbops.folder import exchange
from appliance.errors import DatabaseError

COPY_TIMEOUT_S = 24 * 3600.0
SPACE_MARGIN_BYTES = 512 << 20
"""What a new cluster needs beside the copied data: its WAL and catalogs."""

_KEPT = re.compile(r"\.kept-\d+-(\d{8}T\d{12}Z)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """A data folder whose content was exchanged: what it is now, and where the other one is kept."""

    directory: Path
    major: str
    kept: Path
    kept_major: str


def kept_folders(directory: Path) -> list[Path]:
    """What was kept of this folder, the latest last."""
    found = [
        (match[1], path)
        for path in directory.parent.glob(f"{directory.name}.kept-*")
        if (match := _KEPT.search(path.name))
    ]
    return [path for _, path in sorted(found)]


def swap_in(directory: Path, new: Path) -> Swapped:
    """Let `new` take the folder's name, and the folder a name of those that are kept."""
    old_major = major_of(directory)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    kept = directory.with_name(f"{directory.name}.kept-{old_major}-{stamp}")
    # Killed between the two, the folder is the old one still, and the new one beside it under a name
    # that says nothing of its version: `swap_back` looks into it.
    new.rename(kept)
    exchange(directory, kept)
    return Swapped(directory=directory, major=major_of(directory), kept=kept, kept_major=old_major)


def swap_back(directory: Path, is_wanted: Callable[[Path], bool]) -> Swapped:
    """Put back the folder kept last among the wanted ones; raises DatabaseError when there is none."""
    wanted = [path for path in kept_folders(directory) if is_wanted(path)]
    if not wanted:
        raise DatabaseError(f"no such folder is kept beside {directory}")
    return swap_in(directory, wanted[-1])


def check_stopped(directory: Path) -> None:
    """Raises DatabaseError when a server works in the folder, as one may that took no lock."""
    pids = leftover.processes_in(directory, account_of_cluster(directory))
    if pids:
        raise DatabaseError(
            f"a PostgreSQL runs on {directory} (processes {pids}); stop it with: appliance db stop "
            f"--data-dir {directory}"
        )


def check_space(source: Path, target: Path) -> None:
    """Raises DatabaseError when `target`'s disk has no room for a copy of `source`."""
    files = (path for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    needed = sum(path.stat().st_size for path in files) + SPACE_MARGIN_BYTES
    free = shutil.disk_usage(target).free
    if free < needed:
        raise DatabaseError(
            f"a copy of {source} needs {needed >> 20} MiB in {target}, free are {free >> 20} MiB"
        )


async def copy_folder(source: Path, target: Path) -> None:
    """With owners, modes and links; blocks are shared where the file system can."""
    await run_program(
        Path("/bin/cp"),
        *("-a", "--reflink=auto", source, target),
        cwd=Path("/"),
        account=own_account(),
        timeout_s=COPY_TIMEOUT_S,
    )
