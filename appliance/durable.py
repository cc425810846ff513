"""Files that are replaced whole: after a power cut there is the old content, or all of the new one.

Owns the names `.NAME.*.new` beside them while they are written. Never: follows a link, or leaves a file
of root's in a folder that is somebody else's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from pathlib import Path

LEFTOVER_S = 600.0
"""What a killed writer left is removed at this age: longer than any takes that others may meet."""


def replace_file(
    path: Path, content: bytes, *, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Write a file; whatever had its name, a link too, is replaced.

    `owner` is a uid and a gid; without it, as root, the folder's. Raises OSError, and then the old one is
    in its place.
    """
    os.close(put_file(path, content, mode=mode, owner=owner))
    sync_folder(path.parent)


def put_file(
    path: Path, content: bytes, *, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> int:
    """As `replace_file`, and returns the file, open to read and write.

    Its content is on the disk; its name is once the folder is synced.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # Of this writer alone: two may replace one file at the same time.
    temporary = f".{path.name}.{secrets.token_hex(4)}.new"
    try:
        _remove_leftovers(path.name, folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            write_all(descriptor, content)
            give_to_owner_of(folder, descriptor, owner)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
    finally:
        os.close(folder)
    return descriptor


def sync_folder(folder: Path) -> None:
    """Make names created in the folder survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it where the file stands. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_all_at(descriptor: int, data: bytes, place: int) -> None:
    """Write all of it at this place. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written


def give_to_owner_of(folder: int, file: int, owner: tuple[int, int] | None = None) -> None:
    """Let an open file that root has made belong to its open folder's owner, or to `owner`.

    A service could not open again what a person made by hand as root. Raises OSError.
    """
    if owner is None:
        above = os.fstat(folder)
        if os.geteuid() != 0 or above.st_uid == 0:
            return
        owner = (above.st_uid, above.st_gid)
    os.fchown(file, *owner)


def _remove_leftovers(name: str, folder: int) -> None:
    """The folder may be another user's: what is no file of this kind's shape stays."""
    oldest = time.time() - LEFTOVER_S
    for other in os.listdir(folder):
        if not (other.startswith(f".{name}.") and other.endswith(".new")):
            continue
        with contextlib.suppress(OSError):
            status = os.stat(other, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_mtime < oldest:
                os.unlink(other, dir_fd=folder)
