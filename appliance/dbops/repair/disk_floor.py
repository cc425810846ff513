"""Whether there is room for the WAL that freezing writes. Reads file systems; deletes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FLOOR_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The free bytes of the file system that a folder is on, and how few there may be."""

    folder: Path
    free_bytes: int
    floor_bytes: int

    @property
    def is_enough(self) -> bool:
        """Whether work may go on."""
        return self.free_bytes >= self.floor_bytes


STARTED_LINE = 2
"""Of `postmaster.pid`: when the server was started, in seconds since 1970 (LOCK_FILE_LINE_START_TIME)."""
STARTED_WITHIN_S = 2.0


def wal_folders(data_directory: Path | None) -> tuple[Path, ...]:
    """Where a server writes: its data folder, and the one that `pg_wal` may link to.

    Empty when the server's files are not on this machine, or not to be seen by this user.
    """
    if data_directory is None or not os.access(data_directory / "pg_wal", os.R_OK | os.X_OK):
        return ()
    return tuple(dict.fromkeys((data_directory, (data_directory / "pg_wal").resolve())))


def is_folder_of(data_directory: Path, started_s: float) -> bool:
    """Whether a folder of this machine is that of a server that was started then.

    A server that is reached by URL may be elsewhere, and this machine have a folder of the same path: its
    own, or its standby's, which has the same system identifier too.
    """
    try:
        lines = (data_directory / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        return abs(int(lines[STARTED_LINE]) - started_s) <= STARTED_WITHIN_S
    except (OSError, ValueError, IndexError):
        return False


def least_room(folders: Iterable[Path], floor_bytes: int) -> Room | None:
    """Of these folders the one that is nearest to its floor; None when there are none.

    The floor is `floor_bytes`, but a tenth of the file system where that is less.
    """
    found = []
    for folder in folders:
        status = os.statvfs(folder)
        size = status.f_blocks * status.f_frsize
        floor = min(floor_bytes, int(size * FLOOR_SHARE))
        free = status.f_bavail * status.f_frsize
        found.append(Room(folder=folder, free_bytes=free, floor_bytes=floor))
    return min(found, key=lambda room: room.free_bytes - room.floor_bytes, default=None)
