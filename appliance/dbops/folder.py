"""Folders and files at the edge of a cluster: appended settings, owners, swaps, and the lock.

A cluster's folder may belong to a less trusted user than this process, so links in it are never followed.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.durable import sync_folder
from appliance.errors import DatabaseError
from appliance.file_lock import FileLock, LockTaken

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""renameat2(2)."""


def append_text(folder: Path, name: str, text: str) -> None:
    """Add durably to the end of a file that exists; raises OSError when it is a link."""
    with_folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, dir_fd=with_folder), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    finally:
        os.close(with_folder)


def give_to(folder: Path, *, uid: int, gid: int) -> None:
    """Change the owner of a folder and all in it; links are changed, not followed."""
    for _, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
        os.fchown(descriptor, uid, gid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """An open folder: a path to it for children that inherit the descriptor, and the descriptor."""

    path: str
    descriptor: int


@contextmanager
def opened(folder: Path) -> Iterator[Here]:
    """A folder that children can reach who could not walk its path, and however long that is.

    Not `/proc/self/cwd`: programs of PostgreSQL before 16 change their working folder at the start, and
    cannot come back to one that they may not walk to.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Here(path=f"/proc/self/fd/{descriptor}", descriptor=descriptor)
    finally:
        os.close(descriptor)


def exchange(first: Path, second: Path) -> None:
    """Let two folders of one file system swap their names, at once where the file system can.

    Where it cannot (NFS), `first` is missing for a moment in between.
    """
    result = _libc.renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    )
    if result != 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number), str(first))
        between = second.with_name(f"{second.name}.swap")
        first.rename(between)
        second.rename(first)
        between.rename(second)
    sync_folder(first.parent)


ANOTHER_APPLIANCE = "another appliance"
"""Who holds a lock, where it is nobody more special."""


class FolderLock(FileLock):
    """The lock file `path` of `folder`; `purpose` is what others are told who find it taken."""

    def __init__(self, path: Path, folder: Path, *, purpose: str = ANOTHER_APPLIANCE) -> None:
        super().__init__(path, purpose=purpose)
        self._folder = folder

    def acquire(self) -> None:
        """Take the lock unless it is ours already; raises DatabaseError when another process has it."""
        try:
            super().acquire()
        except LockTaken as error:
            raise DatabaseError(f"{self._folder} is in use by {error.holder}") from error
