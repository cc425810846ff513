"""How old the newest base backup of a cluster is, and how much room its archive has.

Read from the cluster's folder and its archive, so that a backup made by hand counts, and one whose disk
is gone does not. Never: connects.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from appliance.dbops.copies.archive import Archive
from appliance.dbops.copies.ownership import belongs, read_mark, read_owner
from appliance.errors import DatabaseError


@dataclass(frozen=True, slots=True, kw_only=True)
class Backups:
    """`newest_at`: when the newest base backup ended, None without any; bytes of the archive's disk,
    None where it is not at hand."""

    newest_at: datetime | None
    free_bytes: int | None = None
    disk_bytes: int | None = None


def read_backups(directory: Path | None) -> Backups | None:
    """Those that the database in this data folder has in the archive that it knows; of None, None."""
    if directory is None:
        return None
    try:
        mark = read_mark(directory)
        if mark is None:
            return Backups(newest_at=None)
        archive = Archive(Path(mark.archive))
        disk = os.statvfs(archive.folder)
        bases = archive.bases() if belongs(directory, read_owner(archive.folder)) else []
    except (DatabaseError, OSError):
        return Backups(newest_at=None)
    return Backups(
        newest_at=bases[-1].finished_at if bases else None,
        free_bytes=disk.f_bavail * disk.f_frsize,
        disk_bytes=disk.f_blocks * disk.f_frsize,
    )


def made_at(system_id: str) -> datetime | None:
    """When a cluster was made: its system identifier's upper half (`BootStrapXLOG`, xlog.c).

    None where the identifier is not known.
    """
    return datetime.fromtimestamp(int(system_id) >> 32, UTC) if system_id.isdecimal() else None
